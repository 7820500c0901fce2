"""`egeria submit`, `status`, `logs` and `cancel` on this machine, with a shell script in the place of egeria-run."""

from __future__ import annotations

import json
import pathlib
import subprocess
import time

import pytest
from job_files import EGERIA, compile_file

# Folders, arguments and variables as nobody should write them, all of which must arrive as they are.
HOSTILE = "it's $(touch hacked) `touch hacked` \"; touch hacked #"

TELLS = '#!/bin/sh\nfor word; do echo "word $word"; done\necho "variable $GREETING"\npwd\nexit 7\n'
WAITS = "#!/bin/sh\ntrap 'echo got TERM; exit 3' TERM\necho running\nwhile :; do sleep 0.05; done\n"
SIGNALLED = "#!/bin/sh\ntrap 'echo got USR1; exit 0' USR1\necho running\nwhile :; do sleep 0.05; done\n"


class Job:
    """A job file in a folder of its own, whose egeria-run is a script."""

    def __init__(self, folder: pathlib.Path, script: str, more: str = "") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin/egeria-run").write_text(script)
        (folder / "bin/egeria-run").chmod(0o755)
        self.file = folder / "egeria.yaml"
        application = {
            "script": "train.py",
            "arguments": [HOSTILE, "{data}/x", "--flag={output}"],
            "environment": {"GREETING": HOSTILE},
            "path": ["bin"],
        }
        job = {"name": "digits", "application": application, "data": {"folders": ["data"]}, "output": {"folder": "out"}}
        self.file.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in job.items()) + "\n" + more)

    def egeria(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [EGERIA, words[0], str(self.file), *words[1:]]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)

    def status(self) -> str:
        result = self.egeria("status")
        assert result.returncode == 0, result.stderr
        return result.stdout.split(": ", 1)[1].split(" (local")[0]

    def wait_for(self, what: str) -> None:
        log = self.folder / "out/log.txt"
        deadline = time.monotonic() + 60
        while not (log.exists() and what in log.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def wait_for_end(self) -> str:
        deadline = time.monotonic() + 60
        while (status := self.status()) == "running":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return status


def test_words_with_quotes_and_commands_arrive_as_they_are(tmp_path: pathlib.Path) -> None:
    job = Job(tmp_path / HOSTILE.replace("/", "_"), TELLS)
    submitted = job.egeria("submit")
    assert submitted.returncode == 0, submitted.stderr
    assert job.wait_for_end() == "failed with exit code 7; `egeria logs` shows why"
    said = job.egeria("logs").stdout.splitlines()
    assert f"word {HOSTILE}" in said
    assert f"word {job.folder}/data/x" in said
    assert f"word --flag={job.folder}/out" in said
    assert f"variable {HOSTILE}" in said
    assert str(job.folder) in said
    assert list(tmp_path.rglob("hacked")) == []


@pytest.mark.parametrize("engine", ["local", "slurm"])
def test_what_is_submitted_is_what_was_compiled_and_stays_the_same(engine: str, tmp_path: pathlib.Path) -> None:
    job = Job(tmp_path, TELLS)
    texts = {compile_file(job.file, "--to", engine).stdout for _ in range(2)}
    assert job.egeria("submit", "--dry-run", "--to", engine).stdout in texts
    assert len(texts) == 1
    assert not (tmp_path / "out").exists()
    subprocess.run(["bash", "-n"], input=texts.pop(), text=True, check=True)


def test_the_submitted_script_is_the_compiled_one(tmp_path: pathlib.Path) -> None:
    job = Job(tmp_path, TELLS)
    assert job.egeria("submit").returncode == 0
    assert (tmp_path / "out/job.sh").read_text() == compile_file(job.file).stdout
    job.wait_for_end()


def test_a_job_that_runs_is_not_submitted_again_and_can_be_cancelled(tmp_path: pathlib.Path) -> None:
    job = Job(tmp_path, WAITS)
    assert job.egeria("submit").returncode == 0
    job.wait_for("running")
    assert job.status() == "running"
    again = job.egeria("submit")
    assert again.returncode == 1
    assert "the job is running already, as local" in again.stderr
    assert job.egeria("cancel").returncode == 0
    assert job.wait_for_end() == "cancelled"
    assert "got TERM" in job.egeria("logs").stdout


def test_logs_follow_the_job_to_its_end(tmp_path: pathlib.Path) -> None:
    job = Job(tmp_path, "#!/bin/sh\necho first\nsleep 2\necho last\n")
    assert job.egeria("submit").returncode == 0
    followed = job.egeria("logs", "-f")
    assert followed.stdout.splitlines()[-2:] == ["first", "last"]
    assert job.wait_for_end() == "finished"


def test_the_signal_comes_before_the_time_limit(tmp_path: pathlib.Path) -> None:
    more = "resources: {time_limit: 1m}\ncheckpoints: {folder: checkpoints, signal_before: 59s}\n"
    job = Job(tmp_path, SIGNALLED, more)
    assert job.egeria("submit").returncode == 0
    assert job.wait_for_end() == "ended by its time limit; `egeria submit` goes on from its checkpoint"
    assert "got USR1" in job.egeria("logs").stdout


def test_data_are_copied_where_that_is_asked_and_the_copy_goes(tmp_path: pathlib.Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x").write_text("content\n")
    job = Job(
        tmp_path,
        '#!/bin/sh\necho "file $5"\nfor word; do case $word in */x) cat "$word"; echo "at $word";; esac; done\n',
    )
    job.file.write_text(job.file.read_text().replace('"folders": ["data"]', '"folders": ["data"], "stage": true'))
    assert job.egeria("submit").returncode == 0
    assert job.wait_for_end() == "finished"
    said = job.egeria("logs").stdout.splitlines()
    assert "content" in said
    (staged,) = [line.removeprefix("at ") for line in said if line.startswith("at ")]
    assert not staged.startswith(str(tmp_path / "data"))
    assert not pathlib.Path(staged).exists()


def test_nothing_submitted_is_said(tmp_path: pathlib.Path) -> None:
    job = Job(tmp_path, TELLS)
    for command in ("status", "logs", "cancel"):
        result = job.egeria(command)
        assert result.returncode == 1
        assert "nothing was submitted" in result.stderr
