"""Whether samples come to the model as they came before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from egeria.calls import Call, UnusualCall

# Samples that are remembered, and among those how many have to come again before it is known.
_REMEMBERED = 256
_ENOUGH = 16


class Repeats:
    """Compares some samples of the first epoch with what they are when they come again.

    To be told all batches of a training from its beginning, so that it is known, when layers freeze in a later
    epoch, whether anything can be gained by keeping what they compute: not under random augmentation. Costs
    nothing for batches without a remembered sample, and once it is known. Owned by the training thread.

    Attributes:
      known: True: most come again as they were; False: most do not; None: too few have come again.
    """

    def __init__(self) -> None:
        self.known: bool | None = None
        self._hashes: dict[int, int] = {}
        self._same = 0
        self._other = 0

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any], ids: Sequence[int] | None) -> None:
        """A training forward pass is about to begin."""
        if self.known is not None or ids is None:
            return
        again = [row for row, sample in enumerate(ids) if sample in self._hashes]
        fresh = [row for row, sample in enumerate(ids) if sample not in self._hashes]
        fresh = [] if again else fresh[:_REMEMBERED - len(self._hashes)]
        rows = again or fresh
        if not rows:
            return
        try:
            hashes = Call(args, kwargs, len(ids)).rows(rows).hashes()
        except UnusualCall:
            return
        if not again:
            self._hashes.update({ids[row]: value for row, value in zip(rows, hashes)})
            return
        same = sum(self._hashes.pop(ids[row], None) == value for row, value in zip(rows, hashes))
        self._same += same
        self._other += len(rows) - same
        if self._same + self._other >= _ENOUGH:
            self.known = self._same >= self._other
            self._hashes.clear()
