"""This is the command `egeria trial -- python train.py`, which `python -m egeria.trial` runs too."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from egeria.errors import EgeriaError
from egeria.training.trial import VARIABLE, Trial
from egeria.trial.comparison import Comparison, Reported, compare

_ABOUT = """Train the first steps twice, without freezing and with it, and say whether freezing keeps up.

The command is your training as you start it, with a launcher or without. Each of its two runs ends after --steps
optimizer steps, so that what comes behind the training loop is not reached. Whatever the training writes before that,
it writes twice. It has to report its losses by session.step(loss); Hugging Face's Trainer and Lightning do that."""

_EXIT_CODES = "Exit code: 0 where freezing keeps up, 1 where it falls behind, 2 where nothing can be said."


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="egeria trial",
        usage="egeria trial [-h] [--steps STEPS] [--json] -- command [argument ...]",
        description=_ABOUT,
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=200, help="of each run: a fifth of your training (default 200)")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="command", help="such as python train.py")
    parsed = parser.parse_args(arguments)
    if parsed.command[:1] == ["--"]:
        del parsed.command[0]
    if not parsed.command:
        parser.error("a command is missing: egeria trial -- python train.py")
    if parsed.steps < 10:
        parser.error(f"--steps is {parsed.steps}; it must be at least 10")
    return parsed


def train(command: Sequence[str], steps: int, freezes: bool, folder: pathlib.Path) -> Reported:
    """Runs the training up to that step, and puts its output on the error stream.

    Raises:
      EgeriaError: [TRIAL_FAILED] it fails, or ends before that.
    """
    report = folder / f"{'frozen' if freezes else 'plain'}.json"
    environment = {**os.environ, VARIABLE: Trial(steps, str(report), freezes).in_environment()}
    text = shlex.join(command)
    try:
        code = subprocess.run(command, env=environment, stdout=sys.stderr, check=False).returncode
    except OSError as error:
        raise EgeriaError("TRIAL_FAILED", f"{text} cannot be started: {error}") from error
    if code != 0:
        raise EgeriaError("TRIAL_FAILED", f"{text} ended with code {code}; its own message stands above")
    if not report.exists():
        raise EgeriaError(
            "TRIAL_FAILED",
            f"{text} ended before step {steps}; give fewer --steps, and see that it calls egeria.attach()",
        )
    return Reported.read(report)


def describe(found: Comparison) -> str:
    """Returns the comparison in sentences."""
    above = f"{100 * abs(found.over):.1f} % {'above' if found.over > 0 else 'below'} the plain one's"
    lines = [
        f"Steps {found.first} to {found.last}: the mean loss is {found.plain:.4f} without freezing, and "
        f"{found.frozen:.4f} with {found.prefix} of {found.modules} layer modules frozen, the first of them from step "
        f"{found.since} on.",
        f"The frozen training's loss is {above} (90 % interval {100 * found.least:+.1f} to {100 * found.most:+.1f} %).",
    ]
    if found.falls_behind:
        lines.append("Freezing falls behind: the frozen layers have to learn. Train without freezing, or freeze less.")
    else:
        lines.append("Freezing keeps up so far. That is no promise: compare a whole training once.")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit code 0 where freezing keeps up; 1 where it falls behind; 2 where nothing can be said."""
    parsed = parse_arguments(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="egeria-trial-") as folder:
            plain, frozen = (
                train(parsed.command, parsed.steps, freezes, pathlib.Path(folder)) for freezes in (False, True)
            )
        found = compare(plain, frozen)
    except EgeriaError as error:
        print(f"egeria trial: {error}", file=sys.stderr)
        return 2
    fields = {**dataclasses.asdict(found), "falls_behind": found.falls_behind}
    print(json.dumps(fields) if parsed.json else describe(found))
    return 1 if found.falls_behind else 0
