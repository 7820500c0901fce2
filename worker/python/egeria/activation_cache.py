"""The node's egeria-cache, as what keeps the activations of one frozen prefix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from egeria import _native
from egeria.modules import LayerModule
from egeria.stores import Fetched


def fingerprint(frozen: Sequence[LayerModule]) -> bytes:
    """16 bytes that tell this frozen prefix from every other: names, types and settings of its submodules, the
    contents of parameters and buffers, and torch's version.

    On an accelerator it copies them to the host.
    """
    text = [torch.__version__]
    tensors: list[Tensor] = []
    for module in frozen:
        for name, unit in zip(module.unit_names, module.units):
            text += [f"{name}.{inner}: {kind!r} {kind.training}" for inner, kind in unit.named_modules()]
        for kind, found in (("parameter", module.parameters()), ("buffer", module.buffers())):
            for name, tensor in found:
                text.append(f"{kind} {name} {tensor.device.type}")
                tensors.append(tensor.detach())
    return _native.fingerprint("\n".join(text), tensors)


class PrefixStore:
    """An ActivationStore (egeria.stores) of one prefix, in the node's cache. The one that was made last counts.

    Owned by the training thread.
    """

    def __init__(self, cache: _native.ActivationCache, prefix: bytes):
        self._cache = cache
        self._prefix = prefix
        cache.use(prefix)

    def get(self, ids: Sequence[int], input_hashes: Sequence[int], patience: float) -> Fetched:
        """See ActivationStore; the tensors are on the cache's device."""
        return Fetched(*self._cache.take(_unsigned(ids), _unsigned(input_hashes), patience))

    def put(self, ids: Sequence[int], input_hashes: Sequence[int], tensors: tuple[Tensor, ...]) -> None:
        """Offers b x ... tensors, a row for each sample; they are written when there is time, or dropped."""
        if len(ids) > 0:
            self._cache.put(_unsigned(ids), _unsigned(input_hashes), list(tensors))

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """The samples of the next batches: they are read ahead."""
        self._cache.expect([_unsigned(ids) for ids in batches])

    def forget(self) -> None:
        """What is stored of this prefix is not needed any more."""
        self._cache.drop(self._prefix, "prefix")


def _unsigned(values: Sequence[int]) -> list[int]:
    return [int(value) & (2**64 - 1) for value in values]
