"""This file finds out whether samples come to the model as they came before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from egeria.cache.model_call import Call, UnusualCall
from egeria.cache.padding import Padding

_REMEMBERED = 256  # samples of the first round
_REMEMBERED_LATER = 64  # samples of each later round
# Texts are looked at as if they were padded to this length; what comes behind it makes no difference.
_LENGTH = 512
# The answer is known when this many of the remembered samples have come again.
_ENOUGH = 16
# This share of them has to come as it was: where less of a batch is kept, all of it is computed.
_MIN_SHARE = 0.25


class Repeats:
    """Compares some samples of the first epoch with what they are when they come again.

    It is told all batches of a training from its beginning, so that it is known, when layers freeze in a later epoch,
    whether anything can be gained by keeping what they compute: nothing is under random augmentation. A store says so,
    too, by what it has of samples that come again. Once they come otherwise, fewer samples are looked at, and not all
    the time, since augmentation may end before the training does. It costs nothing for batches without a remembered
    sample, and once samples come again. Owned by the training thread.

    Attributes:
      known: True: enough come again as they were, which is not asked any more; False: at last they did not; None: too
        few have come again.
    """

    def __init__(self) -> None:
        self.known: bool | None = None
        self._hashes: dict[int, int] = {}
        self._is_full = False  # nothing is added until it is known what comes of these
        self._same = 0
        self._other = 0
        self._batches = 0  # so many came in this round
        self._rest = 0  # so many come before the next round begins

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any], ids: Sequence[int] | None) -> None:
        """A training forward pass is about to begin."""
        if self.known or ids is None:
            return
        if self._rest > 0:
            self._rest -= 1
            return
        self._batches += 1
        again = [row for row, sample in enumerate(ids) if sample in self._hashes]
        most = _REMEMBERED if self.known is None else _REMEMBERED_LATER
        room = 0 if self._is_full else most - len(self._hashes)
        rows = again or list(range(min(room, len(ids))))
        if not rows:
            return
        try:
            hashes = _hashes(Call(args, kwargs, len(ids)), rows)
        except UnusualCall:
            return
        if not again:
            self._hashes.update({ids[row]: value for row, value in zip(rows, hashes)})
            self._is_full = len(self._hashes) >= most
            return
        same = sum(self._hashes.pop(ids[row], None) == value for row, value in zip(rows, hashes))
        self._count(same, len(rows) - same)

    def found(self, reasons: Sequence[str]) -> None:
        """A store was asked for samples, and says of each why it is a miss, "" for a hit. It has what was kept
        of a sample when that came before."""
        if not self.known:
            self._count(sum(reason == "" for reason in reasons), sum(reason == "other_input" for reason in reasons))

    def _count(self, same: int, other: int) -> None:
        """So many samples have come again as they were, and so many otherwise."""
        self._same += same
        self._other += other
        if self._same + self._other >= _ENOUGH:
            self.known = self._same >= _MIN_SHARE * (self._same + self._other)
            self._hashes.clear()
            self._is_full = False
            self._same = self._other = 0
            self._rest, self._batches = self._batches, 0


def _hashes(call: Call, rows: list[int]) -> list[int]:
    """Returns hashes of these samples alone: without what belongs to no sample, which may differ in each step, and
    without their padding, since a text is the same in batches of other lengths."""
    call = call.ignoring(call.of_no_sample())
    if call.source is not None or (padding := Padding.of(call)) is None:
        return call.rows(rows).hashes()
    return padding.padded_to(call.rows(rows), _LENGTH).hashes()
