"""This file finds out whether inputs come again, where nothing but the inputs themselves tells samples apart."""

from __future__ import annotations

from collections.abc import Sequence

# The samples that are waited for, from the first on.
_REMEMBERED = 4096
# No more than that is kept before anything has come again. A part of a longer epoch is of use in the next
# one, too.
_MOST_SAMPLES = 1 << 20
_MOST_BYTES = 4 << 30
# So many that have come again are no accident (blank pictures).
_ENOUGH = 16


class Recurrence:
    """Counts inputs that come again. Owned by the thread of the calls.

    Attributes:
      is_likely: they come again, or may as far as is known.
    """

    def __init__(self) -> None:
        self.is_likely = True
        self._first: set[int] = set()
        self._again = 0
        self._fresh_samples = 0
        self._fresh_bytes = 0

    def note(self, ids: Sequence[int]) -> bool:
        """These inputs have come. Returns whether as many have come again as are waited for: an epoch has passed."""
        again = sum(sample in self._first for sample in ids)
        self._again += again
        if self._again == 0 and len(self._first) < _REMEMBERED:
            self._first.update(ids)
        if self._again >= _ENOUGH:
            self._fresh_samples = self._fresh_bytes = 0
            self.is_likely = True
        if not self._first or self._again < max(_ENOUGH, len(self._first)):
            return False
        self._again -= len(self._first)
        return True

    def kept(self, samples: int, bytes_: int) -> None:
        """So much that was not there has been kept."""
        self._fresh_samples += samples
        self._fresh_bytes += bytes_
        if self._fresh_samples > _MOST_SAMPLES or self._fresh_bytes > _MOST_BYTES:
            self.is_likely = False

    def found(self) -> None:
        """Something was there, from another run perhaps."""
        self._fresh_samples = self._fresh_bytes = 0
