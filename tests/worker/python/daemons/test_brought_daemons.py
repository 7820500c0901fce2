"""A job without a launcher brings its own controller, which freezes, and leaves nothing behind however the job ends."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest
from harness import free_port
from launching import HERE, Program
from preloaded import Ranks, rank_environment

import egeria
from egeria import _native
from egeria.training import job_daemons


class Place:
    """A temporary folder of one job's; every program that the job starts has it in its environment."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.variables = {"TMPDIR": str(folder), "EGERIA_CONTROLLER": "", "EGERIA_CACHE": "none"}

    def processes(self) -> list[str]:
        mark = f"TMPDIR={self.folder}\0".encode()
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue  # it has ended
        return found

    def is_clean(self, within: float = 10.0) -> bool:
        return until(lambda: not self.processes() and not list(self.folder.glob("egeria-run-*")), within)


def until(condition: Callable[[], bool], within: float) -> bool:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(name="place")
def place_fixture() -> Iterator[Place]:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="brought-", dir="/tmp"))  # short: a socket is in it
    yield Place(folder)
    shutil.rmtree(folder)


def run(place: Place, tmp_path: pathlib.Path, mode: str, code: int = 0, **variables: str) -> str:
    with Program(tmp_path, "brought_job.py", mode, environment={**place.variables, **variables}) as job:
        assert job.wait() == code, job.text()
        assert place.is_clean(within=0.5), place.processes()  # the process waits for it at its end
        return job.text()


def test_a_plain_script_freezes_and_nothing_is_left(place: Place, tmp_path: pathlib.Path):
    out = run(place, tmp_path, "exits")
    assert "prefix 2" in out and "1 freeze" in out
    assert "warning" not in out and "error" not in out
    assert float(re.search(r"attach ([\d.e-]+)", out).group(1)) < 0.5, "0.01 s on a machine that is not busy"


def test_nothing_is_left_after_an_exception(place: Place, tmp_path: pathlib.Path):
    out = run(place, tmp_path, "raises", code=1)
    assert "prefix 2" in out and "a mistake of the script" in out


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_after_a_signal(number: signal.Signals, place: Place, tmp_path: pathlib.Path):
    with Program(tmp_path, "brought_job.py", "waits", environment=place.variables) as job:
        assert until(lambda: "waits" in job.text(), 120), job.text()
        assert len([process for process in place.processes() if "egeria-" in process]) >= 2
        (folder,) = place.folder.glob("egeria-run-*")
        assert folder.stat().st_mode & 0o777 == 0o700
        job.process.send_signal(number)
        job.wait()
        assert place.is_clean(), place.processes()
        assert "prefix 2" in job.text() and "egeria-run warning" not in job.text()


def test_nothing_is_left_where_a_forked_child_outlives_the_training(place: Place, tmp_path: pathlib.Path):
    with Program(tmp_path, "brought_job.py", "forks", environment=place.variables) as job:
        assert until(lambda: "child" in job.text(), 120), job.text()
        job.process.kill()
        child = int(re.search(r"child (\d+)", job.text()).group(1))
        try:
            assert place.is_clean(), place.processes()
        finally:
            os.kill(child, signal.SIGKILL)
        assert "prefix 2" in job.text(), "the end of the first child ended no daemon"


def test_two_models_share_the_daemons_of_their_process(place: Place, tmp_path: pathlib.Path):
    out = run(place, tmp_path, "two models")
    assert out.count("prefix 2") == 2 and re.findall(r"daemons (\d)", out) == ["1", "1"]


def test_a_notebook_attaches_again_and_nothing_piles_up(place: Place, tmp_path: pathlib.Path):
    out = run(place, tmp_path, "attaches again")
    assert out.count("prefix 2") == 3 and re.findall(r"daemons (\d)", out) == ["1", "0", "1", "0", "1"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_loader_have_no_part_in_it(start: str, place: Place, tmp_path: pathlib.Path):
    out = run(place, tmp_path, f"workers {start}")
    assert "prefix 2" in out and re.findall(r"daemons (\d)", out) == ["1"]


def test_a_cache_comes_with_the_first_ids_and_goes_with_the_job(place: Place, tmp_path: pathlib.Path):
    folder = place.folder / "cache"
    del place.variables["EGERIA_CACHE"]
    variables = {"EGERIA_CACHE_FOLDER": str(folder), "EGERIA_CACHE_USE": "always"}
    out = run(place, tmp_path, "exits", **variables)
    assert "prefix 2" in out and not folder.exists(), "no batch has ids"
    with Program(tmp_path, "brought_job.py", "has ids", environment={**place.variables, **variables}) as job:
        job.succeed()
        assert "before {}" in job.text() and re.search(r"hits [1-9]", job.text()), job.text()
        assert place.is_clean(), place.processes()
    assert folder.is_dir() and not (folder / "cache.sock").exists()


def of_ranks(out: str) -> list[tuple[str, ...]]:
    found = re.findall(r"rank (\d) daemons (\d) switches (.*) weights (\w+)", out)
    return [ranks for _, *ranks in sorted(found)]


@pytest.mark.parametrize("start", ["torchrun", "fork", "spawn"])
def test_two_ranks_find_one_controller_and_freeze_alike(start: str, place: Place, tmp_path: pathlib.Path):
    if start == "torchrun":
        log = tmp_path / "log"
        job = Ranks(HERE / "brought_job.py", ["ranks"], log, {**os.environ, **place.variables}, ranks=2)
        try:
            assert job.wait(200) == 0, log.read_text()
            assert place.is_clean(), place.processes()
        finally:
            job.kill()
        out = log.read_text()
    else:
        out = run(place, tmp_path, f"ranks {start}")
    (first, *of_first), (second, *of_second) = of_ranks(out)
    assert (first, second) == ("1", "0") and of_first == of_second and ", 2)]" in of_first[0]
    assert "warning" not in out


def test_ranks_of_another_node_are_told_what_to_do(place: Place, tmp_path: pathlib.Path):
    port = free_port()
    nodes = [{**rank_environment(rank, 2, port), **place.variables, "EGERIA_NODE": f"n{rank}"} for rank in range(2)]
    jobs = [Program(tmp_path, "brought_job.py", "ranks", environment=node) for node in nodes]
    with jobs[0], jobs[1]:
        for job in jobs:
            job.succeed()
            assert "not watched: [NO_LINK] node n1 does not reach the controller of node n0" in job.text()
            assert "daemons 0 switches []" in job.text()
        assert place.is_clean(), place.processes()


@pytest.mark.parametrize("variables", [{"EGERIA_CONTROLLER": "none"}, {"EGERIA_ENABLED": "0"}])
def test_nothing_is_brought_where_it_is_switched_off(
    variables: dict[str, str], place: Place, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    out = run(place, tmp_path, "is switched off", **variables)
    assert "prefix 0" in out and "warning" not in out


def test_a_controller_that_cannot_start_is_told_of_once(place: Place, tmp_path: pathlib.Path):
    out = run(place, tmp_path, "in vain", EGERIA_CONTROLLER_STATE_DIR="/proc/nowhere")
    assert out.count("The controller could not start") == 1 and "prefix 0" in out


def test_missing_programs_are_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    import torch

    monkeypatch.delenv("EGERIA_CONTROLLER")
    monkeypatch.setattr(job_daemons, "_program", lambda: "/nowhere/egeria-run")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = egeria.attach(model, optimizer)
    for _ in range(4):
        model(torch.randn(4, 4)).mean().backward()
        optimizer.step()
    session.close()
    (told,) = [record.getMessage() for record in caplog.records if "controller" in record.getMessage()]
    assert "[NO_LINK] there is no controller" in told and "/nowhere/egeria-run" in told
    assert "there is no controller" in capsys.readouterr().out


def test_programs_are_found_beside_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    found = pathlib.Path(job_daemons._program())
    assert found == pathlib.Path(os.environ["EGERIA_BIN"]) / "egeria-run"
    elsewhere = tmp_path / "lib" / "python3" / "site-packages" / "egeria" / "_native.so"
    monkeypatch.setattr(_native, "__file__", str(elsewhere))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(FileNotFoundError, match="reinstall egeria"):
        job_daemons._program()
    (tmp_path / "bin").mkdir()
    shutil.copy("/bin/true", tmp_path / "bin" / "egeria-run")
    assert job_daemons._program() == str(tmp_path / "bin" / "egeria-run")
