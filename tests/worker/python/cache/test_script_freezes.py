"""A script that freezes by itself trains as it does without Egeria, to the bit, and is served meanwhile."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from cache_daemon import Daemon
from example_scripts import launch
from launching import HERE


def run(folder: pathlib.Path, *arguments: object) -> list[dict[str, Any]]:
    folder.mkdir()
    launch(HERE / "script_freezes_job.py", folder, *arguments, folder=folder)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("options", [[], ["--wrap-anew"], ["--compile"]])
def test_freezes_thaws_and_freezes_more(options: list[str], cache_daemon: Daemon, tmp_path: pathlib.Path):
    plain = run(tmp_path / "plain", *options)
    cached = run(tmp_path / "cached", "--cache", cache_daemon.address, *options)
    for one, other in zip(plain, cached):
        assert one["losses"] == other["losses"] and one["weights"] == other["weights"]
        before, first, between, last = other["skipped"]
        if "--compile" in options:
            assert last == 0 and "COMPILED" in other["reason"]
        else:
            assert before == 0 and first > 40 and between == first and last > first + 20, other["skipped"]


@pytest.mark.parametrize("options", [[], ["--spoil"]])
def test_a_deeper_prefix_is_computed_from_behind_a_shallower_one(
    options: list[str], cache_daemon: Daemon, tmp_path: pathlib.Path
):
    plain = run(tmp_path / "plain", "--deepen")
    cached = run(tmp_path / "cached", "--cache", cache_daemon.address, "--deepen", *options)
    for one, other in zip(plain, cached):
        assert one["losses"] == other["losses"] and one["weights"] == other["weights"]
        first, second, third, end = other["spared"]
        assert first == second == 0 and other["skipped"][-1] > 80, other
        if options:
            assert third == end == 0, other
        else:  # where the second prefix has not got all samples when the third one freezes, the first one has them
            assert third > 0 and end > third, other
