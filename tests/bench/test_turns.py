"""egeria bench: runs that are trained at the same time take turns."""

from __future__ import annotations

import json
import pathlib
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench.harness.errors import BenchError
from bench.harness.turns import TurnGiver, Turns, in_rotation
from benchmarks.interleaved import main


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


def test_each_round_begins_one_place_later():
    assert [in_rotation("abc", number) for number in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def interleaved(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Runs interleaved.py in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["interleaved.py", "digits", *arguments])
    return main()


@pytest.mark.usefixtures("preloaded_ranks")
def test_trainings_that_take_turns_are_those_that_do_not(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "runs.jsonl"
    # Not "smoke": the last twelve of its sixty steps are over before the freeze decided there is announced, if the
    # machine is busy.
    options = ("--profile", "small", "--policy", "staged", "--reinvest", "1,1.1", "--null", "--steps", "20")
    assert interleaved(monkeypatch, *options, "--json", str(file)) == 0
    plain, again, staged, longer = [json.loads(line) for line in file.read_text().splitlines()]
    assert plain["final"] == again["final"]
    assert staged["switches"] and staged["steps"] == plain["steps"] < longer["steps"]
    said = capsys.readouterr().out
    assert "staged+10%: " in said and "plain again: " in said


@pytest.mark.usefixtures("preloaded_ranks")
def test_a_run_that_fails_ends_the_others(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert interleaved(monkeypatch, "--profile", "smoke", "--policy", "nonsense") == 1
    said = capsys.readouterr().err
    assert "[RUN_FAILED]" in said and "nonsense" in said
