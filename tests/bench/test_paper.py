"""python -m bench.paper: similarities, the oracle, and the page, on the digits."""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from bench import tasks
from bench.harness.command_line import main as bench
from bench.paper.__main__ import main as paper
from bench.paper.duels import Duel, step_cost, stopped_at
from bench.paper.measurements import _moving, phases
from bench.paper.oracle import flat_since, schedule
from bench.paper.report import oracle_verdict
from bench.paper.similarity import cka, pwcca

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("similarity", [cka, pwcca])
def test_rotation_and_scale_change_no_similarity(similarity):
    a = RANDOM.normal(size=(200, 12))
    rotation, _ = np.linalg.qr(RANDOM.normal(size=(12, 12)))
    assert similarity(a, 3 * a @ rotation + 5) == pytest.approx(1)
    noisy = similarity(a, a + RANDOM.normal(size=a.shape))
    assert 0.3 < noisy < 0.95
    assert similarity(a, a + 3 * RANDOM.normal(size=a.shape)) < noisy


def test_cka_of_what_has_nothing_in_common_is_0_with_more_features_than_samples():
    values = [cka(RANDOM.normal(size=(30, 300)), RANDOM.normal(size=(30, 300))) for _ in range(20)]
    assert abs(np.mean(values)) < 0.03


def test_pwcca_weighs_directions_by_what_they_explain():
    strong, weak, other = RANDOM.normal(size=(3, 500, 1))
    a = np.hstack([10 * strong, weak])
    assert pwcca(a, np.hstack([strong, other])) > 0.85 > 0.3 > pwcca(a, np.hstack([weak, other]))


def test_similarity_to_a_constant_is_0_and_no_error():
    a = RANDOM.normal(size=(50, 4))
    assert cka(a, np.zeros_like(a)) == pwcca(a, np.zeros_like(a)) == 0


def test_a_curve_is_flat_from_where_it_stays_near_its_end():
    steps, values = [10, 20, 30, 40, 50], [0.5, 0.89, 0.7, 0.91, 0.9]
    assert flat_since(steps, values, 0, 50, 0.02) == 40
    assert flat_since(steps, values, 0, 50, 0.5) == 10
    assert flat_since(steps, values, 0, 20, 0.02) == 20  # later values do not count
    assert flat_since(steps, values, 20, 50, 0.5) == 30  # earlier values do not count either


def test_the_oracle_freezes_prefixes_and_thaws_at_the_drop():
    measured = {
        "steps": [10, 20, 30, 40, 50, 60, 70, 80],
        # The second module is flat before the first, the third never; the last is the head.
        "cka": [
            [0.1, 0.8, 0.1, 1.0],
            [0.8, 0.8, 0.2, 1.0],
            [0.8, 0.8, 0.3, 1.0],
            [0.8, 0.8, 0.4, 1.0],
            [0.9, 0.9, 0.7, 1.0],
            [1.0, 1.0, 0.8, 1.0],
            [1.0, 1.0, 0.9, 1.0],
            [1.0, 1.0, 1.0, 1.0],
        ],
    }
    entries = schedule(measured, [(0, 40), (40, 80)], 0.02)
    assert [(entry["fraction"], entry["frozen_prefix"]) for entry in entries] == [(0.25, 2), (0.5, 0), (0.75, 2)]


def test_phases_are_between_drops():
    assert phases(tasks.create("resnet20-long", "smoke", None)) == [(0, 48), (48, 72), (72, 96)]


def test_the_moving_reference_is_renewed_after_each_window():
    assert _moving(8, 3) == [0, 0, 0, 0, 3, 3, 3, 6]


def test_stopping_is_read_from_the_curve():
    curve = [(0.25, -4.0), (0.5, -2.0), (1.0, 0.0)]
    assert [stopped_at(curve, at) for at in (0.1, 0.375, 0.5, 0.75, 1.0, 1.2)] == [-4, -3, -2, -1, 0, 0]


def test_a_run_costs_what_its_steps_do_with_what_is_frozen():
    step = [{"forward": 3, "backward": 6, "update": 1}, {"forward": 2, "backward": 2, "update": 1}]
    switches = [{"step": 60, "frozen_prefix": 1}, {"step": 80, "frozen_prefix": 0}]
    assert step_cost({"steps": 100, "switches": switches}, step) == 60 + 20 / 2 + 20
    assert step_cost({"steps": 100, "switches": []}, step) == 100


@pytest.mark.parametrize(
    "over_stop, over_short, says",
    [
        (-1.1, -0.5, "fails at this scale (1 seed): even an oracle loses to stopping the plain run and to a shorter"),
        (-1.1, -0.1, "even an oracle loses to stopping the plain run, and is no better than a shorter schedule.**"),
        (-0.1, 0.1, "is not shown at this scale (1 seed)"),
        (0.5, 0.5, "does not fail at this scale (1 seed)"),
    ],
)
def test_an_oracle_loses_only_where_it_is_worse_by_more_than_the_noise(over_stop, over_short, says):
    oracle = Duel("oracle", 1, 0.6, None, -0.8, over_stop, over_short, 0.6)
    assert says in oracle_verdict([oracle], 0.3, "points")


@pytest.mark.usefixtures("preloaded_ranks")
def test_the_page_comes_from_trainings_of_the_harness(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "paper"
    common = ["--profile", "smoke", "--out", str(out)]
    trained = ["digits", *common, "--no-early", "--controls", "none", "--keep-checkpoints", "--resume"]
    own = ["--task", "digits", *common]
    assert paper(["report", *own]) == 2
    assert "[NO_MEASUREMENTS]" in capsys.readouterr().err
    assert paper(["measure", *own]) == 2
    assert "[NO_CHECKPOINTS]" in capsys.readouterr().err

    assert bench([*trained, "--checkpoints", "12"]) == 0
    assert paper(["measure", *own]) == 0
    measured = json.loads((out / "digits-smoke-0.json").read_text())
    assert measured["steps"] == list(range(5, 61, 5))
    assert measured["cka"][-1] == pytest.approx([1] * 4)
    assert measured["cka"][0][2] < 0.99
    assert len(measured["replays"]) == 9
    assert [row["frozen_prefix"] for row in measured["step"]] == [0, 1, 2, 3]
    assert measured["step"][3]["backward"] < measured["step"][0]["backward"]

    capsys.readouterr()
    assert paper(["oracle", *own]) == 0
    variant = capsys.readouterr().out.strip()
    assert variant.startswith("oracle=schedule:")
    assert bench([*trained, "--variant", variant, "--short", "0.8"]) == 0
    assert paper(["report", *own]) == 0
    page = (tmp_path / "paper.md").read_text()
    assert page.splitlines()[2].startswith("**The premise")
    assert "| `oracle` | 0 |" in page
    for picture in ("convergence", "plasticity", "matched-time", "step-shares", "timeline"):
        assert (out / f"{picture}.svg").exists()
        assert f"(paper/{picture}.svg)" in page
