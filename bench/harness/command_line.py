"""The command line of `egeria bench`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Callable, Sequence

from bench import tasks
from bench.harness.bench import Plan, run_all
from bench.harness.errors import BenchError
from bench.harness.records import file_of
from bench.harness.report import write_readme, write_reports
from bench.harness.runs import PLANNED, Run, cache_use, parse_variants, policy_run, resolved_options
from bench.harness.sweeps import sweep_runs

_DESCRIPTION = """Trains a task with and without freezing, beside the controls that save the same time without it.

  egeria bench digits --policy plasticity,schedule --seeds 0,1,2 --out results
  egeria bench all --policy auto,staged,plasticity --seeds 0,1,2 --data DIR --out results --resume
  egeria bench report --out results [--readme README.md]

Each seed has the plain run, the policies, and a freeze that is known to come too early. The policies of --controls
have runs beside them that save as much time by doing less. --sweep tells whether the plain run is tuned.
docs/reference/benchmarks.md has more.
"""


_SWEEP = [0.25, 0.5, 1.0, 2.0, 4.0]


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0; 1 if a run failed; 2 for a bad command line."""
    parser = _parser()
    flags = parser.parse_args(arguments)
    try:
        if flags.task == "report":
            for file in write_reports(flags.out):
                print(file)
            if flags.readme is not None:
                write_readme(flags.out, flags.readme)
                print(flags.readme)
            return 0
        plan = _plan(flags)
        failed = run_all(plan)
        if any(file_of(flags.out, name).exists() for name in plan.tasks):
            for file in write_reports(flags.out):
                print(file)
        return 1 if failed else 0
    except BenchError as error:
        print(f"egeria bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("egeria bench: interrupted; --resume goes on from here", file=sys.stderr)
        return 130


def list_of(kind: type) -> Callable[[str], list]:
    """A type for argparse: values of this type, with commas between them."""
    return lambda text: [kind(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="egeria bench", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "task",
        metavar="TASK[,TASK...]",
        help=f"tasks ({', '.join(tasks.NAMES)}), all of them (all), or report: write reports from the records",
    )
    parser.add_argument("--policy", default="", metavar="P[,P...]", help="policies, as egeria.Config names them")
    parser.add_argument(
        "--options", default="{}", metavar="JSON", help='constants by policy, such as \'{"plasticity": {"window": 5}}\''
    )
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="LABEL=POLICY:JSON",
        help="one more run of a policy with other constants, under a name of its own",
    )
    parser.add_argument(
        "--reinvest",
        type=_factor,
        action="append",
        default=[],
        metavar="FACTOR",
        help='one more run of each policy with this many times the steps, such as 1.06; "planned": '
        "as egeria.reinvest() plans for a clock, by times that are measured first",
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="run policies from the first step on, and not from where they may first act",
    )
    parser.add_argument(
        "--controls",
        default=None,
        metavar="LABEL[,LABEL...]",
        help="runs that get same-time controls; default: auto and staged where they are among the "
        'policies, else all. "none": no controls',
    )
    parser.add_argument(
        "--short",
        type=_share,
        action="append",
        default=[],
        metavar="SHARE",
        help="one more control, which takes the whole schedule in this share of the steps, such as 0.8",
    )
    parser.add_argument(
        "--sweep",
        type=list_of(_positive),
        nargs="?",
        const=_SWEEP,
        default=[],
        metavar="FACTOR[,FACTOR...]",
        help="sweep of the plain run over multiples of the task's learning rates, in place of the run that freezes too "
        f"early (without a value: {','.join(f'{factor:g}' for factor in _SWEEP)})",
    )
    parser.add_argument(
        "--sweep-shares",
        type=list_of(_positive),
        default=[1.0],
        metavar="SHARE[,SHARE...]",
        help="shares of the steps in which the sweep is run (default 1)",
    )
    parser.add_argument("--no-early", action="store_true", help="leave out the run that freezes too early")
    parser.add_argument("--seeds", default="0", metavar="N[,N...]", help="seeds of the runs (default 0)")
    parser.add_argument("--data", type=pathlib.Path, help="folder with the data sets (docs/reference/benchmarks.md)")
    parser.add_argument("--profile", default="small", help="size of the tasks: small (default) or paper")
    parser.add_argument("--ranks", type=int, default=2, help="number of processes of a run (default 2)")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path("bench-results"),
        help="folder of records and reports (default bench-results)",
    )
    parser.add_argument(
        "--readme",
        type=pathlib.Path,
        metavar="FILE",
        help="with report: write the table of results between the two marks of this page, too",
    )
    parser.add_argument("--resume", action="store_true", help="leave out what has a record already")
    parser.add_argument(
        "--keep-checkpoints",
        action="store_true",
        help="keep checkpoints of the plain run, from which another call may start late policies",
    )
    parser.add_argument(
        "--checkpoints",
        type=int,
        default=0,
        metavar="N",
        help="save N more states of the plain run, evenly over its steps, for `python -m bench.paper`",
    )
    return parser


def _factor(text: str) -> float:
    return PLANNED if text == "planned" else _positive(text)


def _positive(text: str) -> float:
    factor = float(text)
    if not 0 < factor < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of times that something could be")
    return factor


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"{text} is no share of the steps between 0 and 1")
    return share


def _plan(flags: argparse.Namespace) -> Plan:
    try:
        seeds = [int(seed) for seed in flags.seeds.split(",")]
    except ValueError:
        raise BenchError("BAD_SEEDS", f"--seeds {flags.seeds!r}; give whole numbers such as 0,1,2") from None
    if flags.ranks < 1:
        raise BenchError("BAD_RANKS", "--ranks must be at least 1")
    runs = _policy_runs(flags)
    labels = [run.label for run in runs]
    runs += sweep_runs(flags.sweep, flags.sweep_shares)
    if flags.controls is None:
        controls = [label for label in labels if label in ("auto", "staged")] or labels
    else:
        controls = [] if flags.controls == "none" else flags.controls.split(",")
    for label in controls:
        if label not in labels:
            raise BenchError(
                "BAD_CONTROLS",
                f"--controls names {label!r}, which is none of the runs: {', '.join(labels) or 'there are none'}",
            )
    names = tasks.NAMES if flags.task == "all" else flags.task.split(",")
    for name in names:
        tasks.create(name, flags.profile, flags.data)
    return Plan(
        tasks=names,
        seeds=seeds,
        profile=flags.profile,
        ranks=flags.ranks,
        runs=runs,
        controls_for=controls,
        early=not (flags.no_early or flags.sweep),
        data=flags.data,
        out=flags.out,
        resume=flags.resume,
        keep_checkpoints=flags.keep_checkpoints,
        checkpoints=flags.checkpoints,
        short=flags.short,
    )


def _policy_runs(flags: argparse.Namespace) -> list[Run]:
    try:
        constants = json.loads(flags.options)
    except ValueError:
        constants = None
    policies = [policy for policy in flags.policy.split(",") if policy]
    if not isinstance(constants, dict) or not set(constants) <= set(policies):
        raise BenchError(
            "BAD_OPTIONS",
            "--options is a JSON object of the constants of policies in --policy, such "
            'as \'{"plasticity": {"window": 5}}\'',
        )
    wanted = [(policy, policy, constants.get(policy, {})) for policy in policies] + parse_variants(flags.variant)
    runs = [policy_run(label, policy, options) for label, policy, options in wanted]
    runs += [
        policy_run(label, policy, options, factor) for factor in flags.reinvest for label, policy, options in wanted
    ]
    if flags.whole:
        runs = [dataclasses.replace(run, first_act=0.0) for run in runs]
    labels = [run.label for run in runs]
    if len(set(labels)) < len(labels):
        raise BenchError("BAD_POLICY", f"two runs have one label: {', '.join(labels)}; name variants differently")
    for run in runs:
        _check(run)
    return runs


def _check(run: Run) -> None:
    """Raises BenchError [BAD_POLICY] for what a session would refuse, before anything has run."""
    try:
        import egeria
    except ImportError as error:
        raise BenchError(
            "NO_PACKAGE",
            f"this Python cannot load the package egeria ({error}); start this as `egeria "
            "bench`, or with PYTHONPATH=build/dev/python",
        ) from None
    try:
        egeria.Config(
            controller="none",
            policy=run.policy,
            options=resolved_options(run, modules=8),
            cache_use=cache_use(run) or "auto",
        )
    except egeria.EgeriaError as error:
        raise BenchError("BAD_POLICY", f"{run.label}: {error}") from None
