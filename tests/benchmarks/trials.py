#!/usr/bin/env python3
"""Says what `egeria trial` finds on tasks of `egeria bench`, of which the records tell how freezing ends.

usage: trials.py [--data DIR] [options]      tasks and DIR: docs/reference/benchmarks.md
Needs the package (PYTHONPATH=build/dev/python).

Each trial trains the first part of the steps twice, with the policy observing and with it freezing. The table has the
mean loss of the later half of these steps over the plain one: the median of the seeds, the least and the most. It also
says in how many of the trials freezing falls behind. It has the same for shorter trials, which are the first steps of
the longest one.
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
    parser.add_argument("--parts", type=list_of(float), default=[0.1, 0.2], help="of the steps (default 0.1,0.2)")
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


def shortened(reported: Reported, steps: int) -> Reported:
    """Returns what a trial of so many steps would have reported."""
    losses = {step: loss for step, loss in reported.losses.items() if step <= steps}
    return Reported(losses, reported.modules, [switch for switch in reported.switches if switch[0] <= steps])


def try_task(arguments: argparse.Namespace, name: str, seed: int) -> dict[float, Comparison]:
    """Returns the comparisons by their part of the steps."""
    whole = tasks.create(name, "small", arguments.data).profile.steps
    trained = [train(arguments, name, seed, round(max(arguments.parts) * whole), freezes) for freezes in (False, True)]
    return {part: compare(*(shortened(one, round(part * whole)) for one in trained)) for part in arguments.parts}


def main() -> int:
    arguments = parse_arguments()
    recording = Recording("task")
    try:
        for name in arguments.tasks:
            found = []
            for seed in arguments.seeds:
                found.append(try_task(arguments, name, seed))
                for comparison in found[-1].values():
                    print(f"{name}, seed {seed}: {describe(comparison)}", flush=True)
            title = tasks.task_class(name).title
            for part in arguments.parts:
                tried = [comparisons[part] for comparisons in found]
                steps = f"{100 * part:g} % of the steps"
                recording.add(title, percents([one.over for one in tried]), "%", f"{steps}: loss over plain")
                recording.add(title, [sum(one.falls_behind for one in tried)], "", f"{steps}: falls behind")
    except (BenchError, EgeriaError) as error:
        print(error, file=sys.stderr)
        return 1
    recording.write(arguments.record, len(arguments.seeds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
