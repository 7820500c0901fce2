"""Ranks that were told different things: they agree on rank 0's settings, or all of them train plainly."""

from __future__ import annotations

import json
import pathlib
import time

import pytest
from session_runs import run

STEPS = ("--steps", 12)
ACT = ("--egeria", "act", *STEPS)
PLANS = ("--egeria", "plans", "--plans", "4:1,8:2", *STEPS)


def plain_weights(folder: pathlib.Path) -> list[dict[str, str]]:
    return [record["weights"] for record in run(folder / "plain", *STEPS)[0]]


@pytest.mark.parametrize("egeria", [ACT, PLANS])
@pytest.mark.parametrize("wrap", ["ddp", "later"])
def test_a_rank_that_is_switched_off_is_named_and_all_train_plainly(
    egeria: tuple[object, ...], wrap: str, tmp_path: pathlib.Path
):
    records, output = run(tmp_path, *egeria, "--wrap", wrap, "--other", "EGERIA_ENABLED=0")
    assert "[SETTINGS_DIFFER] controller: rank 1 (" in output and "nothing (enabled is off), and rank 0 has" in output
    assert records[0]["prefixes"] == [0] * 12
    assert [record["weights"] for record in records] == plain_weights(tmp_path)


def test_a_rank_without_a_controller_is_named_and_all_train_plainly(tmp_path: pathlib.Path):
    records, output = run(tmp_path, *ACT, "--other", "EGERIA_CONTROLLER=none")
    assert "has no controller, and rank 0 has a controller" in output
    assert [record["weights"] for record in records] == plain_weights(tmp_path)


def test_a_rank_without_egeria_is_missed_after_a_while_and_all_train_plainly(tmp_path: pathlib.Path):
    begin = time.monotonic()
    records, output = run(tmp_path, *PLANS, "--absent")
    assert "nothing freezes in this training" in output and "[RANK_MISSING] rank 1 has not come" in output
    assert time.monotonic() - begin < 100
    assert records[0]["prefixes"] == [0] * 12
    assert [record["weights"] for record in records] == plain_weights(tmp_path)


def test_other_layer_modules_or_plans_of_a_rank_are_named_and_all_train_plainly(tmp_path: pathlib.Path):
    records, output = run(tmp_path, *PLANS, "--other-modules", "stem", "blocks", "head")
    assert "modules: rank 1 (" in output and "3 layer modules (" in output
    assert [record["prefixes"] for record in records] == [[0] * 12] * 2
    records, output = run(tmp_path / "plans", *PLANS, "--other-config", json.dumps({"plans": [[4, 2]]}))
    assert "has plans 4:2, and rank 0 has plans 4:1, 8:2" in output
    assert [record["prefixes"] for record in records] == [[0] * 12] * 2


def test_rank_0_is_followed_in_everything_else(tmp_path: pathlib.Path):
    other = {
        "policy": "none",
        "options": {},
        "observe": True,
        "total_steps": 99,
        "budget": 0.3,
        "reference": "local",
        "batch_size": 4,
        "on_divergence": "resync",
    }
    records, output = run(
        tmp_path,
        "--egeria",
        "act",
        "--steps",
        80,
        "--pace",
        0.05,
        "--until",
        "switch",
        "--other-config",
        json.dumps(other),
    )
    assert records[0]["switches"] and records[0]["switches"] == records[1]["switches"]
    for name in other:
        assert output.count(f"[SETTINGS_DIFFER] {name}: rank 1 (") == 2  # rank 0 tells, and rank 1
    assert not records[1]["summary"]["observe"]


def test_a_variable_that_nothing_reads_is_named(tmp_path: pathlib.Path):
    _, output = run(tmp_path, *PLANS, "--other", "EGERIA_ENABLE=0")
    assert output.count("[UNKNOWN_VARIABLE] EGERIA_ENABLE is set, but nothing reads it") == 1
    assert "EGERIA_ENABLED" in output


def test_a_rank_that_is_switched_off_when_a_frozen_state_is_resumed(tmp_path: pathlib.Path):
    run(tmp_path / "first", *PLANS, "--save-at", 10)
    load = ("--load", tmp_path / "first" / "checkpoint", "--steps", 20, "--egeria", "plans", "--plans", "4:1,8:2")
    records, output = run(tmp_path / "resumed", *load, "--other", "EGERIA_ENABLED=0")
    assert "nothing freezes in this training" in output
    assert records[0]["prefixes"] == [0] * 10
    assert records[0]["weights"].keys() == records[1]["weights"].keys()
