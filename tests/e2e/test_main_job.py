"""The main job, as a user starts it: egeria-run, two ranks, the paper's rule, the digits."""

import json
import os
import pathlib
import subprocess

from harness import BIN, TORCHRUN

# The rule freezes from its first readings on: all that may freeze is frozen before three accounts could find that
# measuring does not pay, and there is half of the training for it to do so again.
JOB = (
    "--task",
    "digits",
    "--epochs",
    "240",
    "--schedule",
    "step",
    "--lr-milestones",
    "0.5",
    "--policy",
    "plasticity",
    "--interval",
    "4",
    "--window",
    "3",
    "--tolerance",
    "1",
    "--bootstrap",
    "off",
    "--seed",
    "0",
)


def test_the_main_job_freezes_unfreezes_and_refreezes(tmp_path: pathlib.Path, digits: pathlib.Path):
    summary = tmp_path / "summary.json"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EGERIA_")}
    environment["PATH"] = f"{TORCHRUN.parent}:{environment['PATH']}"
    environment["EGERIA_CACHE"] = str(tmp_path / "cache")
    environment["EGERIA_CONTROLLER_HEARTBEAT_INTERVAL"] = (
        "100ms"  # it spans few steps, so that the drop of the rate is seen
    )
    done = subprocess.run(
        [
            BIN / "egeria-run",
            "--nproc-per-node",
            "2",
            "--local-addr",
            "127.0.0.1",
            "--no-python",
            "egeria-train",
            *JOB,
            "--data",
            digits,
            "--summary",
            summary,
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (run,) = json.loads(summary.read_text())["runs"]
    assert run["ranks"] == 2 and run["ranks_identical"]
    assert run["accuracy"] > 0.9
    actions = [decision["action"] for decision in run["decisions"]]
    assert actions[0] == "freeze" and "unfreeze" in actions
    assert "freeze" in actions[actions.index("unfreeze") :]
    assert 0 < run["frozen_share"] < 1
    assert run["saved_seconds"] is not None and run["time_saved_share"] is not None
    assert {"agreement", "hooks", "probes", "snapshots", "switches"} <= set(run["spent_seconds"])
    assert run["cache"]["state"] != "none"
    assert not (tmp_path / "cache" / "cache.sock").exists(), "the cache that egeria-run started has ended with it"
