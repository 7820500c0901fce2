"""Starts session_job.py on two ranks."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
from typing import Any

from harness import Controller
from launching import HERE
from preloaded import Ranks

JOB = HERE / "session_job.py"


def run(
    folder: pathlib.Path, *arguments: object, seconds: float = 400, code: int = 0
) -> tuple[list[dict[str, Any]], str]:
    """Runs session_job.py on two ranks with a controller of their own; what each says, and what was printed."""
    folder.mkdir(exist_ok=True)
    log = folder / "output.log"
    with contextlib.ExitStack() as stack:
        controller = stack.enter_context(Controller(folder, "--log-level", "warning")).address
        job = Ranks(JOB, ["--out", folder, *arguments], log, variables(EGERIA_CONTROLLER=controller), ranks=2)
        stack.callback(job.kill)
        ended = job.wait(seconds)
    return found(folder, ended, log.read_text(), code)


def run_under_egeria_run(folder: pathlib.Path, *arguments: object) -> tuple[list[dict[str, Any]], str]:
    """The same, as users start it."""
    program = pathlib.Path(os.environ["EGERIA_BIN"]) / "egeria-run"
    command = [program, "--local-addr", "127.0.0.1", "--nproc-per-node", "2", JOB, "--out", folder, *arguments]
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env=variables(EGERIA_CONTROLLER=""),
    )
    return found(folder, done.returncode, done.stdout + done.stderr, 0)


def variables(**given: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EGERIA_")}
    return {**kept, "EGERIA_CACHE": "none", "EGERIA_CONTROLLER": "none", "OMP_NUM_THREADS": "1", **given}


def found(folder: pathlib.Path, ended: int, output: str, code: int) -> tuple[list[dict[str, Any]], str]:
    assert ended == code, output[-20000:]
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]
    assert len(records) == (2 if code == 0 else len(records))
    return records, output
