"""egeria bench, whole: two ranks, real controllers, records and reports, on the digits."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest
from harness import wait_until

import egeria

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench.harness.command_line import main

BENCH = ROOT / "bench" / "main.py"
# Acts at half of the steps, by freezing nothing: the plain training must come out of it.
IDLE = 'idle=schedule:{"entries": [{"fraction": 0.5, "frozen_prefix": 0}]}'


def arguments_for(out: pathlib.Path, *others: str) -> list[str]:
    return ["digits", "--profile", "smoke", "--out", str(out), "--controls", "none", *others]


def read(out: pathlib.Path) -> list[dict]:
    file = out / "records" / "digits.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def processes_with(text: str) -> list[int]:
    """The processes of this machine whose command line contains `text`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass  # it has ended
    return found


@pytest.fixture
def short_folder() -> Iterator[pathlib.Path]:
    """For sockets, whose paths are short."""
    with tempfile.TemporaryDirectory(prefix="egeria-") as folder:
        yield pathlib.Path(folder)


def test_ranks_need_the_checkout_and_the_package_alone():
    package = pathlib.Path(egeria.__file__).parents[1]
    command = [sys.executable, "-c", "import bench.harness.rank"]
    subprocess.run(command, env=dict(os.environ, PYTHONPATH=f"{ROOT}{os.pathsep}{package}"), check=True)


@pytest.mark.usefixtures("preloaded_ranks")
def test_a_run_started_from_the_plain_one_is_the_plain_one_until_it_acts(tmp_path: pathlib.Path):
    assert main(arguments_for(tmp_path, "--variant", IDLE)) == 0
    by_label = {record["run"]: record for record in read(tmp_path)}
    assert set(by_label) == {"plain", "idle", "early"}
    plain, idle, early = by_label["plain"], by_label["idle"], by_label["early"]
    assert idle["first_step"] == 28
    assert idle["final"] == plain["final"]  # to the bit
    assert idle["curve"][0] == plain["curve"][0]  # the part that is the plain run's
    assert idle["seconds"] > plain["curve"][0]["seconds"]
    assert early["final"] != plain["final"]
    assert [switch["frozen_prefix"] for switch in early["switches"]] == [2]
    assert 0 < early["frozen_share"] < 1
    assert [point["step"] for point in plain["curve"]] == [20, 40, 60]
    assert (tmp_path / "digits-smoke.md").exists()
    assert not list((tmp_path / "checkpoints").glob("*"))


@pytest.mark.usefixtures("preloaded_ranks")
def test_the_cache_runs_beside_a_policy_and_its_time_is_told(tmp_path: pathlib.Path):
    cached = 'cached=schedule:{"entries": [{"fraction": 0.01, "frozen_prefix": 2}], "cache": "always"}'
    # Not "smoke": most of its steps are over before the freeze is announced, if the machine is busy.
    options = ("--profile", "small", "--no-early", "--whole")
    assert main(arguments_for(tmp_path, *options, "--variant", cached)) == 0
    by_label = {record["run"]: record for record in read(tmp_path)}
    plain, cache = by_label["plain"], by_label["cached"]["cache"]
    assert plain["cache"] is None
    assert 0 < cache["passes_skipped"] < cache["passes"] <= 2 * 600 and cache["processor_seconds"] > 0
    for record in by_label.values():
        times = [point["processor_seconds"] for point in record["curve"]]
        assert 0 < times[0] < times[-1] <= record["processor_seconds"]


@pytest.mark.usefixtures("preloaded_ranks")
def test_the_sweep_trains_at_other_rates(tmp_path: pathlib.Path):
    assert main(arguments_for(tmp_path, "--sweep", "0.5", "--sweep-shares", "1,0.5")) == 0
    plain, half, short = read(tmp_path)
    assert [(record["run"], record["kind"], record["steps"]) for record in (half, short)] == [
        ("sweep 0.5", "sweep", 60),
        ("sweep 0.5 in 0.5", "sweep", 30),
    ]
    assert half["options"] == {"peak": 0.5}
    assert half["final"] != plain["final"]


def test_after_a_kill_in_the_middle_resume_goes_on(tmp_path: pathlib.Path, short_folder: pathlib.Path):
    """The process is killed while its second run is under way."""
    temporary = short_folder
    environment = dict(os.environ, TMPDIR=str(temporary))
    for attempt in itertools.count():
        out = tmp_path / f"out{attempt}"
        arguments = [sys.executable, str(BENCH), *arguments_for(out, "--policy", "none", "--no-early")]
        with (
            (tmp_path / "log").open("wb") as log,
            subprocess.Popen(arguments, env=environment, stdout=log, stderr=log) as bench,
        ):
            wait_until(lambda: read(out) or bench.poll() is not None, 300, "the plain run's record")
            wait_until(lambda: processes_with(str(temporary)) or bench.poll() is not None, 300, "the next run")
            bench.send_signal(signal.SIGKILL)
            bench.wait()
        # Neither ranks nor a controller outlive it, to take the time of what is measured next.
        wait_until(lambda: not processes_with(str(temporary)), 300, "the end of what it had started")
        if len(read(out)) < 2 or attempt == 4:
            break  # otherwise the second run was over before the kill
    assert [record["run"] for record in read(out)] == ["plain"]
    before = read(out)[0]
    done = subprocess.run(
        [*arguments, "--resume"], env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "plain: recorded before" in done.stdout
    assert [record["run"] for record in read(out)] == ["plain", "none"]
    assert read(out)[0] == before
    assert read(out)[1]["final"] == before["final"]
