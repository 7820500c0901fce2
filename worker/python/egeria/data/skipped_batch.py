"""A SkippedBatch is a batch some of whose samples are not loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from egeria.data.stand_in import StandIn


class _Rows(NamedTuple):
    """Says where a sample's rows are."""

    leaves: list[Any]
    row: int


class SkippedBatch:
    """Is the Source of a batch's stand-ins. Owned by the training thread.

    Attributes:
      indices: the samples'.
    """

    def __init__(self, memory: Any, indices: tuple[int, ...]):
        """
        Args:
          memory: the SampleMemory of the loader.
        """
        self.indices = indices
        self._memory = memory
        self._rows: dict[int, _Rows] = {}  # by position
        self._whole: list[Any] | None = None  # the parts of the batch, where all samples were loaded at once
        self._values: dict[int, Tensor] = {}  # by part
        self._touched: set[int] = set()

    @property
    def loaded(self) -> set[int]:
        """The positions of the samples that are loaded."""
        return set(self._rows)

    def is_whole(self) -> bool:
        return len(self._rows) == len(self.indices)

    def has(self, positions: Sequence[int], leaves: list[Any]) -> None:
        """The samples at these positions are loaded."""
        for row, position in enumerate(positions):
            self._rows[position] = _Rows(leaves, row)
        if len(positions) == len(self.indices):
            self._whole = leaves

    def batch(self) -> Any:
        """Returns what the loop gets."""
        return self._memory.put_together([self._part(leaf) for leaf in range(len(self._memory))])

    def _part(self, leaf: int) -> Any:
        size = len(self.indices)
        if self._memory.is_left_out(leaf):
            return StandIn.like(self, leaf, self._memory.like(leaf, size))
        if self._whole is not None:
            return self._whole[leaf]
        kept = self._memory.kept_rows(leaf, self.indices)
        if kept is not None:
            return kept
        self._load(range(size))
        rows = [self._rows[i].leaves[leaf][self._rows[i].row] for i in range(size)]
        return torch.stack(rows) if isinstance(rows[0], Tensor) else rows

    def values(self, leaf: int) -> Tensor:
        if leaf not in self._values:
            if not self.is_whole():
                self._memory.needed()
            rows = self.rows(leaf, range(len(self.indices))) if self._whole is None else self._whole[leaf]
            self._values[leaf] = rows
        return self._values[leaf]

    def rows(self, leaf: int, positions: Sequence[int]) -> Tensor:
        self._load(positions)
        return torch.stack([self._rows[i].leaves[leaf][self._rows[i].row] for i in positions])

    def touched(self, leaf: int, by: str) -> None:
        if leaf not in self._touched:
            self._touched.add(leaf)
            self._memory.touched(leaf, by)

    def hashes(self, context: bytes, others: Sequence[int], computed: Callable[[list[int]], list[int]]) -> list[int]:
        return self._memory.hashes(self.indices, context, others, computed, self.loaded)

    def fetched(self, missing: Sequence[int]) -> bool:
        """The cache has all samples but these, which are loaded. Returns whether one was loaded now."""
        self._memory.fetched(self.indices, set(missing), self.loaded)
        return self._load(missing)

    def was_outdated(self) -> bool:
        return self._memory.was_outdated()

    def _load(self, positions: Sequence[int]) -> bool:
        wanted = [i for i in positions if i not in self._rows]
        if not wanted:
            return False
        if self._memory.whole:
            wanted = list(range(len(self.indices)))
        self.has(wanted, self._memory.load([self.indices[i] for i in wanted]))
        return True
