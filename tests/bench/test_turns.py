"""egeria bench: runs that are trained at the same time take turns."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.harness.errors import BenchError
from bench.harness.turns import TurnGiver, Turns


def test_one_at_a_time_in_rotation_until_each_has_ended(tmp_path: pathlib.Path):
    order: list[str] = []
    training = threading.Semaphore()

    def run(name: str, turns: Turns, number: int) -> None:
        for _ in range(number):
            with turns.taken():
                assert training.acquire(blocking=False), "two at a time"
                order.append(name)
                training.release()
        turns._connection.close()  # as its process ends

    with TurnGiver(tmp_path, 2) as giver:
        runs = [
            threading.Thread(target=run, args=(name, Turns(giver.address), number))
            for name, number in (("a", 3), ("b", 6))
        ]
        for thread in runs:
            thread.start()
        for thread in runs:
            thread.join(60)
    assert sorted(order) == ["a"] * 3 + ["b"] * 6
    assert order[:6] in (["a", "b"] * 3, ["b", "a"] * 3)


def test_whoever_waits_when_all_is_over_is_told(tmp_path: pathlib.Path):
    with TurnGiver(tmp_path, 2) as giver:
        turns = Turns(giver.address)  # the other one never comes
    with pytest.raises(BenchError, match="NO_TURN"), turns.taken():
        pass


def test_trainings_that_take_turns_are_those_that_do_not(tmp_path: pathlib.Path):
    file = tmp_path / "runs.jsonl"
    done = subprocess.run(
        # Not "smoke": the last twelve of its sixty steps are over before the freeze decided there is announced, if the
        # machine is busy.
        [
            sys.executable,
            ROOT / "tests" / "benchmarks" / "interleaved.py",
            "digits",
            "--profile",
            "small",
            "--policy",
            "staged",
            "--reinvest",
            "1,1.1",
            "--null",
            "--steps",
            "20",
            "--json",
            file,
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    plain, again, staged, longer = [json.loads(line) for line in file.read_text().splitlines()]
    assert plain["final"] == again["final"]
    assert staged["switches"] and staged["steps"] == plain["steps"] < longer["steps"]
    assert "staged+10%: " in done.stdout and "plain again: " in done.stdout


def test_a_run_that_fails_ends_the_others(tmp_path: pathlib.Path):
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "tests" / "benchmarks" / "interleaved.py",
            "digits",
            "--profile",
            "smoke",
            "--policy",
            "nonsense",
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1 and "[RUN_FAILED]" in done.stderr and "nonsense" in done.stderr
