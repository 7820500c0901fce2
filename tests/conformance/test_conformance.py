"""The native trainer's session and the Python package keep the same promises to a training.

The test prints one line for each promise and front end. A new promise is a function in PROMISES; a training that it
needs is a scenario in scenarios.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from fake_controller import FakeController
from scenarios import BEGUN, PLANS, SAMPLED_MODULE, SAMPLES, SCENARIOS, STEPS

HERE = pathlib.Path(__file__).resolve().parent
TORCHRUN = pathlib.Path(sys.executable).parent / "torchrun"
FRONT_ENDS = ("native", "python")

# A front end has a list of the ranks' records for each scenario.
Records = dict[str, list[dict[str, Any]]]


def train_native(folder: pathlib.Path) -> None:
    order = {
        "steps": STEPS,
        "sampled_module": SAMPLED_MODULE,
        "samples": SAMPLES,
        "scenarios": [dataclasses.asdict(scenario) for scenario in SCENARIOS],
    }
    program = pathlib.Path(os.environ["EGERIA_BIN"]).parent / "tests" / "conformance_rank"
    run([program, folder, json.dumps(order)])


def train_python(folder: pathlib.Path) -> None:
    directive = {
        "sampling": {"module": SAMPLED_MODULE, "intervalSteps": 1, "batchSize": SAMPLES, "version": 1},
        "gradients": {"intervalSteps": 1, "version": 1},
        "mode": "MODE_OBSERVE",
    }
    with FakeController(folder, **directive) as controller:
        torchrun = [TORCHRUN, "--nproc-per-node", "2", "--local-addr", "127.0.0.1"]
        torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        run([*torchrun, HERE / "python_rank.py", folder, controller.address])


def run(command: list[object]) -> None:
    path = os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [str(part) for part in command],
        env=dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10000:]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Records]:
    """The records of each front end."""
    found: dict[str, Records] = {}
    for front_end, train in (("native", train_native), ("python", train_python)):
        folder = tmp_path_factory.mktemp(front_end)
        train(folder)
        ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
        found[front_end] = {scenario.name: [rank[scenario.name] for rank in ranks] for scenario in SCENARIOS}
    return found


# The promises. Each takes a front end's records, and the other's.


def a_switch_happens_on_all_ranks_at_the_same_step(records: Records, other: Records) -> None:
    prefixes = [0] + [prefix for _, prefix in PLANS]
    expected = [[step, now, now < before, True] for (step, now), before in zip(PLANS, prefixes)]
    for rank in records["switches"]:
        assert rank["switches"] == expected
        assert rank["prefix"] == [frozen_after(step) for step in range(1, STEPS + 1)]
    assert records["switches"][0]["parameters"] == records["switches"][1]["parameters"]


def frozen_after(step: int) -> int:
    return next((prefix for at, prefix in reversed(PLANS) if at <= step), 0)


def a_switch_that_fails_on_one_rank_happens_on_none(records: Records, other: Records) -> None:
    for failing, plain in zip(records["failing"], records["plain"]):
        assert failing["undone"] == 1 and plain["undone"] == 0
        assert failing["switches"] == [] and failing["prefix"] == [0] * STEPS
        assert failing["loss"] == plain["loss"] and failing["parameters"] == plain["parameters"]


def frozen_modules_are_constant_to_the_bit(records: Records, other: Records) -> None:
    for rank in records["switches"]:
        for step in range(1, STEPS):
            frozen = min(rank["prefix"][step - 1], rank["prefix"][step])
            for kind in ("parameters", "buffers"):
                before, now = rank[kind][step - 1], rank[kind][step]
                assert now[:frozen] == before[:frozen]
            before, now = rank["parameters"][step - 1], rank["parameters"][step]
            active = rank["prefix"][step - 1]  # the step itself was made with this prefix
            assert all(a != b for a, b in zip(before[active:], now[active:]))
    frozen = [[rank["buffers"][step][: rank["prefix"][step]] for step in range(STEPS)] for rank in records["switches"]]
    assert frozen[0] == frozen[1]


def what_is_frozen_before_the_first_step_never_thaws(records: Records, other: Records) -> None:
    for rank in records["begun"]:
        assert rank["prefix"] == [max(BEGUN, frozen_after(step)) for step in range(1, STEPS + 1)]
        for kind in ("parameters", "buffers"):
            assert all(now[:BEGUN] == rank[kind][0][:BEGUN] for now in rank[kind])
        assert rank["parameters"][0][BEGUN:] != rank["parameters"][-1][BEGUN:]


def a_resumed_training_equals_the_uninterrupted_one(records: Records, other: Records) -> None:
    for resumed, whole in zip(records["resumed"], records["switches"]):
        for what in ("loss", "prefix", "parameters", "switches"):
            assert resumed[what] == whole[what], what
    assert records["resumed"][0]["buffers"] == records["switches"][0]["buffers"]


def an_observed_training_equals_the_plain_one(records: Records, other: Records) -> None:
    for observed, plain in zip(records["read"], records["plain"]):
        for what in ("loss", "prefix", "parameters", "buffers"):
            assert observed[what] == plain[what], what
    assert any(rank["gram"] for rank in records["read"]) and records["read"][0]["gradients"]


def readings_are_those_of_the_other_front_end(records: Records, other: Records) -> None:
    # The Python package's link starts after some steps.
    for grams, others in ([side["read"][rank]["gram"] for side in (records, other)] for rank in range(2)):
        shared = grams.keys() & others.keys()
        assert len(shared) >= STEPS // 3
        for step in shared:
            assert grams[step] == pytest.approx(others[step], rel=1e-5)
    ours, theirs = (side["read"][0]["gradients"] for side in (records, other))
    shared = ours.keys() & theirs.keys()
    assert len(shared) >= STEPS // 3
    for step in shared:
        one, two = ours[step], theirs[step]
        assert (one["parts"], one["samples"]) == (two["parts"], two["samples"])
        for what in ("mean_of_squares", "square_of_mean"):
            assert one[what] == pytest.approx(two[what], rel=1e-4), what
        # The native trainer leaves its one rate out: only shares of the whole are asked for.
        shares = [[value / sum(reading["progress"]) for value in reading["progress"]] for reading in (one, two)]
        assert shares[0] == pytest.approx(shares[1], rel=1e-2, abs=1e-3)


def a_training_is_that_of_the_other_front_end(records: Records, other: Records) -> None:
    for name in ("plain", "switches", "begun"):
        for one, two in zip(records[name], other[name]):
            for what in ("loss", "prefix", "parameters", *(["switches"] if name != "begun" else [])):
                assert one[what] == two[what], what


PROMISES: tuple[Callable[[Records, Records], None], ...] = (
    a_switch_happens_on_all_ranks_at_the_same_step,
    a_switch_that_fails_on_one_rank_happens_on_none,
    frozen_modules_are_constant_to_the_bit,
    what_is_frozen_before_the_first_step_never_thaws,
    a_resumed_training_equals_the_uninterrupted_one,
    an_observed_training_equals_the_plain_one,
    readings_are_those_of_the_other_front_end,
    a_training_is_that_of_the_other_front_end,
)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_promise(promise: Callable[[Records, Records], None], front_end: str, trained: dict[str, Records]) -> None:
    (other,) = (trained[name] for name in FRONT_ENDS if name != front_end)
    promise(trained[front_end], other)
    print(f"\n{front_end:7} {promise.__name__.replace('_', ' ')}: holds", end="")
