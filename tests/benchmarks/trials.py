#!/usr/bin/env python3
"""Says what `egeria trial` finds on tasks of `egeria bench`, of which the records tell how freezing ends.

usage: trials.py [--data DIR] [options]      tasks and DIR: docs/reference/benchmarks.md
Needs the package (PYTHONPATH=build/dev/python).

Each trial trains the first part of the steps twice, with the policy observing and with it freezing. The table has the
mean loss of the later half of these steps over the plain one: the median of the seeds, the least and the most. It also
says in how many of the trials freezing falls behind.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from bench import tasks
from bench.harness.command_line import list_of
from bench.harness.errors import BenchError
from bench.harness.job import Job, run_job_by_itself
from bench.harness.runs import policy_run
from benchmarks.recording import Recording, add_record_option, percents
from egeria.errors import EgeriaError
from egeria.training.trial import VARIABLE, Trial
from egeria.trial.command import describe
from egeria.trial.comparison import Comparison, Reported, compare

TASKS = ["minilm-classify", "minilm-squad", "lite0-cifar10", "lite0-camvid"]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=list_of(str), default=TASKS, metavar="TASK[,TASK...]")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--seeds", type=list_of(int), default=[0, 1, 2], metavar="N[,N...]")
    parser.add_argument("--part", type=float, default=0.2, help="of the steps (default 0.2)")
    parser.add_argument("--policy", default="finetune")
    add_record_option(parser)
    return parser.parse_args()


def train(arguments: argparse.Namespace, task: str, seed: int, steps: int, freezes: bool) -> Reported:
    """Trains so many steps of a task. Raises BenchError where the training does not come so far."""
    with tempfile.TemporaryDirectory(prefix="egeria-trials-") as folder:
        report = pathlib.Path(folder) / "report.json"
        run = policy_run(arguments.policy, arguments.policy, {}, 1.0)
        data = None if arguments.data is None else str(arguments.data.resolve())
        variables = {VARIABLE: Trial(steps, str(report), freezes).in_environment()}
        job = Job(task, "small", seed, run, data, None, None, {}, folder, variables=variables)
        try:
            run_job_by_itself(job, 2)
        except (BenchError, OSError):  # the ranks have ended before their result
            if not report.exists():
                raise
        return Reported.read(report)


def try_task(arguments: argparse.Namespace, name: str, seed: int) -> Comparison:
    task = tasks.create(name, "small", arguments.data)
    steps = round(arguments.part * task.profile.steps)
    return compare(*(train(arguments, name, seed, steps, freezes) for freezes in (False, True)))


def main() -> int:
    arguments = parse_arguments()
    recording = Recording("task")
    try:
        for name in arguments.tasks:
            found = []
            for seed in arguments.seeds:
                found.append(try_task(arguments, name, seed))
                print(f"{name}, seed {seed}: {describe(found[-1])}", flush=True)
            title = tasks.task_class(name).title
            over = [comparison.over for comparison in found]
            recording.add(title, percents(over), "%", "loss of the first steps, over plain")
            recording.add(
                title, [sum(one.falls_behind for one in found)], "", f"trials of {len(found)} that fall behind"
            )
    except (BenchError, EgeriaError) as error:
        print(error, file=sys.stderr)
        return 1
    recording.write(arguments.record, len(arguments.seeds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
