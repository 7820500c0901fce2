"""`egeria compile`, as the tests of job files run it."""

from __future__ import annotations

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
EGERIA = pathlib.Path(os.environ.get("EGERIA_BIN", ROOT / "build/dev/bin")) / "egeria"
EXAMPLE = ROOT / "deploy/examples/digits.yaml"


def compile_file(path: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command; it may fail."""
    return subprocess.run(
        [EGERIA, "compile", str(path), *arguments], check=False, capture_output=True, text=True, timeout=60
    )
