"""Tests of egeria.cache.settling: when a network that was changed is looked at, and when it is skipped again."""

from __future__ import annotations

from egeria.cache.settling import Settling


class Changed:
    """A network that was changed, and the passes of it that were skipped."""

    def __init__(self) -> None:
        self.skipped = 0
        self.settling = Settling(lambda: self.skipped)

    def turns_until_return(self, seen: bytes, most: int = 1 << 12) -> int:
        """Returns after how many turns it is skipped again, if it is `seen` at each look; 0: in none of so many."""
        self.settling.await_change()
        for turn in range(1, most + 1):
            if self.settling.looks_now() and self.settling.returns(seen, b"kept"):
                return turn
        return 0


def test_that_looks_come_more_and_more_rarely():
    settling = Settling(lambda: 0)
    assert [turn for turn in range(1, 40) if settling.looks_now()] == [1, 2, 4, 8, 16, 32]


def test_that_what_is_back_is_skipped_at_once():
    assert Changed().turns_until_return(b"kept") == 1


def test_that_what_stays_something_else_is_believed_more_and_more_slowly():
    changed = Changed()
    turns = []
    for number in range(3):
        changed.skipped += 1
        turns.append(changed.turns_until_return(b"other %d" % number))
    assert turns == [4, 16, 64]
    changed.settling.begin_anew()
    assert changed.turns_until_return(b"yet another") == 4


def test_that_what_changes_at_each_look_is_not_skipped():
    settling = Settling(lambda: 0)
    assert not any(settling.looks_now() and settling.returns(b"%d" % turn, b"kept") for turn in range(1 << 10))


def test_that_returns_in_vain_wait_longer_and_longer():
    changed = Changed()
    assert [changed.turns_until_return(b"kept") for _ in range(5)] == [1, 1, 2, 4, 8]
    changed.skipped += 1  # the newest return was not in vain
    assert changed.turns_until_return(b"kept") == 1
