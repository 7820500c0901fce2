"""Runs what is to be run and has not been: for each task and seed the plain run, the policies, the controls."""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench import tasks
from bench.harness import machine, records, schedules
from bench.harness.errors import BenchError
from bench.harness.job import Job, run_job, run_job_with_cache
from bench.harness.planned import with_planned_steps
from bench.harness.processes import Controller
from bench.harness.runs import (
    PLAIN,
    Kind,
    Run,
    control_runs,
    controller_flags,
    decay_run,
    early_run,
    for_task,
    positions,
)
from bench.harness.sweeps import best_peak
from bench.harness.task import Task


@dataclasses.dataclass(frozen=True)
class Plan:
    """The runs that were asked for, and how.

    Attributes:
      tasks, seeds, profile, ranks: as named.
      runs: of policies, and of a sweep.
      controls_for: labels of the policies' runs that get controls of their own time.
      early: whether the negative control is run.
      data: the data folder.
      out: folder of records and reports.
      resume: runs that have a record are not repeated.
      keep_checkpoints: not removed when a seed is done, so that a later call can start late policies from them.
      checkpoints: how many more states of the plain run are saved, evenly over its steps.
      short: shares of the steps for more controls that take the whole schedule.
    """

    tasks: Sequence[str]
    seeds: Sequence[int]
    profile: str
    ranks: int
    runs: Sequence[Run]
    controls_for: Sequence[str]
    early: bool
    data: pathlib.Path | None
    out: pathlib.Path
    resume: bool
    keep_checkpoints: bool
    checkpoints: int = 0
    short: Sequence[float] = ()


def run_all(plan: Plan) -> int:
    """Runs everything. Returns the number of runs that failed; what depends on them is left out."""
    facts = machine.facts()
    failed = 0
    kept: collections.Counter[str] = collections.Counter()
    for name in plan.tasks:
        task = tasks.create(name, plan.profile, plan.data)
        try:
            task.load()  # fails here rather than in a rank
            runs = with_planned_steps([for_task(run, task) for run in plan.runs], task, plan.ranks, _known(plan, task))
        except BenchError as error:
            failed += 1
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            continue
        for seed in plan.seeds:
            one = Seed(dataclasses.replace(plan, runs=runs), task, seed, facts)
            failed += one.run()
            kept += one.kept
    if kept:
        by = ", ".join(f"{count} by version {version}" for version, count in kept.items())
        print(
            f"{kept.total()} runs were recorded before by other versions than {facts['egeria']}: {by}; reports say "
            "which rows are mixed",
            flush=True,
        )
    return failed


class Seed:
    """The runs of one task and seed, one after the other, the plain one first.

    Attributes:
      kept: how many runs another version's record stood for, by version.
    """

    def __init__(self, plan: Plan, task: Task, seed: int, facts: Mapping[str, Any]):
        self._plan, self._task, self._seed, self._facts = plan, task, seed, facts
        self._settings = machine.settings_hash(task.profile)
        self._file = records.file_of(plan.out, task.name)
        self._checkpoints = checkpoint_folder(plan.out, task, plan.profile, plan.ranks, seed)
        # For a plain run that has no record yet.
        self._unrecorded = self._checkpoints.with_name(f"{self._checkpoints.name}.part")
        self._done = {records.key(record): record for record in _known(plan, task)}
        self.kept: collections.Counter[str] = collections.Counter()

    def run(self) -> int:
        """Returns the number of failed runs."""
        failed = 0
        finished: dict[str, dict[str, Any]] = {}
        try:
            for run in self._runs(finished):
                try:
                    finished[run.label] = self._run_once(run)
                except BenchError as error:
                    failed += 1
                    print(f"{self._task.name}, seed {self._seed}, {run.label}: {error}", file=sys.stderr, flush=True)
                    if run.kind is Kind.PLAIN:
                        break  # there is nothing to compare with
        finally:
            shutil.rmtree(self._unrecorded, ignore_errors=True)
            if not self._plan.keep_checkpoints:
                shutil.rmtree(self._checkpoints, ignore_errors=True)
        return failed

    def _runs(self, finished: Mapping[str, Mapping[str, Any]]) -> Iterator[Run]:
        """In their order; controls depend on what has been measured before."""
        yield PLAIN
        yield from self._plan.runs
        if self._plan.early:
            yield early_run(self._task)
        if self._plan.controls_for and self._task.layer_rates:
            yield decay_run()
        controls = {run.label: run for share in self._plan.short for run in control_runs(share, self._best_peak)[:1]}
        for label in self._plan.controls_for:
            if label in finished:
                ratio = finished[label]["seconds"] / finished["plain"]["seconds"]
                controls.update((run.label, run) for run in control_runs(ratio, self._best_peak))
        yield from controls.values()

    def _best_peak(self, share: float) -> float | None:
        alike = (self._plan.profile, self._settings, self._plan.ranks)
        known = [
            record
            for record in records.read(self._file)
            if (record["profile"], record["settings"], record["ranks"]) == alike
        ]
        return best_peak(known, self._task.quality, share)

    def _run_once(self, run: Run) -> dict[str, Any]:
        """The record of a run: the one that there is, or of a new run."""
        identity = {
            "version": records.RECORD_VERSION,
            "task": self._task.name,
            "profile": self._plan.profile,
            "settings": self._settings,
            "ranks": self._plan.ranks,
            "seed": self._seed,
            "run": run.label,
            "run_hash": machine.run_hash(run),
        }
        known = self._done.get(records.key(identity))
        if known is not None:
            version = known["machine"]["egeria"]
            by = "" if version == self._facts["egeria"] else f", by version {version}"
            if by:
                self.kept[version] += 1
            print(f"{self._task.name}, seed {self._seed}, {run.label}: recorded before{by}", flush=True)
            return known
        started = time.time()
        result, decisions = self._train(run)
        record = identity | {
            "kind": run.kind.value,
            "policy": run.policy if run.kind is Kind.POLICY else None,
            "options": dict(run.options),
            "share": run.share,
            "started": round(started),
            "quality": self._task.quality.name,
            **result,
            "decisions": decisions,
            "machine": dict(self._facts),
        }
        records.append(self._file, record)
        if run.kind is Kind.PLAIN and self._unrecorded.exists():
            self._unrecorded.rename(self._checkpoints)
        quality = self._task.quality
        shared = f", {record['first_step']} steps of them the plain run's" if record["first_step"] else ""
        print(
            f"{self._task.name}, seed {self._seed}, {run.label}: {quality.name} {record['final']:.4f}, "
            f"{record['seconds']:.1f} s of training in {record['steps']} steps{shared}",
            flush=True,
        )
        return record

    def _train(self, run: Run) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Returns what rank 0 reports, and the controller's decisions."""
        with tempfile.TemporaryDirectory(prefix="egeria-bench-") as temporary:
            folder = pathlib.Path(temporary)
            if run.kind is Kind.PLAIN:
                for older in (self._checkpoints, self._unrecorded):
                    shutil.rmtree(older, ignore_errors=True)
            checkpoint = None if run.kind is Kind.PLAIN else self._checkpoint_for(run)
            saves = self._saves() if run.kind is Kind.PLAIN else {}
            job = Job(
                self._task.name,
                self._plan.profile,
                self._seed,
                run,
                None if self._plan.data is None else str(self._plan.data.resolve()),
                None,
                None if checkpoint is None else str(checkpoint),
                saves,
                str(folder),
            )
            if run.kind is not Kind.POLICY:
                return _result(run_job(job, self._plan.ranks)), []
            with Controller(folder, controller_flags(run)) as controller:
                job = dataclasses.replace(job, controller=controller.address)
                result = _result(run_job_with_cache(job, self._plan.ranks))
                decisions: list[dict[str, Any]] = []
                names = controller.jobs()
                if not names:
                    log = (folder / "ranks.log").read_text(encoding="utf-8", errors="replace")
                    raise BenchError(
                        "NOT_WATCHED",
                        f"the training of '{run.label}' has not come to the controller, so "
                        f"that it says nothing of the policy; its log ends with:\n{log[-2000:]}",
                    )
                for name in names:
                    decisions += map(json.loads, controller.export(name, "--decisions").splitlines())
                    records.keep_recording(
                        self._plan.out, f"{self._task.name}-{self._seed}-{run.label}", controller.export(name)
                    )
                return result, decisions

    def _saves(self) -> dict[str, int]:
        """Where the plain run's state is kept for the runs that begin as it does: steps by file."""
        steps = self._task.profile.steps
        late = [*self._plan.runs, *([early_run(self._task)] if self._plan.early else [])]
        wanted = {int(run.first_act * steps) for run in late}
        if self._plan.controls_for:
            wanted.add(schedules.low_rate_phase(steps, self._task.rate))
        wanted = {step for step in wanted if 0 < step < steps}
        if self._plan.checkpoints:
            wanted |= set(schedules.evaluation_steps(steps, self._plan.checkpoints))
        return {str((self._unrecorded / f"{step}.pt").resolve()): step for step in sorted(wanted)}

    def _checkpoint_for(self, run: Run) -> pathlib.Path | None:
        """The latest state of the plain run from which this one can start."""
        same = schedules.shared_with_plain(positions(run, self._task))
        latest = same if run.kind is Kind.DROP_RAISED else min(same, int(run.first_act * self._task.profile.steps))
        kept = [file for file in self._checkpoints.glob("*.pt") if 0 < int(file.stem) <= latest]
        return max(kept, key=lambda file: int(file.stem), default=None)


def checkpoint_folder(out: pathlib.Path, task: Task, profile: str, ranks: int, seed: int) -> pathlib.Path:
    """Where the states of a plain run are, one file STEP.pt each."""
    name = f"{task.name}-{profile}-{machine.settings_hash(task.profile)}-{ranks}-ranks-{seed}"
    return out / "checkpoints" / name


def _known(plan: Plan, task: Task) -> list[dict[str, Any]]:
    """Records of the task that --resume may keep."""
    return records.read(records.file_of(plan.out, task.name)) if plan.resume else []


def _result(reported: Mapping[str, Any]) -> dict[str, Any]:
    return {**reported, "frozen_share": frozen_share(reported)}


def frozen_share(result: Mapping[str, Any]) -> float:
    """Share of the parameters that was frozen, averaged over all steps of a run."""
    switches = result["switches"]
    return (
        sum(
            (after["step"] - switch["step"]) * records.prefix_share(result, switch["frozen_prefix"])
            for switch, after in zip(switches, [*switches[1:], {"step": result["steps"]}])
        )
        / result["steps"]
    )
