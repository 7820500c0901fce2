"""A shallower prefix is asked for as long as it may have all samples of a batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from egeria.cache.shallower_prefix import ShallowerPrefix


class Kept:
    """Stands for a kept prefix that answers always the same."""

    def __init__(self, reasons: list[str]):
        self.store = SimpleNamespace(ragged=False)
        self.proofs = SimpleNamespace(known=lambda call, resting: SimpleNamespace(cut=SimpleNamespace(forms=None)))
        self.reasons = reasons
        self.asked = 0
        self.expected: list[Any] = []

    def through(self, store: Any) -> Kept:
        return self

    def samples(self, *_: Any) -> None:
        return None

    def fetch(self, *_: Any) -> tuple[Any, ...]:
        self.asked += 1
        return (), self.reasons, True

    def expect(self, upcoming: Any) -> None:
        self.expected = list(upcoming)


@pytest.mark.parametrize(("reasons", "asked"), [(["", "absent"], 8), (["", "late"], 20)])
def test_one_that_lacks_samples_is_given_up_and_one_that_is_late_is_not(reasons: list[str], asked: int):
    kept = Kept(reasons)
    prefix = ShallowerPrefix(kept, SimpleNamespace(use=lambda *_: None), b"name", "exact", 0.1)
    call = SimpleNamespace(source=None)
    for _ in range(20):
        assert not prefix.begin_behind(None, None, call, [1, 2], None, 1.0, lambda: True)
    prefix.expect([[1, 2]])
    assert kept.asked == asked and kept.expected == ([] if asked == 8 else [[1, 2]])
