"""A controller that dies, stops or never was, and trainings that end badly: the training does not notice."""

from __future__ import annotations

import json
import pathlib
import signal
import time
from typing import Any

import pytest
from harness import Controller, wait_until
from launching import Program

STEPS = 30


def records(folder: pathlib.Path, ranks: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The training without Egeria, on two ranks."""
    folder = tmp_path_factory.mktemp("plain")
    with Program(folder, "session_job.py", "--out", folder, "--steps", STEPS, ranks=2) as job:
        job.succeed()
    return records(folder, 2)


@pytest.mark.parametrize("fault", ["killed", "stopped", "killed and back", "absent"])
def test_the_training_is_the_same_whatever_happens_to_the_controller(
    fault: str, plain: list[dict[str, Any]], tmp_path: pathlib.Path
):
    controller = Controller(tmp_path)
    if fault != "absent":
        controller.start()
    try:
        with Program(
            tmp_path,
            "session_job.py",
            "--out",
            tmp_path,
            "--steps",
            STEPS,
            "--egeria",
            "act",
            "--interval",
            5,
            "--pause-at",
            12,
            ranks=2,  # too few readings for a freeze
            environment={"EGERIA_CONTROLLER": controller.address},
        ) as job:
            wait_until(lambda: (tmp_path / "paused0").exists() and (tmp_path / "paused1").exists(), 300, "the pause")
            if fault.startswith("killed"):
                controller.kill()
            if fault == "stopped":
                controller.signal(signal.SIGSTOP)
            if fault.endswith("back"):
                controller.start()
            (tmp_path / "go").touch()
            job.succeed()
            text = job.text()
    finally:
        if controller.process is not None:
            controller.__exit__()
    for one, other in zip(plain, records(tmp_path, 2)):
        assert one["losses"] == other["losses"] and one["weights"] == other["weights"]
        assert other["switches"] == []
    assert "Traceback" not in text and f"egeria: {STEPS} steps" in text


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("ending", ["raise", "interrupt", "forget"])
def test_the_process_ends_as_it_would_without_egeria(ending: str, ranks: int, tmp_path: pathlib.Path):
    with Controller(tmp_path) as controller:
        with Program(
            tmp_path,
            "session_job.py",
            "--out",
            tmp_path,
            "--steps",
            12,
            "--egeria",
            "act",
            "--end",
            ending,
            "--wrap",
            "ddp" if ranks > 1 else "plain",
            "--pause-at",
            8,
            ranks=ranks,
            environment={"EGERIA_CONTROLLER": controller.address},
        ) as job:
            wait_until(lambda: (tmp_path / "paused0").exists(), 300, "the pause")
            controller.signal(signal.SIGSTOP)  # it cannot answer a farewell
            (tmp_path / "go").touch()
            begin = time.monotonic()
            code = job.wait()
            seconds = time.monotonic() - begin
            text = job.text()
    if ending == "forget":
        assert code == 0 and "egeria: 12 steps" in text
    else:
        assert code != 0 and ("the user's own" if ending == "raise" else "KeyboardInterrupt") in text
    assert seconds < 60


def test_a_data_loader_forks_and_spawns_workers_beside_an_open_line(tmp_path: pathlib.Path):
    with Controller(tmp_path) as controller:
        with Program(
            tmp_path, "session_loader_job.py", tmp_path, environment={"EGERIA_CONTROLLER": controller.address}
        ) as job:
            job.succeed()
            text = job.text()
    found = json.loads((tmp_path / "loader.json").read_text())
    assert found == {"fork": 20, "spawn": 8, "steps": 28, "sent": True}
    assert "Traceback" not in text
