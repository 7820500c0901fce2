"""The controller killed, stopped or absent: training goes on, and what it decided is not forgotten."""

import json
import pathlib
import signal
import time

from harness import Controller, Job, metric, wait_until

# Enough steps that a run outlives every fault below, on a slow machine as on a fast one.
TRAINING = ("--task", "digits", "--seed", "1", "--lr", "0.05", "--schedule", "constant")
RULE = ("--policy", "plasticity", "--interval", "5", "--window", "4", "--bootstrap", "off")


def export(controller: Controller, job: str) -> list[dict]:
    return [json.loads(line) for line in controller.egeria("export", job, "--decisions").splitlines()]


def only_job(controller: Controller) -> str:
    jobs = json.loads(controller.egeria("list", "--json"))
    assert len(jobs) == 1
    return jobs[0]["job_id"]


def step_of(controller: Controller) -> int:
    return json.loads(controller.egeria("list", "--json"))[0]["step"]


def readings(records: list[dict]) -> list[tuple]:
    return [(r["step"], r["module"], r["plasticity"]) for r in records if r.get("plasticity") is not None]


def test_without_a_controller_the_run_equals_a_plain_run(tmp_path: pathlib.Path, digits: pathlib.Path):
    common = (*TRAINING, "--data", str(digits), "--epochs", "4")
    plain = Job(tmp_path, "plain", *common).wait()
    absent = Job(tmp_path, "absent", *common, *RULE, controller=f"unix:{tmp_path}/nobody.sock").wait()
    assert absent["parameters_hash"] == plain["parameters_hash"]
    assert absent["validation_loss"] == plain["validation_loss"]
    assert absent["decisions"] == [] and absent["ranks_identical"]


def test_a_killed_controller_carries_on_where_it_was(
        tmp_path: pathlib.Path, digits: pathlib.Path, controller: Controller):
    job = Job(tmp_path, "job", *TRAINING, *RULE, "--data", str(digits), "--epochs", "2000",
              controller=controller.address)
    try:
        wait_until(lambda: (metric(controller.metrics(), "egeria_readings_total") or 0) >= 8, 60, "eight readings")
        name = only_job(controller)
        before = export(controller, name)
        step_before = step_of(controller)
        controller.kill()
        time.sleep(10)  # the outage itself, not a wait for something
        assert job.process.poll() is None
        controller.start()
        # Had training paused with the controller, its step would not have moved on meanwhile.
        wait_until(lambda: step_of(controller) > step_before + 200, 30, "the job's steps during the outage")
        wait_until(lambda: len(readings(export(controller, name))) > len(readings(before)) + 4, 60, "new readings")
        after = export(controller, name)
        assert readings(after)[: len(readings(before))] == readings(before)
        decided = [r for r in before if "action" in r]
        assert [r for r in after if "action" in r][: len(decided)] == decided
    finally:
        job.kill()


def test_a_stopped_controller_costs_samples_and_nothing_else(
        tmp_path: pathlib.Path, digits: pathlib.Path, controller: Controller):
    common = (*TRAINING, "--data", str(digits), "--epochs", "150")
    plain = Job(tmp_path, "plain", *common).wait()
    # Every reading counts, but none can decide: what is lost is samples alone.
    job = Job(tmp_path, "job", *common, *RULE[:3], "1", "--window", "100000", "--bootstrap", "off",
              controller=controller.address)
    wait_until(lambda: (metric(controller.metrics(), "egeria_readings_total") or 0) >= 3, 60, "three readings")
    controller.signal(signal.SIGSTOP)
    run = job.wait()
    assert run["parameters_hash"] == plain["parameters_hash"]
    assert run["samples_dropped"] > 0
    assert controller.stop() == 0
