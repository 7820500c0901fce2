"""Readers of the data folder (docs/reference/benchmarks.md has its layout)."""

from __future__ import annotations

import pathlib

from bench.harness.errors import BenchError


def data_folder(data: pathlib.Path | None, name: str) -> pathlib.Path:
    """The folder of one data set. Raises BenchError [NO_DATA] where it is not there."""
    if data is None:
        raise BenchError("NO_DATA", f"this task reads {name}/; give the folder that holds it with --data")
    if not (data / name).is_dir():
        raise BenchError(
            "NO_DATA", f"there is no folder {data / name}; docs/reference/benchmarks.md says what must be in it"
        )
    return data / name


def unreadable(file: pathlib.Path, error: OSError) -> BenchError:
    """The error to raise where a file of a data set cannot be read."""
    return BenchError(
        "NO_DATA",
        f"cannot read {error.filename or file}: {error.strerror or error}; docs/reference/benchmarks.md "
        "says what must be in the data folder",
    )
