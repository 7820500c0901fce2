"""Records of finished runs: one JSON object a line, one file for each task."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

RECORD_VERSION = 1

# These values tell runs apart: a run with the same ones has been done.
_KEY = ("task", "profile", "settings", "ranks", "seed", "run", "run_hash")


# Constants of policies that have another name now than in older records.
_RENAMED = {
    "area_left": "lr_area_left",
    "least_readings": "min_readings",
    "most_modules": "max_modules",
    "thaw_rise": "unfreeze_rise",
}


def file_of(out: pathlib.Path, task: str) -> pathlib.Path:
    """Where the records of a task are."""
    return out / "records" / f"{task}.jsonl"


def append(file: pathlib.Path, record: Mapping[str, Any]) -> None:
    """Adds a record, which is on the disk when this returns. A process that is killed in the middle leaves at most a
    part of a line, which read() passes over and the next append() ends."""
    file.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(record, separators=(",", ":")) + "\n").encode()
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        if size > 0 and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        while line:
            line = line[os.write(descriptor, line) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_recording(out: pathlib.Path, name: str, text: str) -> None:
    """Writes what a run's policy observed, for `egeria replay`."""
    file = out / "recordings" / f"{name}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def read(file: pathlib.Path) -> list[dict[str, Any]]:
    """All whole records, of which a later one with the same key replaces an earlier one; [] without a file."""
    if not file.exists():
        return []
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in file.read_bytes().split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:  # an empty line, or one that was cut off
            continue
        if isinstance(record, dict) and record.get("version") == RECORD_VERSION:
            options = record.get("options") or {}
            record["options"] = {_RENAMED.get(name, name): value for name, value in options.items()}
            found[key(record)] = record
    return list(found.values())


def key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Equal for records of the same run."""
    return tuple(record[name] for name in _KEY)


def prefix_share(record: Mapping[str, Any], prefix: int) -> float:
    """Share of the parameters of a run's layer modules that its first `prefix` ones have, 0..1."""
    sizes = [module["parameters"] for module in record["modules"]]
    return sum(sizes[:prefix]) / max(1, sum(sizes))
