#!/usr/bin/env python3
"""What becomes of a bad freeze that somebody forces on a job of the policy `auto`.

usage: forced_freeze.py TASK [--data DIR] [options]      tasks and DIR: docs/benchmarks.md
Needs the package (PYTHONPATH=build/dev/python).

Trains the task plainly, and with `auto`. Of the second run, `egeria freeze` is told at a part of the steps to freeze a
part of the layer modules: without --force, which must be vetoed, then with it. Prints what was said, what the policy
decided after that, and both qualities. The exit code is 1 if it was not vetoed, or not undone. On digits, whose steps
are too short for that, the step is met roughly.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks import tasks  # noqa: E402
from benchmarks.harness.job import Job  # noqa: E402
from benchmarks.harness.processes import Controller, find_program, run_ranks  # noqa: E402
from benchmarks.harness.runs import PLAIN, Run, frozen_prefix, policy_run  # noqa: E402


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--profile", default="small")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at", type=float, default=0.15, help="part of the steps (default 0.15)")
    parser.add_argument("--modules", type=float, default=0.5, help="part of the layer modules (default 0.5)")
    return parser.parse_args()


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


def train(arguments: argparse.Namespace, run: Run, controller: str | None, folder: pathlib.Path) -> dict:
    job = Job(arguments.task, arguments.profile, arguments.seed, run,
              None if arguments.data is None else str(arguments.data.resolve()), controller, None, {}, str(folder))
    run_ranks([str(job.write())], 2, folder / "ranks.log")
    return json.loads(job.result_file.read_text(encoding="utf-8"))


def main() -> int:
    arguments = parse_arguments()
    task = tasks.create(arguments.task, arguments.profile, arguments.data)
    with tempfile.TemporaryDirectory(prefix="egeria-forced-") as temporary:
        folder = pathlib.Path(temporary)
        plain = train(arguments, PLAIN, None, folder)
        with Controller(folder) as controller:
            meddler = Meddler(controller, int(arguments.at * task.profile.steps), arguments.modules)
            meddler.start()
            forced = train(arguments, policy_run("auto", "auto", {}), controller.address, folder)
            meddler.join(timeout=10)
            exported = controller.export(controller.jobs()[0], "--decisions")
    print("\n".join(meddler.said))
    decisions = [json.loads(line) for line in exported.splitlines()]
    for decision in decisions:
        print(f"step {decision['step']}: {decision['action']} to {decision['frozen_prefix']}: {decision['reason']}")
    print(f"{task.quality.name}: plain {plain['final']:.4f}, forced {forced['final']:.4f}")
    vetoed = len(meddler.said) == 2 and "[VETOED]" in meddler.said[0]
    undone = any(decision["action"] == "unfreeze" for decision in decisions)
    if not vetoed or not undone:
        print(f"The freeze was {'' if vetoed else 'not '}vetoed and {'' if undone else 'not '}undone.", file=sys.stderr)
    return 0 if vetoed and undone else 1


if __name__ == "__main__":
    sys.exit(main())
