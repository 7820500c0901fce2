"""egeria.time_ledger: the seconds that freezing has saved, and those that Egeria has spent."""

from __future__ import annotations

import ast
import pathlib

import pytest

import egeria
from egeria.time_ledger import TimeLedger


class Training:
    """With a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ledger = TimeLedger(lambda: self.now)

    def steps(self, count: int, seconds: float, prefix: int = 0, own: float = 0.0) -> None:
        for _ in range(count):
            self.now += seconds
            with self.ledger.spend("probes"):
                self.now += own
            self.ledger.end_step(prefix, prefix / 4)


def test_what_frozen_steps_save_less_what_was_spent_is_the_difference_to_a_plain_training() -> None:
    training = Training()
    training.steps(1, 5.0)  # the first one is not known from its beginning
    training.steps(40, 1.0, own=0.02)
    training.steps(60, 0.6, prefix=2, own=0.01)
    ledger = training.ledger
    assert ledger.saved_seconds() == pytest.approx(60 * 0.4)
    assert ledger.spent_seconds() == {"probes": pytest.approx(40 * 0.02 + 60 * 0.01)}
    plain = 100 * 1.0
    assert ledger.net_share() == pytest.approx((plain - (training.now - 5.0)) / plain)
    assert ledger.frozen_share == pytest.approx(60 / 101 * 0.5)
    assert ledger.seconds_per_step() == {0: pytest.approx(1.0), 2: pytest.approx(0.6)}


def test_nothing_is_claimed_without_a_step_to_compare_with() -> None:
    training = Training()
    training.steps(20, 0.6, prefix=1)
    assert training.ledger.saved_seconds() is None and training.ledger.net_share() is None
    assert TimeLedger().saved_seconds() is None and TimeLedger().net_share() is None
    hasty = Training()
    hasty.steps(4, 2.0)  # the first ones, slow as they are
    hasty.steps(40, 0.6, prefix=1)
    assert hasty.ledger.saved_seconds() is None and hasty.ledger.net_share() is None


def test_while_nothing_has_frozen_the_net_is_what_was_spent() -> None:
    training = Training()
    training.steps(21, 1.0, own=0.03)
    assert training.ledger.saved_seconds() == 0
    assert training.ledger.net_share() == pytest.approx(-21 * 0.03 / 20)


def test_the_first_step_after_a_switch_counts_as_spent_beyond_the_usual() -> None:
    training = Training()
    training.steps(11, 1.0)
    training.ledger.disturb()
    training.steps(1, 4.5, prefix=1)
    training.steps(9, 0.5, prefix=1)
    assert training.ledger.saved_seconds() == pytest.approx(10 * 0.5)
    assert training.ledger.spent_seconds() == {"probes": 0.0, "recompiles": pytest.approx(4.0)}


def test_an_evaluation_before_the_first_step_after_a_switch_is_not_spent() -> None:
    training = Training()
    training.steps(11, 1.0)
    training.ledger.disturb()
    with training.ledger.spend("hooks"):
        training.now += 0.25
    training.now += 60.0
    training.ledger.begin_forward()
    training.now += 1.0
    training.ledger.begin_forward()  # the step's second micro-batch
    training.steps(1, 3.5, prefix=1, own=0.25)
    training.steps(9, 0.5, prefix=1)
    assert training.ledger.spent_seconds() == {
        "hooks": pytest.approx(0.25),
        "probes": pytest.approx(0.25),
        "recompiles": pytest.approx(4.0),
    }


def test_an_evaluation_between_two_steps_is_no_part_of_them() -> None:
    training = Training()
    training.steps(21, 1.0)
    for _ in range(4):
        training.steps(9, 0.5, prefix=1)
        training.steps(1, 60.0, prefix=1)
    assert training.ledger.saved_seconds() == pytest.approx(40 * 0.5)


def test_a_block_inside_another_is_told_apart() -> None:
    training = Training()
    training.steps(1, 1.0)
    with training.ledger.spend("hooks"):
        training.now += 1.0
        with training.ledger.spend("switches"):
            training.now += 0.5
            with training.ledger.spend("probes"):
                training.now += 0.125
        training.now += 2.0
    training.ledger.add_spent("cache", 0.25)
    spent = training.ledger.spent_seconds()
    assert spent == {"probes": 0.125, "hooks": 3.0, "switches": 0.5, "cache": 0.25}
    training.now += 1.25
    training.ledger.end_step(0, 0.0)
    assert training.ledger.seconds_per_step() == {0: pytest.approx(1.0)}


def test_many_steps_are_sampled_evenly() -> None:
    training = Training()
    for number in range(5_000):
        training.steps(1, 1.0 + number / 5_000)
    assert training.ledger.seconds_per_step()[0] == pytest.approx(1.5, abs=0.01)


def test_what_the_package_spends_on_is_known_and_what_policies_decide_by_is_told_apart() -> None:
    written = {
        literal(call)
        for file in pathlib.Path(egeria.__file__).resolve().parent.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("spend", "add_spent")
    }
    assert written == set(TimeLedger.CATEGORIES) - {"recompiles", "reference"}  # the ledger itself adds to these
    ledger = TimeLedger()
    for number, category in enumerate(sorted(TimeLedger.CATEGORIES)):
        ledger.add_spent(category, 2.0**number)
    spent = ledger.spent_seconds()
    assert ledger.measuring_seconds() == sum(spent[what] for what in ("gradients", "probes", "reference", "snapshots"))


def literal(call: ast.Call) -> str:
    assert isinstance(call.args[0], ast.Constant), ast.unparse(call)
    return str(call.args[0].value)
