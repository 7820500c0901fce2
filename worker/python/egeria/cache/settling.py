"""This file decides when a network that somebody has changed is skipped again."""

from __future__ import annotations

from collections.abc import Callable

# A change that lasts so many turns is taken for what the network is now.
_SETTLED_AFTER = 4
# So many returns in a row come at once. Each further one waits twice as long.
_RETURNS_AT_ONCE = 2


class Settling:
    """Says when to look at a network that was changed, and whether to skip it again. A turn is a step of a training, or
    a call.

    Contents decide: where the network is what it was, it is skipped as before. Where it stays something else, that is a
    network, too. Looks take a while and come more and more rarely, and so does the second kind of return. So do returns
    after which no pass is skipped, since what changes in each pass would have each of them begin in vain.

    Not thread-safe.
    """

    def __init__(self, passes_skipped: Callable[[], int]):
        """
        Args:
          passes_skipped: returns how many passes have been skipped so far.
        """
        self._passes_skipped = passes_skipped
        self._turns = 0  # since the change
        self._seen = b""  # the fingerprint at the last look
        self._settled_after = _SETTLED_AFTER
        # Returns since a pass was skipped, and the passes that were skipped before the newest one.
        self._returns = 0
        self._skipped_before = 0

    def begin_anew(self) -> None:
        """Something else is skipped from now on."""
        self._settled_after = _SETTLED_AFTER
        self._returns = 0

    def await_change(self) -> None:
        """Nothing is changed now."""
        self._turns = 0
        self._seen = b""

    def looks_now(self) -> bool:
        """One more turn has come since the change. Returns whether to look at the network in it."""
        self._turns += 1
        if self._turns & (self._turns - 1):
            return False
        if self._passes_skipped() > self._skipped_before:
            self._returns = 0
        return self._turns >= 2 ** (self._returns + 1 - _RETURNS_AT_ONCE)

    def returns(self, seen: bytes, kept: bytes) -> bool:
        """Returns whether to skip the network again.

        Args:
          seen: its fingerprint at this look.
          kept: that of what the cache has.
        """
        before, self._seen = self._seen, seen
        if seen != kept:
            if seen != before or self._turns < self._settled_after:
                return False
            self._settled_after *= 4
        self._returns += 1
        self._skipped_before = self._passes_skipped()
        return True
