"""Several programs share what is kept, and a training around a cached network is what it would be."""

from __future__ import annotations

import json
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import preloaded
import pytest
from cache_daemon import Daemon
from launching import Program

preloaded.MODULES += ["lightning", "transformers.trainer"]

PLACES = {"TMPDIR": "", "EGERIA_CONTROLLER": "none"}


def results(job: Program) -> list[dict[str, Any]]:
    job.succeed()
    # The ranks print at the same time, so that something else may stand behind a result.
    found = [json.JSONDecoder().raw_decode(text)[0] for text in job.text().split("RESULT ")[1:]]
    assert found, job.text()
    return found


def run(folder: pathlib.Path, mode: str, cache: str, rate: float = 0.05, ranks: int = 1, **variables: str) -> Any:
    with Program(folder, "cached_job.py", mode, cache, rate, ranks=ranks, environment=variables) as job:
        found = results(job)
        return found[0] if ranks == 1 else found


def test_a_second_run_with_another_rate_finds_what_the_first_has_kept(
    cache_daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    first = run(tmp_path, "loop", cache_daemon.address)
    assert first["weights"] == run(tmp_path, "loop", "plain")["weights"]
    assert first["served"] > 0 and 12 <= first["miss_absent"] <= 32, first  # in smaller batches they may differ
    second = run(tmp_path, "loop", cache_daemon.address, 0.2)
    assert second["weights"] == run(tmp_path, "loop", "plain", 0.2)["weights"] != first["weights"]
    assert "miss_absent" not in second and second["served"] > first["served"], second


@pytest.mark.parametrize("mode", ["attached", "trainer", "lightning"])
def test_in_a_framework(mode: str, cache_daemon: Daemon, tmp_path: pathlib.Path) -> None:
    cached = run(tmp_path, mode, cache_daemon.address)
    assert cached["weights"] == run(tmp_path, mode, "plain")["weights"]
    assert cached["served"] >= 4, cached


def test_ranks_of_a_node_share(cache_daemon: Daemon, tmp_path: pathlib.Path) -> None:
    found = run(tmp_path, "loop", cache_daemon.address, ranks=2)
    plain = run(tmp_path, "loop", "plain")
    assert [rank["weights"] for rank in found] == [plain["weights"]] * 2
    alone = run(tmp_path, "loop", cache_daemon.address)
    assert all(rank["served"] > 4 for rank in found) and "miss_absent" not in alone, (found, alone)


def test_inside_a_wrapper_that_talks_to_other_ranks(cache_daemon: Daemon, tmp_path: pathlib.Path) -> None:
    found = run(tmp_path, "ddp", cache_daemon.address, ranks=2)
    plain = run(tmp_path, "loop", "plain")
    assert [rank["weights"] for rank in found] == [plain["weights"]] * 2
    assert all(rank["served"] > 4 for rank in found), found


def test_a_sharded_network_is_computed(cache_daemon: Daemon, tmp_path: pathlib.Path) -> None:
    found = run(tmp_path, "sharded", cache_daemon.address, ranks=2)
    plain = run(tmp_path, "sharded", "plain", ranks=2)
    assert [rank["weights"] for rank in found] == [rank["weights"] for rank in plain]
    assert all(rank["served"] == 0 and "[SHARDED]" in rank["reason"] for rank in found), found


@pytest.fixture(name="folder")
def folder_fixture() -> Iterator[pathlib.Path]:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cached-", dir="/tmp"))  # short: a socket is in it
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("cache", ["named", "default"])
def test_a_daemon_is_started_and_ends_with_its_last_user(
    cache: str, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    place = folder / "cache"
    variables = {"TMPDIR": str(folder), "EGERIA_CONTROLLER": "none"}
    variables["EGERIA_CACHE" if cache == "default" else "UNUSED"] = str(place)
    served = 0
    for number in range(2):
        found = run(tmp_path, "loop", str(place) if cache == "named" else "default", **variables)
        assert found["served"] > served, found
        served = found["served"]
    assert "miss_absent" not in found
    mark = f"TMPDIR={folder}\0".encode()
    assert not [process for process in pathlib.Path("/proc").glob("[0-9]*") if mark in _environment(process)]


def _environment(process: pathlib.Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""  # it has ended
