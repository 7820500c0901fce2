"""A policy that costs more than it can save is switched off, and training is what it would have been."""

import json
import pathlib

from harness import Controller, Job

JOB = ("--task", "digits", "--epochs", "40", "--schedule", "constant", "--seed", "0")
# A reading of plasticity takes a forward pass of the first layer module, here in every step. No plasticity stands as
# still as this tolerance asks, so that nothing ever freezes.
COSTLY = {"plasticity": {"intervalSteps": 1, "tolerance": 1e-9, "bootstrap": False}}


def test_readings_that_cost_more_than_they_can_save_end(tmp_path: pathlib.Path, digits: pathlib.Path):
    arguments = (*JOB, "--data", str(digits))
    with Job(tmp_path, "plain", *arguments, ranks=1) as job:
        plain = job.wait()
    # Three accounts come with three reports, which take as good as nothing of the training.
    with Controller(tmp_path, "--heartbeat-interval", "50ms") as controller:
        with Job(
            tmp_path,
            "job",
            *arguments,
            "--policy",
            "plasticity",
            "--policy-json",
            json.dumps(COSTLY),
            controller=controller.address,
            ranks=1,
        ) as job:
            run = job.wait()
        listed = json.loads(controller.egeria("list", "--json").splitlines()[0])
        assert listed["blocked"].startswith("[DOES_NOT_PAY]")
        assert controller.log.read_text().count("[DOES_NOT_PAY]") == 1
        history = [json.loads(line) for line in controller.egeria("export", listed["job_id"]).splitlines()]
    assert run["decisions"] == [] and run["parameters_hash"] == plain["parameters_hash"]
    readings = [entry["step"] for entry in history if "plasticity" in entry]
    assert 0 < len(readings) and max(readings) < 0.9 * run["steps"], "readings go on"
    assert run["spent_seconds"]["probes"] > 0 and run["saved_seconds"] == 0
    assert run["time_saved_share"] < 0
