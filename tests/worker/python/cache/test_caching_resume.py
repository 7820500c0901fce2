"""A training that is killed while its cache is being filled, and resumed: no stale entry, and what is there is
used."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import signal
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from cache_daemon import Daemon
from harness import wait_until
from launching import Program

HELD_AT = 6  # two steps after the freeze, of an epoch's four
BOTH_RANKS = 2 * 20  # samples of a step


def train(folder: pathlib.Path, out: pathlib.Path, job: str, *arguments: object) -> list[dict[str, Any]]:
    with Program(folder, "caching_resume_job.py", out, *arguments, ranks=2, environment={"EGERIA_JOB_ID": job}) as run:
        run.succeed()
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module", name="plain_weights")
def plain_weights_fixture(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[str]]:
    """The weights of a training without a cache that freezes at this step, and is not interrupted."""

    @functools.cache
    def weights(freeze_at: int) -> list[str]:
        folder = tmp_path_factory.mktemp("plain")
        records = train(folder, folder, str(uuid.uuid4()), "--freeze-at", freeze_at)
        return [record["weights"] for record in records]

    return weights


def kill_while_it_fills(folder: pathlib.Path, out: pathlib.Path, job: str, address: str, held_at: int) -> int:
    """Returns how many entries were stored until then."""
    held = [out / f"held{rank}.json" for rank in (0, 1)]
    with Program(
        folder,
        "caching_resume_job.py",
        out,
        "--cache",
        address,
        "--hold-at",
        held_at,
        ranks=2,
        environment={"EGERIA_JOB_ID": job},
    ) as run:
        wait_until(lambda: all(path.exists() for path in held) or run.process.poll() is not None, 300, "a freeze")
        assert run.process.poll() is None, run.text()
        records = [json.loads(path.read_text()) for path in held]
        for record in records:
            os.kill(record["pid"], signal.SIGKILL)
        assert run.wait() != 0
    return sum(record["counters"]["cache_stored"] for record in records)


@pytest.mark.parametrize(
    "held_at,resume,freeze_at",
    [(HELD_AT, 5, 4), (HELD_AT, 3, 4), (7, 3, 5)],
    ids=["while it fills", "before the freeze", "before a freeze of other weights"],
)
def test_what_was_stored_before_the_kill_is_used_where_the_weights_are_the_same(
    held_at: int,
    resume: int,
    freeze_at: int,
    plain_weights: Callable[[int], list[str]],
    cache_daemon: Daemon,
    tmp_path: pathlib.Path,
):
    out, job = tmp_path / "out", str(uuid.uuid4())
    out.mkdir()
    stored = kill_while_it_fills(tmp_path, out, job, cache_daemon.address, held_at)
    assert stored == (held_at - 4) * BOTH_RANKS
    # A new id at each launch, as egeria-run gives it: the checkpoint says where to look.
    resumed = train(
        tmp_path, out, str(uuid.uuid4()), "--cache", cache_daemon.address, "--resume", resume, "--freeze-at", freeze_at
    )
    assert [record["weights"] for record in resumed] == plain_weights(freeze_at)
    for record in resumed:
        assert record["counters"]["passes_skipped"] > 0
        assert record["counters"].get("failures", 0) == record["counters"]["cache_corrupt"] == 0
    first = sum(record["hits"]["1"] for record in resumed)
    second = sum(record["hits"]["2"] for record in resumed) - first
    if freeze_at != 4:  # other weights: step 7 asks for samples that were stored with those of step 4
        assert first == 0
    elif resume == 3:  # step 5 is proven with, step 6 finds what it had stored before
        assert first == BOTH_RANKS
    else:  # more than what step 7 has stored now
        assert first == 0 and second > BOTH_RANKS


def test_what_was_stored_before_an_exit_in_the_middle_is_used(
    plain_weights: Callable[[int], list[str]], cache_daemon: Daemon, tmp_path: pathlib.Path
):
    """A handler of SIGTERM that writes a checkpoint ends the process as if the training were over."""
    out = tmp_path / "out"
    out.mkdir()
    with Program(
        tmp_path, "caching_resume_job.py", out, "--cache", cache_daemon.address, "--exit-at", HELD_AT, ranks=2
    ) as run:
        run.succeed()
    resumed = train(tmp_path, out, str(uuid.uuid4()), "--cache", cache_daemon.address, "--resume", 3)
    assert [record["weights"] for record in resumed] == plain_weights(4)
    assert sum(record["hits"]["1"] for record in resumed) == BOTH_RANKS
