"""The digits train on this machine without a break, and on a Slurm of two nodes whose time limit breaks them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import slurm_cluster
from test_digits import Digits, egeria, state_of, wait_for_end

if reason := slurm_cluster.why_not():
    pytest.skip(reason, allow_module_level=True)

SECONDS = 45  # a training that Slurm signals after half a minute at the latest takes so long


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    return Digits(tmp_path_factory.mktemp("digits"))


def test_a_job_that_its_time_limit_breaks_ends_as_one_that_nothing_breaks(
    digits: Digits, slurm: dict[str, str]
) -> None:
    # Without freezing, whose decisions follow the clock, the two must end with the same parameters to the bit.
    trial = digits.file("trial", 30)
    egeria("submit", trial)
    assert wait_for_end(trial)[-1] == "finished", egeria("logs", trial)
    epochs = 1 + int(30 * SECONDS / digits.summary("trial")["seconds"])
    local = digits.file("local", epochs)
    egeria("submit", local)
    assert wait_for_end(local)[-1] == "finished", egeria("logs", local)
    broken = digits.file("slurm", epochs, limit="1m")
    egeria("submit", broken, "--to", "slurm", environment=slurm)
    states = wait_for_end(broken, slurm, patience=1200)
    log = egeria("logs", broken, environment=slurm)
    assert states[-1] == "finished", (states, log)
    assert "The time limit is near: the ranks get SIGUSR1." in log, log
    assert "all ranks stop after step" in log, log
    assert "waiting" in states[1:], states  # Slurm took it back into its queue
    for number in ("steps", "accuracy", "parameters_hash"):
        assert digits.summary("slurm")[number] == digits.summary("local")[number]


def test_nodes_have_a_controller_and_a_cache_and_freeze(digits: Digits, slurm: dict[str, str]) -> None:
    cache = digits.folder.parent / "cache"
    job = digits.file("frozen", 60, controller="own", cache=str(cache))
    egeria("submit", job, "--to", "slurm", environment=slurm)
    assert wait_for_end(job, slurm)[-1] == "finished", egeria("logs", job, environment=slurm)
    log = egeria("logs", job, environment=slurm)
    assert "freeze, frozen prefix" in log, log
    assert digits.summary("frozen")["ranks_identical"]
    assert digits.summary("frozen")["samples_sent"] > 0
    assert (cache / "egeria-cache.log").exists()


def test_a_job_on_slurm_can_be_cancelled(digits: Digits, slurm: dict[str, str]) -> None:
    job = digits.file("cancelled", 100_000)
    egeria("submit", job, "--to", "slurm", environment=slurm)
    while state_of(job, slurm) != "running":
        pass
    egeria("cancel", job, environment=slurm)
    assert wait_for_end(job, slurm)[-1] == "cancelled"
