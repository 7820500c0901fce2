"""This file finds out whether inputs come again, where nothing but the inputs themselves tells samples apart."""

from __future__ import annotations

from collections.abc import Sequence

# The samples that are waited for, from the first on.
_REMEMBERED = 4096
# No more than that is kept before anything has come again. A part of a longer epoch is of use in the next one, too.
_MOST_SAMPLES = 1 << 20
_MOST_BYTES = 4 << 30
# So many that have come again are no accident (blank pictures).
_ENOUGH = 16


class Recurrence:
    """Counts inputs that come again. Owned by the thread of the calls.

    Attributes:
      known: they come again; False: so many have not that nothing more is kept; None: too few have come.
    """

    def __init__(self) -> None:
        self.known: bool | None = None
        self._first: set[int] = set()
        self._again = 0  # since the last epoch
        self._ever = 0  # those that have come again or were there from another run
        self._fresh_samples = 0
        self._fresh_bytes = 0

    def note(self, ids: Sequence[int]) -> bool:
        """These inputs have come. Returns whether as many have come again as are waited for: an epoch has passed."""
        again = sum(sample in self._first for sample in ids)
        self._again += again
        self._count(again)
        if self._again == 0 and len(self._first) < _REMEMBERED:
            self._first.update(ids)
        if not self._first or self._again < max(_ENOUGH, len(self._first)):
            return False
        self._again -= len(self._first)
        return True

    def found(self, samples: int) -> None:
        """The cache had so many, from another run perhaps."""
        self._count(samples)

    def kept(self, samples: int, size: int) -> None:
        """So many samples, of this size in bytes, were not there and have been kept."""
        self._fresh_samples += samples
        self._fresh_bytes += size
        if self._fresh_samples > _MOST_SAMPLES or self._fresh_bytes > _MOST_BYTES:
            self.known = False
            self._ever = 0

    def _count(self, samples: int) -> None:
        self._ever += samples
        if self._ever >= _ENOUGH:
            self.known = True
            self._ever = self._fresh_samples = self._fresh_bytes = 0
