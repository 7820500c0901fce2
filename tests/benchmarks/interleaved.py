#!/usr/bin/env python3
"""Compares the time and quality of whole trainings with policies and of the plain one: all at once, in turns.

usage: interleaved.py TASK [--data DIR] [options]      tasks and DIR: docs/reference/benchmarks.md
Needs the package (PYTHONPATH=build/dev/python).

All runs of a seed are started together, and take turns of a few steps each, so that a machine that others use, or
that gets slower meanwhile, does so for all of them; only their own turns count. Each run is trained from its first
step on. With --null the plain run is there twice, which tells what the ratios are worth. Prints the training time
over the plain run's and the quality over it, by seed, and at the end means and ranges.

Not seen this way is what a policy costs the machine outside of its own turns: a controller evaluates its reference
model, of policies that have one, while others train.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from bench import tasks
from bench.harness import machine, records
from bench.harness.command_line import list_of
from bench.harness.errors import BenchError
from bench.harness.job import Job, run_job_by_itself
from bench.harness.runs import PLAIN, Run, policy_run
from bench.harness.turns import run_in_turns


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--profile", default="small")
    parser.add_argument("--seeds", type=list_of(int), default=[0], metavar="N[,N...]")
    parser.add_argument("--policy", type=list_of(str), default=["auto"], metavar="P[,P...]")
    parser.add_argument(
        "--reinvest",
        type=list_of(float),
        default=[1.0],
        metavar="FACTOR[,FACTOR...]",
        help="a run of each policy for each, with this many times the steps (default 1)",
    )
    parser.add_argument("--null", action="store_true", help="the plain run twice")
    parser.add_argument("--steps", type=int, default=10, help="of a turn (default 10)")
    parser.add_argument("--json", type=pathlib.Path, help="file that a line for each run is added to")
    return parser.parse_args()


def runs_of(arguments: argparse.Namespace) -> list[Run]:
    found = [PLAIN, *([dataclasses.replace(PLAIN, label="plain again")] if arguments.null else [])]
    return [
        *found,
        *(policy_run(policy, policy, {}, factor) for policy in arguments.policy for factor in arguments.reinvest),
    ]


def train_all(arguments: argparse.Namespace, seed: int, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Trains all runs, and returns the reports of their ranks 0.

    Raises:
      BenchError: one of them failed, which ends the others.
    """
    with tempfile.TemporaryDirectory(prefix="egeria-interleaved-") as temporary:
        folders = [pathlib.Path(temporary) / str(index) for index in range(len(runs))]
        for folder in folders:
            folder.mkdir()
        calls = [functools.partial(train, arguments, seed, run, folder) for run, folder in zip(runs, folders)]
        return run_in_turns(pathlib.Path(temporary), calls)


def train(arguments: argparse.Namespace, seed: int, run: Run, folder: pathlib.Path, turns: str) -> dict[str, Any]:
    job = Job(
        arguments.task,
        arguments.profile,
        seed,
        run,
        None if arguments.data is None else str(arguments.data.resolve()),
        None,
        None,
        {},
        str(folder),
        turns,
        arguments.steps,
    )
    return run_job_by_itself(job, 2)


def compare(arguments: argparse.Namespace) -> None:
    task = tasks.create(arguments.task, arguments.profile, arguments.data)
    task.load()  # fails here rather than in a rank
    runs, facts = runs_of(arguments), machine.facts()
    ratios: dict[str, list[float]] = {run.label: [] for run in runs[1:]}
    gains: dict[str, list[float]] = {run.label: [] for run in runs[1:]}
    for seed in arguments.seeds:
        plain, *others = train_all(arguments, seed, runs)
        print(f"seed {seed}, plain: {task.quality.name} {plain['final']:.4f}, {plain['seconds']:.1f} s", flush=True)
        for run, result in zip(runs[1:], others):
            ratios[run.label].append(result["seconds"] / plain["seconds"])
            gains[run.label].append(task.quality.gain(result["final"], plain["final"]))
            print(
                f"seed {seed}, {run.label}: {task.quality.name} {result['final']:.4f}, {result['seconds']:.1f} s: "
                f"{gains[run.label][-1]:+.4f} {task.quality.unit} in {ratios[run.label][-1]:.3f}",
                flush=True,
            )
        if arguments.json is not None:
            for run, result in zip(runs, (plain, *others)):
                records.append(
                    arguments.json,
                    {
                        "task": arguments.task,
                        "profile": arguments.profile,
                        "seed": seed,
                        "run": run.label,
                        "machine": facts,
                        **result,
                    },
                )
    for label in ratios:
        print(
            f"{label}: {statistics.fmean(gains[label]):+.4f} [{min(gains[label]):+.4f}, {max(gains[label]):+.4f}] "
            f"{task.quality.unit} in {statistics.fmean(ratios[label]):.3f} [{min(ratios[label]):.3f}, "
            f"{max(ratios[label]):.3f}] of the plain run's time"
        )


def main() -> int:
    try:
        compare(parse_arguments())
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
