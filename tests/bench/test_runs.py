"""egeria bench: which steps of the schedule a run takes, and which runs there are."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench import tasks
from bench.harness import bench, machine, records, schedules
from bench.harness.command_line import main
from bench.harness.errors import BenchError
from bench.harness.job import Job
from bench.harness.planned import with_planned_steps
from bench.harness.processes import Controller
from bench.harness.rank import nudge
from bench.harness.runs import (
    EARLY,
    PLAIN,
    PLANNED,
    Kind,
    Run,
    cache_use,
    control_runs,
    controller_flags,
    decay_run,
    early_run,
    for_task,
    frozen_prefix,
    parse_variants,
    policy_run,
    rates,
    resolved_options,
)
from bench.harness.sweeps import best_peak, sweep_runs
from bench.harness.task import Quality, step_decay
from benchmarks import forced_freeze, saved_seconds

# Rank 0 of a run that was not made would report this.
RESULT = {"final": 0.1, "seconds": 1.0, "steps": 60, "first_step": 0, "switches": [], "modules": []}


def test_short_runs_the_whole_schedule_in_fewer_steps():
    positions = schedules.resized(1_000, 0.87)
    assert len(positions) == 870
    assert positions[0] == 0
    assert 998 < positions[-1] < 1_000
    assert positions == sorted(positions)


@pytest.mark.parametrize("share", [0.98, 0.9, 0.8])
def test_drop_leaves_steps_of_the_low_rate_phase_out(share):
    positions = schedules.dropped(1_000, share, step_decay(0.6, 0.85))
    assert len(positions) == round(1_000 * share)
    assert positions[:600] == list(range(600))
    assert positions == sorted(positions)
    assert all(600 <= position < 1_000 for position in positions[600:])
    assert positions[-1] > 990


def test_drop_takes_at_most_half_of_the_phase_by_beginning_earlier():
    rate = step_decay(0.9)
    assert schedules.low_rate_phase(1_000, rate) == 900
    positions = schedules.dropped(1_000, 0.7, rate)
    assert len(positions) == 700
    assert schedules.shared_with_plain(positions) == 400


def test_drop_of_a_constant_rate_has_no_low_phase_to_take_from():
    positions = schedules.dropped(100, 0.9, lambda _: 1.0)
    assert len(positions) == 90
    assert schedules.shared_with_plain(positions) == 80


def test_nothing_dropped_is_the_plain_schedule():
    assert schedules.dropped(100, 1.0, step_decay(0.5)) == schedules.plain(100)


@pytest.mark.parametrize("steps", [3, 10, 97, 1_000])
def test_a_run_of_any_length_is_evaluated_as_often_and_at_its_end(steps):
    after = schedules.evaluation_steps(steps, 10)
    assert len(after) == min(steps, 10)
    assert after[-1] == steps
    assert len(set(after)) == len(after)


def test_controls_take_the_policys_share_of_the_time():
    assert [(run.kind, run.share, run.label) for run in control_runs(0.8649, lambda _: None)] == [
        (Kind.SHORT, 0.86, "short 0.86"),
        (Kind.DROP_RAISED, 0.86, "drop-raised 0.86"),
    ]
    assert control_runs(0.998, lambda _: 2.0) == []  # the plain run is the control of what saves nothing
    assert control_runs(1.2, lambda _: 2.0) == []


def test_horizon_is_short_at_the_rate_that_suits_its_length():
    short, _, horizon = control_runs(0.5, lambda share: 2.0 if share == 0.5 else None)
    task = tasks.create("digits", "smoke", None)
    assert (horizon.kind, horizon.label, horizon.options) == (Kind.HORIZON, "horizon 0.50", {"peak": 2.0})
    assert rates(horizon, task) == [2 * rate for rate in rates(short, task)]
    assert len(control_runs(0.5, lambda _: 1.0)) == 2  # it would be the short run


def test_dropped_steps_raise_the_rates_of_those_that_are_kept():
    rate = step_decay(0.6, 0.85)  # the last 400 of 1,000 steps have low rates
    kept, whole = schedules.raised(1_000, 0.8, rate), [rate(step / 1_000) for step in range(1_000)]
    assert kept[:600] == whole[:600]
    assert len(kept) == 800
    assert kept[600] == pytest.approx(2 * 0.1)
    assert sum(kept[600:]) == pytest.approx(sum(whole[600:]))
    assert max(schedules.raised(1_000, 0.5, rate)) == 1.0  # the peak is not exceeded


def swept(peak: float, final: float, seed: int = 0, share: float = 1.0) -> dict:
    options = {} if peak == 1.0 else {"peak": peak}
    kind = "plain" if peak == share == 1.0 else "sweep"
    return {"kind": kind, "options": options, "share": share, "seed": seed, "final": final}


def test_the_sweep_of_the_nearest_length_says_which_rate_is_best():
    points, nats = Quality("accuracy", "points", True, 100), Quality("loss", "nats", False)
    known = [swept(1.0, 0.5), swept(2.0, 0.4), swept(1.0, 0.3, share=0.5), swept(4.0, 0.6, share=0.5)]
    assert best_peak(known, points, 0.9) == 1.0
    assert best_peak(known, points, 0.6) == 4.0
    assert best_peak(known, nats, 0.9) == 2.0
    assert best_peak([swept(1.0, 0.5)], points, 0.9) is None
    # Seeds that not all rates have do not count, and a run that diverged is not the best.
    assert best_peak([*known, swept(2.0, 0.9, seed=1)], points, 1.0) == 1.0
    assert best_peak([swept(1.0, 0.5), swept(2.0, math.nan)], nats, 1.0) == 1.0


def test_a_sweep_has_the_plain_run_for_the_tasks_own_rate():
    assert [(run.label, run.share, run.options["peak"]) for run in sweep_runs([0.5, 1.0], [1.0, 0.5])] == [
        ("sweep 0.5", 1.0, 0.5),
        ("sweep 0.5 in 0.5", 0.5, 0.5),
        ("sweep 1 in 0.5", 0.5, 1.0),
    ]


def test_policies_have_a_cache_and_controls_have_none():
    assert cache_use(policy_run("auto", "auto", {})) == "auto"
    assert cache_use(policy_run("auto", "auto", {"cache": "always"})) == "always"
    assert cache_use(policy_run("auto", "auto", {"cache": "none"})) is None
    assert [cache_use(run) for run in (PLAIN, EARLY, decay_run())] == [None] * 3
    assert resolved_options(policy_run("auto", "auto", {"cache": "none", "start": 0.9}), 8) == {"start": 0.9}


def test_a_policy_may_run_at_other_rates_than_the_plain_run():
    task = tasks.create("minilm-classify", "smoke", None)
    raised = policy_run("raised", "finetune", {"peak": 2, "layer_decay": 0.9, "stages": 1})
    assert resolved_options(raised, 8) == {"stages": 1}
    assert rates(raised, task) == [2 * rate for rate in rates(PLAIN, task)]


def test_fine_tuning_has_a_negative_control_and_a_decay_of_its_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bench.Seed, "_train", lambda self, run: ({**RESULT, "seconds": 1.0 / len(run.label)}, []))
    task = tasks.create("lite0-cifar10", "smoke", pathlib.Path("."))
    plan = bench.Plan(
        tasks=["lite0-cifar10"],
        seeds=[0],
        profile="smoke",
        ranks=2,
        runs=[policy_run("auto", "auto", {})],
        controls_for=["auto"],
        early=True,
        data=None,
        out=tmp_path,
        resume=False,
        keep_checkpoints=False,
    )
    bench.Seed(plan, task, 0, {"egeria": "new"}).run()
    found = {record["run"]: record for record in records.read(records.file_of(tmp_path, "lite0-cifar10"))}
    assert list(found) == ["plain", "auto", "early", "decay 0.9"]
    assert found["early"]["options"] == {"module_share": 1.0, "at": 0.0}
    assert found["decay 0.9"]["options"] == {"layer_decay": 0.9}
    assert early_run(tasks.create("digits", "smoke", None)) == EARLY


def test_late_policies_start_where_they_first_act():
    assert policy_run("plasticity", "plasticity", {}).first_act == 0
    assert policy_run("auto", "auto", {}).first_act == pytest.approx(0.70)
    assert policy_run("snr", "snr", {}).first_act == pytest.approx(0.30)
    assert policy_run("auto", "auto", {"start": 0.2}).first_act == pytest.approx(0.1)
    assert policy_run("staged", "staged", {"begin": 0.5}).first_act == pytest.approx(0.4)
    assert policy_run("staged", "staged", {"area": True}).first_act == 0
    assert policy_run("schedule", "schedule", {}).first_act == pytest.approx(0.78)


@pytest.mark.parametrize(
    ("task", "profile", "first_act"),
    [
        ("bert-squad", "small", 0.35),
        ("transformer-tiny-multi30k", "small", 0.35),
        ("deeplabv3-camvid", "small", 0.35),
        ("resnet56-cifar10", "small", 0.70),
        ("resnet56-cifar10", "paper", 0.70),
        ("bert-squad", "paper", 0.09),  # long enough for gradients to be read early
    ],
)
def test_auto_starts_sooner_where_rates_fall_smoothly(task: str, profile: str, first_act: float):
    created = tasks.create(task, profile, pathlib.Path("."))
    assert for_task(policy_run("auto", "auto", {}), created).first_act == pytest.approx(first_act)
    assert for_task(policy_run("auto", "auto", {"early_share": 0}), created).first_act == pytest.approx(0.70)
    assert for_task(policy_run("staged", "staged", {}), created).first_act == pytest.approx(0.70)


def test_a_reinvesting_run_has_a_schedule_of_its_own():
    run = policy_run("staged", "staged", {}, 1.06)
    assert (run.label, run.share, run.first_act) == ("staged+6%", 1.06, 0.0)


def test_a_clock_plans_its_steps_once_for_all_seeds():
    task = tasks.create("digits", "smoke", None)
    task.load()
    staged = policy_run("staged", "staged", {}, PLANNED)
    plain_length = policy_run("staged", "staged", {})
    planned = with_planned_steps([plain_length, staged], task, 2, [])
    assert planned[0] == plain_length
    assert (planned[1].label, planned[1].first_act) == ("staged+planned", 0.0)
    assert 1.0 <= planned[1].share < 1.5
    recorded = {
        "settings": machine.settings_hash(task.profile),
        "ranks": 2,
        "run": "staged+planned",
        "options": {},
        "share": 1.05,
    }
    assert with_planned_steps([staged], task, 2, [recorded])[0].share == 1.05


def test_resuming_counts_what_other_versions_have_recorded(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    plan = bench.Plan(
        tasks=["digits"],
        seeds=[0, 1],
        profile="smoke",
        ranks=2,
        runs=[],
        controls_for=[],
        early=True,
        data=None,
        out=tmp_path,
        resume=True,
        keep_checkpoints=False,
    )
    result = {"final": 0.1, "seconds": 1.0, "steps": 60, "first_step": 0}
    monkeypatch.setattr(bench.Seed, "_train", lambda self, run: (result, []))
    for version in ("old", "new"):
        monkeypatch.setattr(machine, "facts", lambda version=version: {"egeria": version})
        capsys.readouterr()
        assert bench.run_all(plan) == 0
    said = capsys.readouterr().out
    assert "digits, seed 1, early: recorded before, by version old" in said
    assert "4 runs were recorded before by other versions than new: 4 by version old" in said


def test_runs_start_from_no_checkpoint_of_an_older_plain_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    beside = []

    def run_job(job: Job, _: int) -> dict:
        for file in map(pathlib.Path, job.save_at):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        if job.checkpoint is not None:
            beside.append(sorted(file.name for file in pathlib.Path(job.checkpoint).parent.iterdir()))
        return RESULT

    monkeypatch.setattr(bench, "run_job", run_job)
    plan = bench.Plan(
        tasks=["digits"],
        seeds=[0],
        profile="smoke",
        ranks=2,
        runs=[],
        controls_for=[],
        early=True,
        data=None,
        out=tmp_path,
        resume=False,
        keep_checkpoints=True,
    )
    assert bench.run_all(plan) == 0
    (folder,) = (tmp_path / "checkpoints").iterdir()
    (folder / "5.pt").touch()
    assert bench.run_all(dataclasses.replace(plan, resume=True)) == 0
    assert (folder / "5.pt").exists()  # the plain run was not trained anew
    assert bench.run_all(plan) == 0
    assert bench.run_all(dataclasses.replace(plan, ranks=1)) == 0
    assert beside == [["6.pt"]] * 3
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2  # one for one rank, one for two


def test_checkpoints_of_a_plain_run_that_was_killed_are_not_those_of_the_record_before(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    started = []

    def run_job(job: Job, _: int) -> dict:
        started.append(job)
        if len(started) == 2:
            raise BenchError("RUN_FAILED", "killed")
        return RESULT

    monkeypatch.setattr(bench, "run_job", run_job)
    plan = bench.Plan(
        tasks=["digits"],
        seeds=[0],
        profile="smoke",
        ranks=2,
        runs=[],
        controls_for=[],
        early=True,
        data=None,
        out=tmp_path,
        resume=False,
        keep_checkpoints=True,
    )
    assert bench.run_all(dataclasses.replace(plan, early=False)) == 0
    assert bench.run_all(plan) == 1
    for file in map(pathlib.Path, started[1].save_at):  # as if there had been no time to remove them
        file.parent.mkdir(parents=True)
        file.touch()
    assert bench.run_all(dataclasses.replace(plan, resume=True)) == 0
    assert [(job.run.label, job.checkpoint) for job in started] == [("plain", None), ("plain", None), ("early", None)]


def decision(action: str, reason: str, origin: str = "POLICY") -> dict:
    return {"action": action, "reason": reason, "origin": f"DECISION_ORIGIN_{origin}"}


def test_what_a_forced_freeze_may_cost():
    points, nats = Quality("accuracy", "points", True, 100), Quality("loss", "nats", False)
    assert forced_freeze.limit_of(None, 2.0, points, [0.5]) == 1.0
    assert forced_freeze.limit_of(None, 2.0, nats, [1.0, 1.2, 1.4]) == pytest.approx(0.4)
    assert forced_freeze.limit_of(0.05, 2.0, nats, [1.0]) == 0.05


def test_a_nudge_moves_each_weight_to_the_next_number():
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    before = [parameter.detach().clone() for parameter in network.parameters()]
    nudge(network)
    for old, new in zip(before, network.parameters()):
        assert torch.equal(new, old.nextafter(torch.full_like(old, torch.inf)))
        assert (new > old).all()


def test_the_account_agrees_within_a_part_of_the_saving():
    assert saved_seconds.agree(10.9, 10.0, 0.1)
    assert not saved_seconds.agree(11.1, 10.0, 0.1)
    assert not saved_seconds.agree(0.0, -1.0, 0.1)  # nothing was saved


def test_shares_of_the_modules_become_prefixes():
    options = resolved_options(policy_run("schedule", "schedule", {}), 9)
    assert [entry["frozen_prefix"] for entry in options["entries"]] == [4, 6, 8]
    assert frozen_prefix(1.0, 9) == 8  # the last one never freezes
    assert frozen_prefix(0.01, 9) == 1


@pytest.mark.parametrize("backends", [["aten"], ["bf16", "aten"]])
def test_backends_of_the_reference_are_the_controllers(backends: list[str], tmp_path: pathlib.Path):
    run = policy_run("precise", "plasticity", {"window": 5, "reference_backends": backends})
    assert resolved_options(run, 9) == {"window": 5}
    with Controller(tmp_path, controller_flags(run)) as controller:  # the controller takes them
        assert controller.jobs() == []


def test_runs_survive_their_way_to_the_ranks():
    run = policy_run("late", "schedule", {"entries": [{"fraction": 0.9, "frozen_prefix": 1}]})
    assert Run.from_json(run.to_json()) == run


def test_variants_are_told_how_to_be_written():
    assert parse_variants(['wide=plasticity:{"window": 20}', "bare=none"]) == [
        ("wide", "plasticity", {"window": 20}),
        ("bare", "none", {}),
    ]
    with pytest.raises(BenchError, match=r"\[BAD_VARIANT\].*LABEL=POLICY:JSON"):
        parse_variants(["plasticity:{}"])
    with pytest.raises(BenchError, match=r"\[BAD_VARIANT\]"):
        parse_variants(["wide=plasticity:{window}"])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["digitz"], 2, "[UNKNOWN_TASK]"),
        (["digits", "--profile", "huge"], 2, "[UNKNOWN_PROFILE]"),
        (["digits", "--seeds", "a"], 2, "[BAD_SEEDS]"),
        (["digits", "--policy", "plasticity,plasticity"], 2, "two runs have one label"),
        (["digits", "--policy", "plasticity", "--options", '{"plasticity": {"widow": 3}}'], 2, "'widow'"),
        (["digits", "--policy", "plasticity", "--options", '{"schedule": {}}'], 2, "[BAD_OPTIONS]"),
        (["digits", "--policy", "wish"], 2, "[BAD_POLICY] wish"),
        (["digits", "--controls", "auto"], 2, "[BAD_CONTROLS]"),
        (["digits", "--policy", "auto", "--options", '{"auto": {"cache": "often"}}'], 2, "[BAD_POLICY] auto"),
        (
            ["digits", "--policy", "auto,plasticity", "--reinvest", "planned"],
            2,
            "[NO_PLAN] plasticity follows no clock",
        ),
        (["resnet56-cifar10"], 1, "[NO_DATA]"),
        (["report"], 2, "[NO_RECORDS]"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(
    arguments: list[str], code: int, said: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    assert main([*arguments, "--out", str(tmp_path)]) == code
    assert said in capsys.readouterr().err
