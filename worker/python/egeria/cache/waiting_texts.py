"""This file keeps what training has computed for texts of a padded length, until that length is proven."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from egeria.cache.model_call import Call

# It holds so many bytes at most.
_MOST_BYTES = 1 << 26


class Batch(NamedTuple):
    """Holds one batch that waits: its call, the samples' ids, and what crosses a cut behind these entries."""

    call: Call
    ids: list[int]
    names: list[str]
    tensors: list[Tensor]


class WaitingTexts:
    """Keeps batches by what their calls have in common, so that a proof that comes later is one for them, too.

    Proofs may take a part of the time only, so that in the first epoch some lengths come before they are proven. Owned
    by the training thread.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES):
        self._left = most_bytes
        self._batches: dict[Any, list[Batch]] = {}

    def add(self, key: Any, call: Call, ids: Sequence[int], names: Sequence[str], tensors: list[Tensor]) -> None:
        """Keeps a batch if there is room. `tensors` are its own."""
        size = sum(tensor.nbytes for tensor in tensors)
        if size <= self._left:
            self._left -= size
            self._batches.setdefault(key, []).append(Batch(call.copied(), list(ids), list(names), tensors))

    def take(self, key: Any, names: Sequence[str]) -> list[Batch]:
        """Gives away the batches of calls that were proven, with a cut behind these entries."""
        batches = self._batches.pop(key, [])
        self._left += sum(tensor.nbytes for batch in batches for tensor in batch.tensors)
        return [batch for batch in batches if batch.names == list(names)]

    def clear(self) -> None:
        for key in list(self._batches):
            self.take(key, ())
