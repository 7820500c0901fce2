"""Measurements are beside the records: one JSON file for each plain run, and one for the oracle made of them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from bench.harness.errors import BenchError


def measured_file(out: pathlib.Path, task: str, profile: str, seed: int) -> pathlib.Path:
    """The measurements of a plain run."""
    return out / f"{task}-{profile}-{seed}.json"


def oracle_file(out: pathlib.Path, task: str, profile: str) -> pathlib.Path:
    """The schedule of the oracle, and what it was made of."""
    return out / f"{task}-{profile}-oracle.json"


def read_measured(out: pathlib.Path, task: str, profile: str, seed: int) -> dict[str, Any]:
    """Raises BenchError [NO_MEASUREMENTS]."""
    return _read(measured_file(out, task, profile, seed), f"python -m bench.paper measure --seed {seed}")


def read_all_measured(out: pathlib.Path, task: str, profile: str) -> list[dict[str, Any]]:
    """All seeds' measurements, in the seeds' order. Raises BenchError [NO_MEASUREMENTS]."""
    files = [file for file in out.glob(f"{task}-{profile}-*.json") if file.stem.split("-")[-1].isdigit()]
    if not files:
        return [read_measured(out, task, profile, 0)]  # says what is missing
    return sorted((_read(file, "") for file in files), key=lambda measured: measured["seed"])


def read_oracle(out: pathlib.Path, task: str, profile: str) -> dict[str, Any] | None:
    """None where none has been made."""
    file = oracle_file(out, task, profile)
    return _read(file, "") if file.exists() else None


def _read(file: pathlib.Path, command: str) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BenchError("NO_MEASUREMENTS", f"there is no {file}; make it by `{command}`") from None
