#!/usr/bin/env python3
"""Shows what becomes of a bad freeze that somebody forces on a job of the policy `auto`.

usage: forced_freeze.py TASK [--data DIR] [options]      tasks and DIR: docs/reference/benchmarks.md
Needs the package (PYTHONPATH=build/dev/python).

Trains the task plainly, and with `auto`. At a part of the second run's steps, `egeria freeze` is told to freeze a part
of the layer modules: without --force, which must be vetoed, then with it. Prints what was said, what the policy decided
after that, and both qualities. The exit code is 1 if one was not vetoed, or if the mean quality is under the plain
runs' by more than a limit: --limit, else a point where it is an accuracy, and for a loss --spreads times the standard
deviation of the plain runs. On digits, whose steps are too short for that, the step is met roughly.

From the forced freeze on the run is another training than the plain one, and two trainings come apart by any
difference, so that a single seed tells little. --null trains plainly once more, from weights that are one rounding step
off, which tells how far they do; the mean of both is then what the others are compared with. --unforced trains with
`auto` left alone. More validation samples (--setting testing=10000) tell more of each run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from bench import tasks
from bench.harness import machine, records
from bench.harness.command_line import list_of
from bench.harness.errors import BenchError
from bench.harness.job import Job, run_job, run_job_by_itself
from bench.harness.processes import Controller, find_program
from bench.harness.runs import PLAIN, Run, frozen_prefix, policy_run
from bench.harness.spread import Spread
from bench.harness.task import Quality, Task

AUTO = policy_run("auto", "auto", {})

# Under the plain runs', that the mean of the forced ones may be where quality is in points.
MOST_POINTS = 1.0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--profile", default="small")
    parser.add_argument("--seeds", type=list_of(int), default=[0, 1, 2], metavar="N[,N...]", help="default 0,1,2")
    parser.add_argument(
        "--at", type=list_of(float), default=[0.15], metavar="PART[,PART...]", help="of the steps (default 0.15)"
    )
    parser.add_argument("--modules", type=float, default=0.5, help="part of the layer modules (default 0.5)")
    parser.add_argument(
        "--limit", type=float, help="most that the mean quality may be under the plain runs', in its unit"
    )
    parser.add_argument(
        "--spreads",
        type=float,
        default=2.0,
        help="that limit for a loss, in standard deviations of the plain runs (default 2)",
    )
    parser.add_argument("--null", action="store_true", help="a second plain run of each seed, a rounding step off")
    parser.add_argument("--unforced", action="store_true", help="a run of each seed with `auto` left alone")
    parser.add_argument(
        "--setting",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="of the task, in place of its profile's",
    )
    parser.add_argument("--json", type=pathlib.Path, help="file that a line for each run is added to")
    arguments = parser.parse_args()
    arguments.settings = dict(arguments.setting)
    return arguments


def setting(text: str) -> tuple[str, Any]:
    """A type for argparse: NAME=JSON."""
    name, _, value = text.partition("=")
    return name, json.loads(value)


def limit_of(limit: float | None, spreads: float, quality: Quality, finals: Sequence[float]) -> float:
    """How far the mean quality may be under the plain runs', in its unit. `finals`: of the plain runs."""
    if limit is not None:
        return limit
    return MOST_POINTS if quality.scale == 100 else spreads * quality.scale * statistics.stdev(finals)


class Meddler(threading.Thread):
    """Freezes by hand when the controller's only job has got to a step.

    Attributes:
      said: what `egeria freeze` printed, without and with --force.
    """

    def __init__(self, controller: Controller, step: int, module_share: float):
        super().__init__(daemon=True)
        self._controller, self._step, self._share = controller, step, module_share
        self.said: list[str] = []

    def run(self) -> None:
        while not (jobs := self._controller.list()) or int(jobs[0]["step"]) < self._step:
            time.sleep(0.2)
        prefix = str(frozen_prefix(self._share, int(jobs[0]["module_count"])))
        for force in ([], ["--force"]):
            done = subprocess.run(
                [
                    find_program("egeria"),
                    "freeze",
                    jobs[0]["job_id"],
                    prefix,
                    *force,
                    "--controller",
                    self._controller.address,
                ],
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=30,
            )
            self.said.append(done.stdout.strip())


def train(arguments: argparse.Namespace, seed: int, run: Run, *, nudged: bool = False) -> dict[str, Any]:
    """A run that nobody meddles with. Returns what rank 0 reports."""
    with tempfile.TemporaryDirectory(prefix="egeria-forced-") as folder:
        return run_job_by_itself(dataclasses.replace(_job(arguments, seed, run, folder), nudged=nudged), 2)


def force(arguments: argparse.Namespace, task: Task, seed: int, at: float) -> tuple[bool, dict[str, Any]]:
    """Runs with a forced freeze. Returns whether it was vetoed, and what rank 0 reports."""
    with tempfile.TemporaryDirectory(prefix="egeria-forced-") as folder, Controller(pathlib.Path(folder)) as controller:
        meddler = Meddler(controller, int(at * task.profile.steps), arguments.modules)
        meddler.start()
        result = run_job(dataclasses.replace(_job(arguments, seed, AUTO, folder), controller=controller.address), 2)
        meddler.join(timeout=10)
        exported = controller.export(controller.jobs()[0], "--decisions")
    print(f"seed {seed}, at {100 * at:g} %:", *meddler.said, sep="\n  ")
    decisions = [json.loads(line) for line in exported.splitlines()]
    for decision in decisions:
        print(f"  step {decision['step']}: {decision['action']} to {decision['frozen_prefix']}: {decision['reason']}")
    vetoed = len(meddler.said) == 2 and "[VETOED]" in meddler.said[0]
    if not vetoed:
        print("  It was not vetoed.", file=sys.stderr)
    return vetoed, result


def _job(arguments: argparse.Namespace, seed: int, run: Run, folder: str) -> Job:
    return Job(
        arguments.task,
        arguments.profile,
        seed,
        run,
        None if arguments.data is None else str(arguments.data.resolve()),
        None,
        None,
        {},
        folder,
        settings=arguments.settings,
    )


class Results:
    """Prints and keeps what came of the runs.

    Attributes:
      plains: final quality of the first plain run of each seed.
      gains: by kind of run, the quality over the plain runs' of each seed, in the task's unit.
    """

    def __init__(self, arguments: argparse.Namespace, quality: Quality):
        self._arguments, self._quality = arguments, quality
        self._facts = machine.facts()
        self.plains: list[float] = []
        self.gains: dict[str, list[float]] = {}

    def add(self, seed: int, kind: str, result: Mapping[str, Any], **more: Any) -> float:
        """Returns the run's final quality."""
        print(f"seed {seed}, {kind}: {self._quality.name} {result['final']:.4f}", flush=True)
        if self._arguments.json is not None:
            records.append(
                self._arguments.json,
                {
                    "task": self._arguments.task,
                    "profile": self._arguments.profile,
                    "settings": self._arguments.settings,
                    "machine": self._facts,
                    "seed": seed,
                    "run": kind,
                    **more,
                    **result,
                },
            )
        return result["final"]

    def compare(self, kind: str, final: float, plain: float) -> None:
        self.gains.setdefault(kind, []).append(self._quality.gain(final, plain))

    def print_gains(self) -> None:
        """Prints for each kind of run the mean, half of its 90 % interval, the least and the most."""
        for kind, values in self.gains.items():
            spread = Spread.of(values)
            half = "" if spread.half_width is None else f" +- {spread.half_width:.4f}"
            print(
                f"{kind}, over plain: {spread.mean:+.4f}{half} [{spread.least:+.4f}, {spread.most:+.4f}] "
                f"{self._quality.unit}"
            )


def try_all(arguments: argparse.Namespace, task: Task) -> bool:
    """Whether every freeze was vetoed, and the mean quality is within the limit."""
    results = Results(arguments, task.quality)
    held: list[bool] = []
    for seed in arguments.seeds:
        plain = results.add(seed, "plain", train(arguments, seed, PLAIN))
        results.plains.append(plain)
        if arguments.null:
            again = results.add(seed, "null", train(arguments, seed, PLAIN, nudged=True))
            results.compare("null", again, plain)
            plain = (plain + again) / 2
        if arguments.unforced:
            results.compare("unforced", results.add(seed, "unforced", train(arguments, seed, AUTO)), plain)
        forced = []
        for at in arguments.at:
            right, result = force(arguments, task, seed, at)
            held.append(right)
            forced.append(results.add(seed, "forced", result, at=at))
        results.compare("forced", statistics.fmean(forced), plain)
    results.print_gains()
    limit = limit_of(arguments.limit, arguments.spreads, task.quality, results.plains)
    kept = statistics.fmean(results.gains["forced"]) >= -limit
    print(
        f"{sum(held)} of {len(held)} vetoed; mean quality "
        f"{'within' if kept else 'NOT within'} {limit:.4f} {task.quality.unit} of the plain runs'"
    )
    return all(held) and kept


def main() -> int:
    arguments = parse_arguments()
    try:
        task = tasks.create(arguments.task, arguments.profile, arguments.data, arguments.settings)
        task.load()  # fails here rather than in a rank
        if arguments.limit is None and task.quality.scale != 100 and len(arguments.seeds) < 2:
            print(
                f"{arguments.task} is scored by a loss, of which one seed has no spread; give --limit, or more --seeds",
                file=sys.stderr,
            )
            return 2
        return 0 if try_all(arguments, task) else 1
    except BenchError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
