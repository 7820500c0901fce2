"""egeria trial: what it makes of losses, and of trainings that it starts."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
import sys

import pytest

from egeria import EgeriaError
from egeria.training.trial import VARIABLE, Trial
from egeria.trial.command import describe, main
from egeria.trial.comparison import Reported, compare

SUPPORT = pathlib.Path(__file__).parents[1] / "support"
JOB = str(SUPPORT / "trial_job.py")
TWO_RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
STEPS = 60


def losses(level: float = 1.0, noise: float = 0.0, steps: int = STEPS, seed: int = 0) -> dict[int, float]:
    chance = random.Random(seed)
    return {step: level * (1 + 1 / step) + chance.gauss(0, noise) for step in range(1, steps + 1)}


PLAIN = Reported(losses(), 4, [])


def frozen(level: float = 1.0, noise: float = 0.0, at: int = 8) -> Reported:
    return Reported(losses(level, noise), 4, [(at, 2), (at + 10, 3)])


# These compare losses.


def test_the_later_half_of_the_steps_is_compared():
    found = compare(PLAIN, frozen(1.2))
    assert (found.first, found.last, found.since, found.prefix, found.modules) == (31, 60, 8, 3, 4)
    assert found.over == pytest.approx(0.2) and found.least == pytest.approx(0.2, abs=0.001) and found.falls_behind
    text = describe(found)
    assert "Steps 31 to 60" in text and "3 of 4 layer modules" in text and "from step 8 on" in text
    assert "20.0 % above" in text and "falls behind" in text


@pytest.mark.parametrize("level", [0.8, 1.0, 1.04])
def test_what_is_below_or_little_above_keeps_up(level: float):
    found = compare(PLAIN, frozen(level))
    assert found.over == pytest.approx(level - 1) and not found.falls_behind
    assert "keeps up" in describe(found)


def test_a_difference_within_the_noise_is_none():
    found = compare(PLAIN, frozen(1.08, noise=1.0))
    assert found.least < 0 < found.most and not found.falls_behind


def test_a_late_freeze_is_compared_behind_it():
    assert compare(PLAIN, frozen(at=48)).first == 49


@pytest.mark.parametrize(
    ("plain", "other", "name"),
    [
        (PLAIN, dataclasses.replace(PLAIN, losses={}, switches=[(8, 1)]), "NO_LOSSES"),
        (dataclasses.replace(PLAIN, losses={}), frozen(), "NO_LOSSES"),
        (PLAIN, PLAIN, "NOTHING_FROZE"),
        (PLAIN, frozen(at=57), "TOO_FEW_STEPS"),
        (PLAIN, frozen(float("nan")), "BAD_LOSSES"),
        (Reported(losses(-1.0), 4, []), frozen(-1.0), "BAD_LOSSES"),
    ],
)
def test_where_nothing_can_be_said_the_reason_is(plain: Reported, other: Reported, name: str):
    with pytest.raises(EgeriaError) as error:
        compare(plain, other)
    assert error.value.name == name


# These start trainings.


@pytest.mark.parametrize("report", ["before", "after"])
@pytest.mark.parametrize(("front", "code"), [("empty", 1), ("random", 0)])
def test_a_front_that_has_to_learn_is_found(
    report: str, front: str, code: int, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
):
    ended = tmp_path / "ended"
    job = ["--", sys.executable, JOB, "--front", front, "--report", report, "--ended", str(ended)]
    assert main(["--steps", str(STEPS), "--json", *job]) == code
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert found["falls_behind"] is bool(code) and found["since"] == 4 and found["prefix"] == 1
    assert (found["first"], found["last"]) == (31, STEPS)
    assert not ended.exists() and "Traceback" not in err and "UNKNOWN_VARIABLE" not in err, err


def test_the_plain_run_is_the_plain_training(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    report = tmp_path / "report.json"
    trial = Trial(5, str(report), freezes=False)
    monkeypatch.setenv(VARIABLE, trial.in_environment())
    assert Trial.of_environment() == trial
    monkeypatch.setattr(sys, "argv", [JOB])
    sys.path.insert(0, str(pathlib.Path(JOB).parent))
    import trial_job

    with pytest.raises(SystemExit) as end:
        trial_job.main()
    assert end.value.code == 0
    found = json.loads(report.read_text())
    assert found["switches"] == [] and list(found["losses"]) == ["1", "2", "3", "4", "5"]


def test_two_ranks_end_at_the_same_step(capfd: pytest.CaptureFixture[str]):
    assert main(["--steps", "20", "--json", "--", *TWO_RANKS, JOB, "--front", "empty"]) in (0, 1)
    assert json.loads(capfd.readouterr().out)["last"] == 20


@pytest.mark.parametrize(
    ("framework", "job"), [("transformers", "huggingface_job.py"), ("lightning", "lightning_job.py")]
)
def test_a_framework_reports_losses_and_ends(
    framework: str, job: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
):
    pytest.importorskip(framework)
    command = [*TWO_RANKS, str(SUPPORT / job), str(tmp_path / "out"), "--plans", "[[4, 2]]"]
    assert main(["--steps", "12", "--json", "--", *command]) in (0, 1)
    found = json.loads(capfd.readouterr().out)
    assert (found["since"], found["first"], found["last"], found["prefix"]) == (4, 7, 12, 2)
    assert not (tmp_path / "out" / "report.json").exists()


def test_a_resumed_training_counts_from_where_it_begins(capfd: pytest.CaptureFixture[str]):
    assert main(["--steps", "20", "--json", "--", sys.executable, JOB, "--begin", "1000"]) in (0, 1)
    found = json.loads(capfd.readouterr().out)
    assert (found["since"], found["first"], found["last"]) == (4, 11, 20)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--report", "never"], "NO_LOSSES"),
        (["--freeze-at", "500"], "NOTHING_FROZE"),
        (["--steps", "10"], "ended before step 20"),
        (["--fail-at", "3"], "ended with code 1"),
    ],
)
def test_a_training_that_tells_nothing_is_named(options: list[str], words: str, capfd: pytest.CaptureFixture[str]):
    assert main(["--steps", "20", "--", sys.executable, JOB, *options]) == 2
    out, err = capfd.readouterr()
    assert out == "" and words in err


def test_a_command_that_cannot_be_started_is_named(capfd: pytest.CaptureFixture[str]):
    assert main(["--", "/no/such/program"]) == 2
    assert "/no/such/program cannot be started" in capfd.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--steps", "3", "--", "true"], ["--steps", "many", "--", "true"]])
def test_a_bad_command_line_is_refused(arguments: list[str], capfd: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2 and "egeria trial" in capfd.readouterr().err


def test_a_variable_of_another_form_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, "60")
    with pytest.raises(EgeriaError, match="BAD_CONFIG.*egeria trial"):
        Trial.of_environment()
