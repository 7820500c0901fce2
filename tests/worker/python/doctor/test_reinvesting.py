"""More steps for the time that freezing saves."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import egeria
from egeria.doctor.reinvesting import step_shares
from egeria.doctor.report import Report, Saving


def report(ratios: dict[int, float], modules: int = 4) -> Report:
    savings = tuple(Saving(prefix, 0.0, ratio, ratio, ratio) for prefix, ratio in ratios.items())
    return Report("Net", 1, tuple([None] * modules), savings, None, ())


REPORT = report({1: 0.8, 2: 0.6, 3: 0.4})


def test_a_clock_buys_the_steps_that_take_the_time_that_it_saves() -> None:
    config = egeria.Config(
        policy="schedule",
        options={"entries": [{"fraction": 0.5, "frozen_prefix": 1}, {"fraction": 0.75, "frozen_prefix": 3}]},
    )
    assert egeria.reinvest(1000, config, REPORT) == 1250  # a fifth is saved
    staged = egeria.Config(policy="staged")  # 3/5, 4/5 and all of three modules' 0.6, at 80, 85 and 90 %
    assert egeria.reinvest(1000, staged, REPORT) == int(1000 / (1 - 0.11))
    auto = egeria.Config(policy="auto")  # all modules but the last at 82 %, or where 1 % of the area is left
    assert egeria.reinvest(1000, auto, REPORT, learning_rates=[1, 1, 0, 0]) == int(1000 / (1 - 0.18 * 0.6))
    assert egeria.reinvest(1000, auto, REPORT, learning_rates=[1, 0]) == int(1000 / (1 - 0.01**0.5 * 0.6))
    assert egeria.reinvest(1000, auto, REPORT, learning_rates=[1, 1]) == 1000  # nothing freezes
    tables = dataclasses.replace(REPORT, embedding_prefix=1)  # gone from 40 % on, for .4 * .05 of the .36 to come
    rates = [1 - point / 100 for point in range(101)]
    # With 2.5 % of the steps to come, the second check after only the rest, .28 % of the area, is left: it waits for
    # readings first. That is too late in 1,000 steps, since a freeze that nobody has measured needs 30 to pay in.
    late = 0.975
    assert egeria.reinvest(1000, auto, tables, learning_rates=rates) == int(1000 / (1 - 0.6 * 0.2))
    assert egeria.reinvest(4000, auto, tables, learning_rates=rates) == pytest.approx(
        4000 / (1 - (0.6 * 0.2 + (1 - late) * 0.4)), abs=12
    )
    budgeted = dataclasses.replace(staged, budget=0.05)
    assert 1000 < egeria.reinvest(1000, budgeted, REPORT) < egeria.reinvest(1000, staged, REPORT)
    assert egeria.reinvest(1000, egeria.Config(policy="none"), REPORT) == 1000


def test_what_others_save_has_to_be_said() -> None:
    with pytest.raises(egeria.EgeriaError, match="NO_PLAN.*give `learning_rates`, or `saving`"):
        egeria.reinvest(1000, egeria.Config(policy="auto"), REPORT)
    led = egeria.Config(policy="snr")
    with pytest.raises(egeria.EgeriaError, match="NO_PLAN.*decides by measurements.*saving"):
        egeria.reinvest(1000, led, REPORT, learning_rates=[1, 0])
    for policy in ("plasticity", "gradnorm"):
        with pytest.raises(egeria.EgeriaError, match="NO_PLAN.*decides by measurements.*saving"):
            egeria.reinvest(1000, egeria.Config(policy=policy), REPORT)
    assert egeria.reinvest(1000, egeria.Config(policy="auto"), saving=0.1) == 1111
    assert egeria.reinvest(1000, egeria.Config(policy="auto"), saving=0) == 1000
    with pytest.raises(egeria.EgeriaError, match="NO_PLAN.*doctor"):
        egeria.reinvest(1000, egeria.Config(policy="staged"))
    with pytest.raises(egeria.EgeriaError, match="BAD_SAVING"):
        egeria.reinvest(1000, egeria.Config(policy="auto"), saving=1.0)
    with pytest.raises(egeria.EgeriaError, match="BAD_TOTAL_STEPS"):
        egeria.reinvest(0, egeria.Config(policy="staged"), REPORT)


def test_shares_of_modules_follow_from_the_times_of_prefixes() -> None:
    assert step_shares(REPORT.savings, 4) == [pytest.approx(0.2)] * 3 + [0.0]
    between = step_shares(report({2: 0.9, 4: 0.95, 6: 0.7}).savings, 7)
    # Noise made prefix 4 slower than prefix 2: nothing is gained there.
    assert between == pytest.approx([0.05, 0.05, 0, 0, 0.1, 0.1, 0])


def test_from_a_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(_: Any, parameters: Sequence[nn.Parameter]) -> float:
        """As many as there are parameters to train."""
        return float(sum(parameter.requires_grad for parameter in parameters))

    monkeypatch.setattr("egeria.doctor.step_costs.step_seconds", seconds)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)), nn.Linear(8, 2))
    found = egeria.doctor(model, torch.randn(4, 8), modules=[[str(i)] for i in range(5)], rounds=1)
    steps = egeria.reinvest(100, egeria.Config(policy="finetune", options={"frozen_prefix": 3}), found)
    assert steps == pytest.approx(100 / 0.4, abs=1)


@pytest.mark.parametrize(("text", "value"), [("20%", 0.2), ("0.35", 0.35)])
def test_a_budget_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, value: float) -> None:
    monkeypatch.setenv("EGERIA_BUDGET", text)
    assert egeria.Config.from_env().budget == pytest.approx(value)


@pytest.mark.parametrize("text", ["0", "100%", "1.5", "much", "-3%"])
def test_a_budget_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("EGERIA_BUDGET", text)
    with pytest.raises(egeria.EgeriaError, match="BAD_CONFIG.*(budget|BUDGET)"):
        egeria.Config.from_env()
