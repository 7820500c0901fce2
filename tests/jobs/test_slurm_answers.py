"""Tests of how `egeria` takes the answers and signals of Slurm, whose programs are shell scripts here."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest
from job_files import EGERIA, compile_file

JOB = """
name: job
application: {script: train.py}
resources: {nodes: 1, time_limit: 1h}
egeria: {controller: none, cache: none}
checkpoints: {folder: checkpoints, signal_before: 30s}
output: {folder: out}
"""


class Slurm:
    """A folder with a job file and with programs that PATH finds before Slurm's."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.file = folder / "egeria.yaml"
        self.file.write_text(JOB)
        (folder / "bin").mkdir()
        self.environment = os.environ | {"PATH": f"{folder}/bin:{os.environ['PATH']}", "FOLDER": str(folder)}
        self.program("sbatch", "echo 7")

    def program(self, name: str, script: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def egeria(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [EGERIA, words[0], str(self.file), *words[1:]]
        return subprocess.run(command, env=self.environment, check=False, capture_output=True, text=True, timeout=60)


@pytest.fixture
def slurm(tmp_path: pathlib.Path) -> Slurm:
    slurm = Slurm(tmp_path)
    submitted = slurm.egeria("submit", "--to", "slurm")
    assert submitted.returncode == 0, submitted.stderr
    return slurm


@pytest.mark.parametrize(
    ("answer", "exit_code", "state"),
    [
        ("PENDING", None, "waiting"),
        ("REQUEUED", None, "waiting"),
        ("RUNNING", None, "running"),
        ("SIGNALING", None, "running"),
        ("COMPLETING", None, "completing"),
        ("STAGE_OUT", None, "stage_out"),
        ("COMPLETED", 0, "finished"),
        ("FAILED", 3, "failed with exit code 3"),
        ("CANCELLED", None, "cancelled"),
        ("CANCELLED", 0, "cancelled"),
        ("TIMEOUT", None, "ended by its time limit"),
        ("NODE_FAIL", None, "ended without an exit code: Slurm says NODE_FAIL"),
        ("", 0, "finished"),
        ("", None, "ended without an exit code: it was cancelled, or its time limit killed it"),
    ],
)
def test_states(slurm: Slurm, answer: str, exit_code: int | None, state: str) -> None:
    slurm.program("squeue", f"echo {answer}")
    if exit_code is not None:
        (slurm.folder / "out/exit_code").write_text(f"{exit_code}\n")
    status = slurm.egeria("status")
    assert status.stdout.split(": ", 1)[1].startswith(state), status


def test_a_job_that_slurm_has_forgotten_is_judged_by_what_its_script_wrote(slurm: Slurm) -> None:
    slurm.program("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    (slurm.folder / "out/exit_code").write_text("0\n")
    assert "finished" in slurm.egeria("status").stdout


def test_a_failure_of_squeue_is_not_the_end_of_the_job(slurm: Slurm) -> None:
    slurm.program("squeue", "echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1")
    (slurm.folder / "out/exit_code").write_text("0\n")
    status = slurm.egeria("status")
    assert status.returncode != 0
    assert "Socket timed out" in status.stderr


def test_the_signal_before_the_limit_may_come_before_the_training_is_there(slurm: Slurm) -> None:
    slurm.program(
        "scontrol",
        """case $1 in
  show) until [ -s "$FOLDER/pid" ]; do sleep 0.05; done; kill -USR1 "$(<"$FOLDER/pid")"; echo localhost ;;
  requeue) echo "$2" >"$FOLDER/requeued"; kill -KILL "$(<"$FOLDER/pid")" ;;
esac""",
    )
    slurm.program("srun", "sleep 600")
    script = slurm.folder / "job.sh"
    script.write_text(compile_file(slurm.file, "--to", "slurm").stdout)
    environment = slurm.environment | {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost"}
    with subprocess.Popen(["bash", script], env=environment) as process:
        (slurm.folder / "pid").write_text(str(process.pid))
        process.wait(60)
    log = (slurm.folder / "out/log.txt").read_text()
    assert log.count("The time limit is near") == 1, log
    assert (slurm.folder / "requeued").read_text() == "7\n"
