"""This file keeps the batches that a training had before something froze, to compute them for the cache later."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from egeria.cache.model_call import Call, UnusualCall

# They take so many bytes at most. Where they are more, none is kept: those that are missing would be in most batches.
_MOST_BYTES = 1 << 26


class EarlyBatch(NamedTuple):
    """Holds a call of the model, with copies of its samples, and their ids."""

    call: Call
    ids: list[int]


class EarlyBatches:
    """Keeps the batches of a training's first epoch that came before anything was frozen.

    The cache has nothing of them. In the next epoch their samples are spread over all batches, and each batch that
    lacks one costs a whole pass, or half of one. To compute them before that costs as many passes as they are.

    Owned by the training thread.
    """

    def __init__(self, goes_on_after: Callable[[int], bool], most_bytes: int = _MOST_BYTES):
        """
        Args:
          goes_on_after: returns whether the training goes on behind the epoch that it is in, given the number of passes
            of that epoch so far; True where nobody knows.
        """
        self._goes_on_after = goes_on_after
        self._passes = 0
        self._left = most_bytes
        self._batches: collections.deque[EarlyBatch] = collections.deque()
        self._seen: set[int] = set()
        self._is_over = False

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any], ids: Sequence[int] | None) -> None:
        """A training forward pass begins while nothing is frozen."""
        if self._is_over or ids is None:
            return
        self._passes += 1
        try:
            call = Call(args, kwargs, len(ids))
        except UnusualCall:
            return
        self._left -= sum(tensor.nbytes for tensor in call.batched()) if call.source is None else 0
        if call.source is not None or self._left < 0 or not self._seen.isdisjoint(ids):
            self._end()
            return
        self._seen.update(ids)
        self._batches.append(EarlyBatch(call.copied(), list(ids)))

    def take(self, ids: Sequence[int]) -> EarlyBatch | None:
        """Gives away one of the batches, to be computed beside a pass of these samples; None where there is none, or it
        comes too late."""
        if not self._batches:
            return None
        self._passes += 1
        if not self._seen.isdisjoint(ids) or not self._goes_on_after(self._passes):
            self._end()
            return None
        return self._batches.popleft()

    def give_back(self, batch: EarlyBatch) -> None:
        """It cannot be computed yet."""
        self._batches.append(batch)

    def _end(self) -> None:
        self._is_over = True
        self._batches.clear()
        self._seen.clear()
