"""Commands that a test runs as a user would."""

from __future__ import annotations

import os
import pathlib
import subprocess


def call(*command: object, folder: pathlib.Path, seconds: float = 120, **variables: str) -> str:
    """Returns what a command prints; it must succeed. Nothing of this environment's Python path reaches it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EGERIA_", "PYTHONPATH"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**kept, **variables},
        text=True,
        capture_output=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"{command[0]}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-6000:]}"
    return done.stdout + done.stderr
