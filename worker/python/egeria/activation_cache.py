"""The node's egeria-cache, as what keeps the activations of one frozen prefix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from egeria import _native
from egeria.modules import LayerModule

# Asked for while nobody knows how large the entries of a prefix are.
_UNKNOWN_ENTRY_BYTES = 16 << 20


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
    """An ActivationStore (egeria.skipping) of one prefix, in the node's cache.

    Owned by the training thread.
    """

    def __init__(self, cache: _native.ActivationCache, prefix: bytes):
        self._cache = cache
        self._prefix = prefix
        self._entry_bytes = 0  # not known

    def get(self, ids: Sequence[int], input_hashes: Sequence[int]) -> list[tuple[Tensor, ...] | None]:
        """For each sample the tensors that cross the cut, on the host and without the batch dimension; None is a
        miss."""
        ids, hashes = list(map(int, ids)), [int(value) & (2**64 - 1) for value in input_hashes]
        if not ids:
            return []
        if not self._entry_bytes and not self._learn_size(ids[0], hashes[0]):
            return [None] * len(ids)
        rows = self._cache.get(self._prefix, ids, hashes, self._entry_bytes)
        return [None if row is None else tuple(row) for row in rows]

    def put(self, ids: Sequence[int], input_hashes: Sequence[int], tensors: tuple[Tensor, ...]) -> None:
        """Offers b x ... tensors, a row for each sample; they are written when there is time, or dropped."""
        if len(ids) == 0:
            return
        self._entry_bytes = max(self._entry_bytes, _native.entry_bytes([tensor[0].detach().cpu().contiguous()
                                                                        for tensor in tensors]))
        hashes = [int(value) & (2**64 - 1) for value in input_hashes]
        self._cache.put(self._prefix, list(map(int, ids)), hashes, list(tensors))

    def forget(self) -> None:
        """What is stored of this prefix is not needed any more."""
        self._cache.drop(self._prefix, "prefix")

    def _learn_size(self, sample: int, input_hash: int) -> bool:
        """After a resume there may be entries although nothing has been stored by this process."""
        row = self._cache.get(self._prefix, [sample], [input_hash], _UNKNOWN_ENTRY_BYTES)[0]
        if row is not None:
            self._entry_bytes = _native.entry_bytes(row)
        return row is not None
