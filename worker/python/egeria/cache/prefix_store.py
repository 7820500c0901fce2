"""A PrefixStore keeps the activations of one frozen prefix in the node's egeria-cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from egeria import _native
from egeria.cache.activation_store import Fetched
from egeria.cache.code_fingerprint import program_of
from egeria.cache.module_fingerprint import ModuleFingerprint
from egeria.cache.stable_text import name_of
from egeria.model.modules import LayerModule

# What the cache rounds float32 to, by its format.
_ROUNDED = {"fp16": torch.float16, "bf16": torch.bfloat16}


def fingerprint(frozen: Sequence[LayerModule], attributes: ModuleFingerprint) -> bytes:
    """16 bytes that tell this frozen prefix from every other: names, types and modes of its submodules, the contents of
    parameters and buffers, attributes, the code of what has those, torch's version and the processor's capability. Not
    the device's number.

    On an accelerator it copies them to the host.
    """
    text = [
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        program_of(dict.fromkeys(map(type, attributes.modules.values()))),
        attributes.text,
    ]
    tensors: list[Tensor] = []
    for module in frozen:
        for name, unit in zip(module.unit_names, module.units):
            text += [f"{name}.{inner}: {name_of(type(kind))} {kind.training}" for inner, kind in unit.named_modules()]
        for kind, found in (("parameter", module.parameters()), ("buffer", module.buffers())):
            for name, tensor in found:
                text.append(f"{kind} {name} {tensor.device.type}")
                tensors.append(tensor.detach())
    return _native.fingerprint("\n".join(text), [*tensors, *attributes.tensors()])


class PrefixStore:
    """An ActivationStore of one prefix in the node's cache. The store that was made last counts.

    Owned by the training thread.
    """

    def __init__(self, cache: _native.ActivationCache, prefix: bytes, format: str = "exact"):
        """
        Args:
          format: the cache's, which may round: see Config.cache_format.
        """
        self._cache = cache
        self._prefix = prefix
        self._rounded = _ROUNDED.get(format)
        cache.use(prefix)

    def get(self, ids: Sequence[int], input_hashes: Sequence[int], patience: float) -> Fetched:
        """See ActivationStore; the tensors are on the cache's device."""
        return Fetched(*self._cache.take(ids, input_hashes, patience))

    def put(self, ids: Sequence[int], input_hashes: Sequence[int], tensors: tuple[Tensor, ...]) -> None:
        """Offers b x ... tensors, a row for each sample; they are written when there is time, or dropped."""
        if len(ids) > 0:
            self._cache.put(ids, input_hashes, list(tensors))

    def as_kept(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """See ActivationStore. Values beyond the range of the rounded type are kept as they are; here they become
        infinite, in whatever is compared."""
        if self._rounded is None:
            return tensors
        return [
            tensor.to(self._rounded).to(tensor.dtype) if tensor.dtype == torch.float32 else tensor for tensor in tensors
        ]

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """The samples of the next batches: they are read ahead."""
        self._cache.expect(batches)

    def forget(self) -> None:
        """What is stored of this prefix is not needed any more."""
        self._cache.drop(self._prefix, "prefix")
