#!/usr/bin/env python3
"""Runs training scripts of strangers with Egeria and without, and compares what comes out.

    python tests/compat/run.py                  all of them: one line each
    python tests/compat/run.py --only 'gpt|vit' those whose names match
    python tests/compat/run.py --ci             those that continuous integration runs
    python tests/compat/run.py --write          writes what was found into docs/reference/compatibility.md

Each script runs five times, in processes of their own: plain; observed; with the default policy; with a freeze; and
frozen by hand at the same steps without Egeria. Exit code 0: each is as its declaration says.

It needs the package `egeria` on PYTHONPATH, its programs in EGERIA_BIN or on PATH, and what deploy/install.sh --tests
installs.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
_SUPPORT = HERE.parent / "worker" / "python" / "support"
sys.path[:0] = [str(HERE), str(_SUPPORT)]
_PACKAGES = HERE.parents[1] / ".venv" / "compat"  # deploy/install.sh makes it
if _PACKAGES.exists():
    sys.path.append(str(_PACKAGES))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(_PACKAGES))))

import preloaded
import table
from scripts import Script, all_scripts

_LIBRARIES = [
    "torchvision_operators",
    *("torchvision", "timm", "peft", "accelerate", "lightning.pytorch"),
    *("transformers.trainer", "transformers.trainer_seq2seq"),
]
_TIMEOUT = 240.0  # seconds of one run
_FROM = 0.3  # the part of the steps after which layers freeze


@dataclasses.dataclass
class Row:
    """A row says what became of a script; table.py says what is in the columns."""

    script: Script
    watched: str = ""
    froze: str = ""
    as_by_hand: str = ""
    observed: str = ""
    told: list[str] = dataclasses.field(default_factory=list)
    last_lines: list[str] = dataclasses.field(default_factory=list)
    faults: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    def line(self) -> str:
        outcome = "; ".join(self.faults) if self.faults else self.froze or "ok"
        return f"{'FAIL' if self.faults else 'ok  '} {self.seconds:5.1f} s  {self.script.name}: {outcome}"


class Runner:
    """Runs scripts in a folder of its own."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder

    def run(self, script: Script, mode: str, freezes: list[Any]) -> list[dict[str, Any]]:
        """The results of all ranks. One that ended otherwise has an "error"."""
        folder = self._folder / script.name / mode
        folder.mkdir(parents=True)
        result = folder / "result"
        facts = json.dumps({"steps": script.steps, "freezes": freezes})
        arguments = [script.name, mode, str(result), facts]
        process = self._start(script, arguments, folder, _environment(script, mode, folder))
        try:
            code = process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            code = -1
        results = []
        for rank in range(script.ranks):
            file = pathlib.Path(f"{result}.{rank}")
            read = (
                json.loads(file.read_text())
                if file.exists()
                else {"error": f"no result of rank {rank}, exit code {code}"}
            )
            if code != 0 and "error" not in read:
                read["error"] = f"exit code {code}"
            results.append(read)
        lines = (folder / "log").read_text(errors="replace").splitlines()
        results[0]["lines"] = [line for line in lines if line.startswith("egeria")]
        return results

    def _start(self, script: Script, arguments: list[str], folder: pathlib.Path, environment: dict[str, str]) -> Any:
        log = folder / "log"
        program = str(HERE / "one_shape.py")
        if script.launcher in ("torchrun", "accelerate"):
            launch = {
                "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", str(script.ranks)],
                "accelerate": ["accelerate.commands.launch", "--cpu", "--num_processes", "1"],
            }[script.launcher]
            command = [sys.executable, "-m", *launch, program, *arguments]
            with log.open("wb") as output:
                return subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=folder)
        errors = folder / "errors"
        if script.ranks > 1 and script.launcher is None:
            return preloaded.Ranks(program, arguments, log, environment, script.ranks, folder)
        return preloaded.Process(program, arguments, log, environment, folder, errors)


def _environment(script: Script, mode: str, folder: pathlib.Path) -> dict[str, str]:
    given = {"TMPDIR": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    if mode == "observe":
        given["EGERIA_OBSERVE"] = "1"
    if mode == "freeze":
        entries = [{"fraction": _FROM, "frozen_prefix": script.prefix}]
        given |= {"EGERIA_POLICY": "schedule", "EGERIA_POLICY_OPTIONS": json.dumps({"entries": entries})}
    return {**os.environ, **given}


def examine(script: Script, runner: Runner) -> Row:
    """Runs a script in all modes, and compares."""
    row = Row(script)
    start = time.monotonic()
    plain, observed, frozen = (runner.run(script, mode, []) for mode in ("plain", "observe", "freeze"))
    if script.refused is not None:
        _judge_refusal(row, plain, observed, frozen)
    elif not _ended(row, plain=plain, observed=observed, frozen=frozen):
        freezes = [session["freezes"] for session in frozen[0]["sessions"]]
        default, by_hand = runner.run(script, "default", []), runner.run(script, "hand", freezes)
        row.last_lines = default[0]["lines"]
        if not _ended(row, default=default, by_hand=by_hand):
            _compare(row, plain, observed, frozen, by_hand)
            _tell(row, observed, default, frozen)
    row.seconds = time.monotonic() - start
    return row


def _ended(row: Row, **runs: list[dict[str, Any]]) -> bool:
    """Whether a run did not come to its end."""
    for name, results in runs.items():
        for result in results:
            if "error" in result:
                text = result.get("refused") or result["error"].strip().splitlines()[0]
                row.faults.append(f"{name}: {text}")
                break
    return bool(row.faults)


def _judge_refusal(row: Row, plain: list[Any], *others: list[Any]) -> None:
    if not _ended(row, plain=plain):
        names = {result.get("refused") for results in others for result in results}
        if names != {row.script.refused}:
            row.faults.append(f"refused as {names}, not as {row.script.refused}")
    row.watched = f"refused: {row.script.refused}"


def _compare(row: Row, plain: list[Any], observed: list[Any], frozen: list[Any], by_hand: list[Any]) -> None:
    script = row.script
    counts = [[session["steps"] for session in r["sessions"]] for results in (observed, frozen) for r in results]
    wanted = list(script.counts) or [script.steps] * max(1, len(counts[0]))
    _check(row, "watched", "yes", all(count == wanted for count in counts), f"counted {counts[0]} steps, not {wanted}")
    same = _digests(plain) == _digests(observed)
    _check(row, "observed", "yes", same, "observed, it trains otherwise than plainly")
    sessions = [session for session in frozen[0]["sessions"] if session["steps"] == script.steps]
    text = ", ".join(
        f"{freezes[-1][1]} of {session['modules']}" for session in sessions if (freezes := session["switches"])
    )
    names = [session["freezes"] and session["freezes"][-1][1] for session in sessions]
    if not script.freezes:
        _check(row, "froze", "nothing", not any(names), "froze something")
        _check(row, "as_by_hand", "", _digests(frozen) == _digests(plain), "with nothing frozen, it trains otherwise")
        return
    _check(row, "froze", text, names and all(names), "froze nothing")
    same = _digests(frozen) == _digests(by_hand) != _digests(plain)
    _check(row, "as_by_hand", "yes", same, "frozen by hand, it trains otherwise")


def _tell(row: Row, *runs: list[Any]) -> None:
    row.told = sorted({name for results in runs for r in results for text in r["told"] for name in _name_of(text)})
    wanted = sorted(row.script.tells)
    if row.told != wanted:
        row.faults.append(f"told {row.told}, not {wanted}")


def _digests(results: list[Any]) -> list[str]:
    return [result["digest"] for result in results]


def _name_of(text: str) -> list[str]:
    return re.findall(r"\[([A-Z_]{3,})\]", text)[:1] or [text[:60]]


def _check(row: Row, column: str, text: str, holds: Any, fault: str) -> None:
    setattr(row, column, text if holds else "no")
    if not holds:
        row.faults.append(fault)


def _prepare() -> None:
    """Settings for all processes, and the interpreter that they are forks of."""
    path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(_SUPPORT), *map(os.path.abspath, path)]),
    }
    preloaded.MODULES = [*preloaded.MODULES, *_LIBRARIES]
    preloaded.start()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="scripts whose names match")
    parser.add_argument("--ci", action="store_true", help="scripts that continuous integration runs")
    parser.add_argument("--write", action="store_true", help="write their rows into docs/reference/compatibility.md")
    parser.add_argument("--jobs", type=int, default=3, help="scripts at a time (default 3)")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="keep logs in this new folder")
    arguments = parser.parse_args()
    scripts = [s for s in all_scripts() if re.search(arguments.only, s.name) and (s.ci or not arguments.ci)]
    _prepare()
    folder = arguments.keep or pathlib.Path(tempfile.mkdtemp(prefix="compat-"))
    rows = {}
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        ahead = {pool.submit(examine, script, Runner(folder)): script for script in scripts}
        for done in concurrent.futures.as_completed(ahead):
            rows[ahead[done].name] = done.result()
            print(done.result().line(), flush=True)
    if arguments.write:
        table.write(all_scripts(), rows)
    if arguments.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    failed = sum(bool(row.faults) for row in rows.values())
    print(f"{len(rows)} scripts, {failed} otherwise than declared")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
