"""egeria bench: records survive a process that is killed while it writes."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from bench.harness import records


def record(run: str, seed: int = 0, **fields) -> dict:
    return {
        "version": records.RECORD_VERSION,
        "task": "digits",
        "profile": "small",
        "settings": "a",
        "ranks": 2,
        "seed": seed,
        "run": run,
        "run_hash": "b",
        **fields,
    }


def test_what_was_appended_is_read(tmp_path: pathlib.Path):
    file = records.file_of(tmp_path, "digits")
    assert records.read(file) == []
    records.append(file, record("plain"))
    records.append(file, record("auto", final=0.5))
    assert [entry["run"] for entry in records.read(file)] == ["plain", "auto"]


def test_a_line_that_was_cut_off_is_passed_over_and_does_not_spoil_the_next(tmp_path: pathlib.Path):
    file = records.file_of(tmp_path, "digits")
    records.append(file, record("plain"))
    records.append(file, record("auto"))
    file.write_bytes(file.read_bytes()[:-20])
    assert [entry["run"] for entry in records.read(file)] == ["plain"]
    records.append(file, record("staged"))
    assert [entry["run"] for entry in records.read(file)] == ["plain", "staged"]


def test_a_repeated_run_replaces_its_record(tmp_path: pathlib.Path):
    file = records.file_of(tmp_path, "digits")
    for final in (0.1, 0.2):
        records.append(file, record("plain", final=final))
    records.append(file, record("plain", seed=1, final=0.3))
    assert [entry["final"] for entry in records.read(file)] == [0.2, 0.3]


def test_records_of_another_version_do_not_count(tmp_path: pathlib.Path):
    file = records.file_of(tmp_path, "digits")
    records.append(file, {**record("plain"), "version": records.RECORD_VERSION + 1})
    assert records.read(file) == []


def test_constants_of_older_records_have_their_present_names(tmp_path: pathlib.Path):
    file = records.file_of(tmp_path, "digits")
    records.append(file, record("auto", options={"area_left": 0.02, "least_readings": 8, "start": 0.8}))
    (entry,) = records.read(file)
    assert entry["options"] == {"lr_area_left": 0.02, "min_readings": 8, "start": 0.8}
