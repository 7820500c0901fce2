"""Benchmarks write what they have measured as records that the reports can read."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench.harness import measured
from benchmarks.recording import Recording, add_record_option, percents


def test_a_record_has_medians_and_no_folder_of_this_machine(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "measured" / "steps.json"
    file.parent.mkdir()
    program = ROOT / "tests" / "benchmarks" / "frozen_forward_step.py"
    monkeypatch.setattr("sys.argv", [str(program), str(tmp_path), "--depth", "20", "--record", str(file)])
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--depth")
    add_record_option(parser)
    recording = Recording("form")
    recording.add("fused", percents([0.70449, 0.6, 0.9]), "%", "of the plain step")
    recording.add("fused", [1234.5678], "ms", "a step")
    recording.add("plain", [0.012345, 0.1], "s", "a step")
    recording.write(parser.parse_args().record, rounds=3)
    assert str(tmp_path) not in file.read_text()
    record = json.loads(file.read_text())
    assert record["arguments"] == "DIR --depth 20"
    (tmp_path / "measurements.md").write_text("<!-- measured/steps.json -->\n<!-- end -->\n")
    (text,) = measured.pages(tmp_path).values()
    assert text.splitlines()[1:5] == [
        "| form | of the plain step | a step |",
        "|---|---|---|",
        "| fused | 70.4 % (60 to 90) | 1,235 ms |",
        "| plain |  | 0.0562 s (0.0123 to 0.1) |",
    ]
    assert "Measured by `tests/benchmarks/frozen_forward_step.py DIR --depth 20` on " in text


def test_without_a_file_nothing_is_written(tmp_path: pathlib.Path):
    Recording().write(None, rounds=1)
    assert list(tmp_path.iterdir()) == []
