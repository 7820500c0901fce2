"""python -m bench.paper: see the docstring of the folder."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

from bench import tasks
from bench.harness.bench import checkpoint_folder
from bench.harness.errors import BenchError
from bench.harness.job import write_json
from bench.harness.task import Task
from bench.paper import constants, measurements, oracle, step_times
from bench.paper.store import measured_file, oracle_file, read_measured


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 where something is missing."""
    flags = _parser().parse_args(arguments)
    try:
        if flags.command == "report":
            from bench.paper.report import write_report

            for file in write_report(flags.out, flags.task, flags.profile):
                print(file)
        elif flags.command == "oracle":
            print(_oracle(flags))
        else:
            print(_measure(flags))
        return 0
    except BenchError as error:
        print(f"bench.paper: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.paper", description="Figures of Egeria's paper.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("measure", "look at the checkpoints of a plain run"),
        ("oracle", "print the --variant of `egeria bench` that freezes where the curves of this seed are flat"),
        ("report", "write OUT.md and its pictures from what is in OUT"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--out", type=pathlib.Path, default=pathlib.Path("paper"))
        command.add_argument("--task", default="resnet20-long")
        command.add_argument("--profile", default="small")
        if name != "report":
            command.add_argument("--seed", type=int, default=0)
        if name == "measure":
            command.add_argument("--data", type=pathlib.Path)
            command.add_argument("--ranks", type=int, default=2)
        if name == "oracle":
            command.add_argument(
                "--tolerance",
                type=float,
                default=oracle.TOLERANCE,
                help="CKA that a flat curve still moves (default 0.02)",
            )
    return parser


def _measure(flags: argparse.Namespace) -> pathlib.Path:
    task = tasks.create(flags.task, flags.profile, flags.data)
    task.load()
    folder = checkpoint_folder(flags.out, task, flags.profile, flags.ranks, flags.seed)
    measured = measurements.identity(task, flags.profile, flags.ranks, flags.seed)
    measured |= measurements.measure_plain_run(task, folder)
    measured["replays"] = constants.replay_rule(measured, task)
    measured["precision"] = _precision(task, folder, flags.ranks)
    measured["step"] = step_times.measure_step(task, flags.ranks)
    file = measured_file(flags.out, flags.task, flags.profile, flags.seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, measured)
    return file


def _precision(task: Task, folder: pathlib.Path, ranks: int) -> list[dict]:
    files = measurements.checkpoint_files(folder)
    network = task.build_model()
    measurements.load_network(network, list(files.values())[len(files) // 2])
    return constants.measure_precision(task, network, ranks)


def _oracle(flags: argparse.Namespace) -> str:
    measured = read_measured(flags.out, flags.task, flags.profile, flags.seed)
    task = tasks.create(flags.task, flags.profile, None)
    entries = oracle.schedule(measured, measurements.phases(task), flags.tolerance)
    if not entries:
        raise BenchError("NEVER_FLAT", f"no curve becomes flat within {flags.tolerance}; give a larger --tolerance")
    write_json(
        oracle_file(flags.out, flags.task, flags.profile),
        {"seed": flags.seed, "tolerance": flags.tolerance, "entries": entries},
    )
    return f"oracle=schedule:{json.dumps({'entries': entries}, separators=(',', ':'))}"


if __name__ == "__main__":
    sys.exit(main())
