"""The controller killed, stopped or absent: training goes on, and what it decided is not forgotten."""

import json
import pathlib
import signal
import time

from harness import Controller, Job, metric, wait_until

# Enough steps that a run outlives every fault below, on a slow machine as on a fast one.
TRAINING = ("--task", "digits", "--seed", "1", "--lr", "0.05", "--schedule", "constant")
RULE = ("--policy", "plasticity", "--interval", "5", "--window", "4", "--bootstrap", "off")


def export(controller: Controller, *flags: str) -> list[dict]:
    """The history of the job called digits: what its policy saw, or with --decisions what was decided."""
    return [json.loads(line) for line in controller.egeria("export", "digits", *flags).splitlines()]


def readings(controller: Controller) -> list[dict]:
    return [record for record in export(controller) if "plasticity" in record]


def step_of(controller: Controller) -> int:
    return json.loads(controller.egeria("list", "--json"))["step"]


def test_without_a_controller_the_run_equals_a_plain_run(tmp_path: pathlib.Path, digits: pathlib.Path):
    common = (*TRAINING, "--data", str(digits), "--epochs", "4")
    plain = Job(tmp_path, "plain", *common).wait()
    absent = Job(tmp_path, "absent", *common, *RULE, controller=f"unix:{tmp_path}/nobody.sock").wait()
    assert absent["parameters_hash"] == plain["parameters_hash"]
    assert absent["validation_loss"] == plain["validation_loss"]
    assert absent["decisions"] == [] and absent["ranks_identical"]


def test_a_killed_controller_carries_on_where_it_was(
        tmp_path: pathlib.Path, digits: pathlib.Path, controller: Controller):
    with Job(tmp_path, "job", *TRAINING, *RULE, "--data", str(digits), "--epochs", "2000",
             controller=controller.address) as job:
        wait_until(lambda: (metric(controller.metrics(), "egeria_readings_total") or 0) >= 8, 60, "eight readings")
        before = readings(controller)
        decided = export(controller, "--decisions")
        step_before = step_of(controller)
        controller.kill()
        time.sleep(10)  # the outage itself, not a wait for something
        assert job.process.poll() is None
        controller.start()
        # Had training paused with the controller, its step would not have moved on meanwhile.
        wait_until(lambda: step_of(controller) > step_before + 50, 30, "the job's steps during the outage")
        wait_until(lambda: len(readings(controller)) > len(before) + 4, 60, "new readings")
        assert readings(controller)[: len(before)] == before
        assert export(controller, "--decisions")[: len(decided)] == decided


def test_a_stopped_controller_costs_samples_and_nothing_else(
        tmp_path: pathlib.Path, digits: pathlib.Path, controller: Controller):
    common = (*TRAINING, "--data", str(digits), "--epochs", "60")
    plain = Job(tmp_path, "plain", *common).wait()
    # A sample at every step, and a window so long that nothing is decided: all that is lost is samples.
    watched = ("--policy", "plasticity", "--interval", "1", "--window", "1000", "--bootstrap", "off")
    with Job(tmp_path, "job", *common, *watched, controller=controller.address) as job:
        wait_until(lambda: (metric(controller.metrics(), "egeria_readings_total") or 0) >= 3, 60, "three readings")
        controller.signal(signal.SIGSTOP)
        run = job.wait()
    assert run["parameters_hash"] == plain["parameters_hash"]
    assert run["samples_dropped"] > 0
    assert controller.stop() == 0
