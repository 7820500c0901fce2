#!/usr/bin/env python3
"""What becomes of a bad freeze that somebody forces on a job of the policy `auto`.

usage: forced_freeze.py TASK [--data DIR] [options]      tasks and DIR: docs/benchmarks.md
Needs the package (PYTHONPATH=build/dev/python).

Trains the task plainly, and with `auto`. Of the second run, `egeria freeze` is told at a part of the steps to freeze a
part of the layer modules: without --force, which must be vetoed, then with it. Prints what was said, what the policy
decided after that, and both qualities. The exit code is 1 if one was not vetoed, or not undone by the re-probe, or if
the mean quality is under the plain runs' by more than a limit: --limit, else a point where it is an accuracy, and for a
loss --spreads times the standard deviation of the plain runs. On digits, whose steps are too short for that, the step
is met roughly.
"""

from __future__ import annotations

import argparse
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks import tasks  # noqa: E402
from benchmarks.harness.command_line import list_of  # noqa: E402
from benchmarks.harness.job import Job, run_job  # noqa: E402
from benchmarks.harness.processes import Controller, find_program  # noqa: E402
from benchmarks.harness.runs import PLAIN, Run, frozen_prefix, policy_run  # noqa: E402
from benchmarks.harness.task import Quality, Task  # noqa: E402

# Under the plain runs', that the mean of the forced ones may be where quality is in points.
MOST_POINTS = 1.0

# Of the reasons that `auto` gives for a thaw, what is in those of its re-probe (controller/policy/auto_policy.cc).
REPROBE = ("is not surely noise", "two probes in a row")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--profile", default="small")
    parser.add_argument("--seeds", type=list_of(int), default=[0], metavar="N[,N...]")
    parser.add_argument("--at", type=list_of(float), default=[0.15], metavar="PART[,PART...]",
                        help="of the steps (default 0.15)")
    parser.add_argument("--modules", type=float, default=0.5, help="part of the layer modules (default 0.5)")
    parser.add_argument("--limit", type=float,
                        help="most that the mean quality may be under the plain runs', in its unit")
    parser.add_argument("--spreads", type=float, default=2.0,
                        help="that limit for a loss, in standard deviations of the plain runs (default 2)")
    return parser.parse_args()


def limit_of(limit: float | None, spreads: float, quality: Quality, finals: Sequence[float]) -> float:
    """How far the mean quality may be under the plain runs', in its unit. `finals`: of the plain runs."""
    if limit is not None:
        return limit
    return MOST_POINTS if quality.scale == 100 else spreads * quality.scale * statistics.stdev(finals)


def is_undone(decisions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether it was the re-probe that took back what was frozen by hand."""
    origins = [decision["origin"] for decision in decisions]
    if "DECISION_ORIGIN_OPERATOR" not in origins:
        return False
    after = decisions[origins.index("DECISION_ORIGIN_OPERATOR") + 1:]
    thaw = next((decision["reason"] for decision in after if decision["action"] == "unfreeze"), "")
    return any(words in thaw for words in REPROBE)


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
            done = subprocess.run([find_program("egeria"), "freeze", jobs[0]["job_id"], prefix, *force, "--controller",
                                   self._controller.address], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=30)
            self.said.append(done.stdout.strip())


def train(arguments: argparse.Namespace, seed: int, run: Run, controller: str | None, folder: pathlib.Path) -> dict:
    job = Job(arguments.task, arguments.profile, seed, run,
              None if arguments.data is None else str(arguments.data.resolve()), controller, None, {}, str(folder))
    return run_job(job, 2)


def force(arguments: argparse.Namespace, task: Task, seed: int, at: float, plain: dict,
          folder: pathlib.Path) -> tuple[bool, float]:
    """One run. Returns whether the freeze was vetoed, and undone by the re-probe, and the quality over the plain
    run's."""
    with Controller(folder) as controller:
        meddler = Meddler(controller, int(at * task.profile.steps), arguments.modules)
        meddler.start()
        forced = train(arguments, seed, policy_run("auto", "auto", {}), controller.address, folder)
        meddler.join(timeout=10)
        exported = controller.export(controller.jobs()[0], "--decisions")
    print(f"seed {seed}, at {100 * at:g} %:", *meddler.said, sep="\n  ")
    decisions = [json.loads(line) for line in exported.splitlines()]
    for decision in decisions:
        print(f"  step {decision['step']}: {decision['action']} to {decision['frozen_prefix']}: {decision['reason']}")
    gain = task.quality.gain(forced["final"], plain["final"])
    print(f"  {task.quality.name}: plain {plain['final']:.4f}, forced {forced['final']:.4f}: {gain:+.4f} "
          f"{task.quality.unit}", flush=True)
    vetoed = len(meddler.said) == 2 and "[VETOED]" in meddler.said[0]
    undone = is_undone(decisions)
    if not vetoed or not undone:
        print(f"  It was {'' if vetoed else 'not '}vetoed and {'' if undone else 'not '}undone by the re-probe.",
              file=sys.stderr)
    return vetoed and undone, gain


def main() -> int:
    arguments = parse_arguments()
    task = tasks.create(arguments.task, arguments.profile, arguments.data)
    if arguments.limit is None and task.quality.scale != 100 and len(arguments.seeds) < 2:
        print(f"{arguments.task} is scored by a loss, of which one seed has no spread; give --limit, or more "
              "--seeds", file=sys.stderr)
        return 2
    held, gains, finals = [], [], []
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory(prefix="egeria-forced-") as folder:
            plain = train(arguments, seed, PLAIN, None, pathlib.Path(folder))
        finals.append(plain["final"])
        for at in arguments.at:
            with tempfile.TemporaryDirectory(prefix="egeria-forced-") as folder:
                right, gain = force(arguments, task, seed, at, plain, pathlib.Path(folder))
            held.append(right)
            gains.append(gain)
    mean = statistics.fmean(gains)
    limit = limit_of(arguments.limit, arguments.spreads, task.quality, finals)
    kept = mean >= -limit
    print(f"{sum(held)} of {len(held)} vetoed and undone by the re-probe; quality over the plain runs' {mean:+.4f} "
          f"[{min(gains):+.4f}, {max(gains):+.4f}] {task.quality.unit}, {'within' if kept else 'NOT within'} the limit "
          f"of {limit:.4f} under them")
    return 0 if all(held) and kept else 1


if __name__ == "__main__":
    sys.exit(main())
