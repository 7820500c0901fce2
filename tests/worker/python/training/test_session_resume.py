"""Sessions on two ranks that take up where others have ended."""

from __future__ import annotations

import pathlib

import pytest
from session_runs import run


@pytest.mark.parametrize("options", ["", "--bf16 --accumulate 2 --optimizer adamw --wrap ddp_compile", "--wrap later"])
def test_a_training_resumed_in_a_frozen_phase_equals_the_uninterrupted_one(options: str, tmp_path: pathlib.Path):
    plans = ["--egeria", "plans", "--plans", "4:1,10:3,20:2,26:0", *options.split()]
    whole, _ = run(tmp_path, *plans, "--steps", 30, "--save-at", 13)
    again, _ = run(tmp_path / "again", *plans, "--steps", 30, "--load", tmp_path / "checkpoint")
    for one, other in zip(whole, again):
        assert one["losses"][13:] == other["losses"] and one["prefixes"][13:] == other["prefixes"]
        assert one["weights"] == other["weights"] and one["switches"] == other["switches"]
    assert whole[0]["prefixes"][12] == 3


def test_ranks_that_resume_from_other_states_train_on_unwatched(tmp_path: pathlib.Path):
    run(tmp_path, "--egeria", "plans", "--plans", "4:0", "--steps", 8, "--save-at", 8)
    resumed = ["--steps", 60, "--load", tmp_path / "checkpoint"]
    records, output = run(tmp_path / "act", *resumed, "--egeria", "act", "--other-plan", 5)
    assert (
        output.count(
            "the ranks do not begin alike: at step 10 with plan 0 and 0 frozen layer modules, step 10 with "
            "plan 5 and 0 frozen layer modules"
        )
        == 3
    ), "each rank says it once, and the last line"
    plain, _ = run(tmp_path / "plain", *resumed)
    assert [record["weights"] for record in records] == [record["weights"] for record in plain]


def test_the_state_goes_between_trainings_with_and_without_egeria(tmp_path: pathlib.Path):
    run(tmp_path, "--egeria", "plans", "--plans", "4:2", "--steps", 8, "--save-at", 8)
    without, _ = run(tmp_path / "without", "--steps", 12, "--load", tmp_path / "checkpoint", "--save-at", 10)
    assert len(without[0]["losses"]) == 4
    back, _ = run(
        tmp_path / "back",
        "--egeria",
        "plans",
        "--plans",
        "12:1",
        "--steps",
        14,
        "--load",
        tmp_path / "without" / "checkpoint",
    )
    assert back[0]["prefixes"][-1] == 1
