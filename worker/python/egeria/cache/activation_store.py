"""This file says what the skipper expects of a store that keeps the activations of a frozen prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class Fetched(NamedTuple):
    """What a store has of a batch.

    Attributes:
      tensors: b x ..., what crosses the cut; nobody else has them, and they may be written to. The rows of misses
        hold anything. None where nothing was found.
      reasons: for each sample why it is a miss, in a word; "" for a hit.
    """

    tensors: tuple[Tensor, ...]
    reasons: Sequence[str]

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Tensor, ...] | None]) -> Fetched:
        """From each sample's tensors, without the batch dimension; None is a miss ("absent"). Those that do not
        look like the first one's are misses too ("unfit")."""
        like = next((row for row in rows if row is not None), None)
        if like is None:
            return cls((), ["absent"] * len(rows))
        tensors = tuple(part.new_empty((len(rows), *part.shape)) for part in like)
        reasons = []
        for position, row in enumerate(rows):
            fits = (
                row is not None
                and len(row) == len(like)
                and all(part.shape == other.shape and part.dtype == other.dtype for part, other in zip(row, like))
            )
            reasons.append("" if fits else "absent" if row is None else "unfit")
            for tensor, part in zip(tensors, row if fits else ()):
                tensor[position] = part
        return cls(tensors, reasons)


class ActivationStore(Protocol):
    """What keeps activations of one frozen prefix. What it does not have in time is a miss."""

    def get(self, ids: Sequence[int], input_hashes: Sequence[int], patience: float) -> Fetched:
        """What put() was given for these samples with the same input hashes.

        Args:
          patience: seconds to wait for it.
        """

    def put(self, ids: Sequence[int], input_hashes: Sequence[int], tensors: tuple[Tensor, ...]) -> None:
        """Offers b x ... tensors, a row for each sample. They are the store's from then on. It may drop them."""

    def as_kept(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """What get() gives for these, where put() was given them. The same twice as once."""

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """The samples of the next batches, a hint."""

    def forget(self) -> None:
        """What is stored of this prefix is not needed any more, or wrong."""
