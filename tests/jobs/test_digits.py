"""The digits by a job file on this machine: a signal breaks the run, and the next one ends as if nothing had."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from job_files import EGERIA, ROOT

# A folder that a careless script would take apart.
FOLDER = 'it\'s a "folder" with 100%j'

JOB = """
name: digits
application:
  command: [egeria-train, --task, digits, --data, "{{data}}/digits.bin", --seed, 0, --epochs, {epochs},
            --schedule, step, --lr-milestones, 0.6]
  arguments: [--checkpoint, "{{checkpoints}}/digits.pt", --resume, --stop-on-signal,
              --summary, "{{output}}/summary.json"]
  path: [{bin}, {python}]
data: {{folders: [data]}}
resources: {{nodes: 2, ranks_per_node: 1, time_limit: {limit}}}
egeria: {{controller: {controller}, cache: {cache}}}
checkpoints: {{folder: checkpoints-{name}, signal_before: 30s}}
output: {{folder: out-{name}}}
"""


class Digits:
    """Job files of the digits in one folder, each with an output and checkpoints of its own."""

    def __init__(self, parent: pathlib.Path) -> None:
        self.folder = parent / FOLDER
        (self.folder / "data").mkdir(parents=True)
        export = ROOT / "deploy/digits/export_digits.py"
        subprocess.run([sys.executable, export, self.folder / "data/digits.bin"], check=True)

    def file(self, name: str, epochs: int, controller: str = "none", cache: str = "none", limit: object = 0) -> str:
        places = {"bin": EGERIA.parent, "python": pathlib.Path(sys.executable).parent}
        file = self.folder / f"{name}.yaml"
        file.write_text(JOB.format(name=name, epochs=epochs, controller=controller, cache=cache, limit=limit, **places))
        return str(file)

    def summary(self, name: str) -> dict:
        return json.loads((self.folder / f"out-{name}/summary.json").read_text())["runs"][0]


def run_egeria(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [EGERIA, *words], env=os.environ | (environment or {}), check=False, capture_output=True, text=True, timeout=120
    )


def egeria(*words: str, environment: dict[str, str] | None = None) -> str:
    result = run_egeria(*words, environment=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def state_of(file: str, environment: dict[str, str] | None = None) -> str:
    """The state of what was submitted; a busy Slurm may have to be asked again."""
    for _ in range(10):
        result = run_egeria("status", file, environment=environment)
        if result.returncode == 0:
            return result.stdout.split(": ", 1)[1].rsplit(" (", 1)[0]
    raise AssertionError(result.stderr)


def wait_for_end(file: str, environment: dict[str, str] | None = None, patience: float = 600) -> list[str]:
    """Waits for the end of what was submitted; gives the states that it went through."""
    states: list[str] = []
    deadline = time.monotonic() + patience
    while True:
        state = state_of(file, environment)
        if state not in states[-1:]:
            states.append(state)
        if state not in ("waiting", "running", "completing", "configuring"):
            return states
        assert time.monotonic() < deadline, (states, egeria("logs", file, environment=environment))
        time.sleep(0.5)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    return Digits(tmp_path_factory.mktemp("digits"))


def test_a_run_that_a_signal_stops_goes_on_and_ends_the_same(digits: Digits) -> None:
    whole, broken = digits.file("whole", 60), digits.file("broken", 60)
    egeria("submit", whole)
    assert wait_for_end(whole)[-1] == "finished", egeria("logs", whole)
    egeria("submit", broken)
    log = digits.folder / "out-broken/log.txt"
    while "of 60" not in log.read_text() and "step" not in log.read_text():
        time.sleep(0.1)
    session = json.loads((digits.folder / "out-broken/job.json").read_text())["id"].split(":")[0]
    subprocess.run(["pkill", "-USR1", "--session", session, "--full", "^egeria-run "], check=True)
    assert wait_for_end(broken)[-1].startswith("failed"), log.read_text()
    assert "all ranks stop after step" in log.read_text()
    assert digits.summary("broken")["steps"] < digits.summary("whole")["steps"]
    egeria("submit", broken)
    assert wait_for_end(broken)[-1] == "finished", log.read_text()
    for number in ("steps", "accuracy", "parameters_hash"):
        assert digits.summary("broken")[number] == digits.summary("whole")[number]
