"""Starts session_job.py on two ranks, under egeria-run."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from typing import Any

from launching import HERE

RUN = pathlib.Path(os.environ["EGERIA_BIN"]) / "egeria-run"


def run(
    folder: pathlib.Path, *arguments: object, seconds: float = 400, code: int = 0
) -> tuple[list[dict[str, Any]], str]:
    """Runs session_job.py on two ranks; what each says, and what was printed."""
    folder.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EGERIA_")}
    command = [
        RUN,
        "--local-addr",
        "127.0.0.1",
        "--nproc-per-node",
        "2",
        HERE / "session_job.py",
        "--out",
        folder,
        *map(str, arguments),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**environment, "EGERIA_CACHE": "none", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ["PYTHONPATH"]},
    )
    assert done.returncode == code, (done.stdout + done.stderr)[-20000:]
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]
    assert len(records) == (2 if code == 0 else len(records))
    return records, done.stdout + done.stderr
