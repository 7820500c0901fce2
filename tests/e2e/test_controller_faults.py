"""The controller killed, stopped or absent: training goes on, and what it decided is not forgotten."""

import json
import pathlib
import signal

from harness import Controller, Job, metric, wait_until

TRAINING = ("--task", "digits", "--seed", "1", "--lr", "0.05", "--schedule", "constant")
# Nothing freezes by it, so that readings go on.
RULE = ("--policy", "plasticity", "--window", "4", "--tolerance", "1e-9", "--bootstrap", "off")


def export(controller: Controller, *flags: str) -> list[dict]:
    """The history of the job called digits: what its policy saw, or with --decisions what was decided."""
    return [json.loads(line) for line in controller.egeria("export", "digits", *flags).splitlines()]


def readings(controller: Controller) -> list[dict]:
    return [record for record in export(controller) if "plasticity" in record]


def step_of(controller: Controller) -> int:
    return json.loads(controller.egeria("list", "--json"))["step"]


def steps_of_rank_0(job: Job) -> float:
    """As it tells itself."""
    return metric(job.metrics(0), "egeria_worker_steps_total")


def test_without_a_controller_the_run_equals_a_plain_run(tmp_path: pathlib.Path, digits: pathlib.Path):
    common = (*TRAINING, "--data", str(digits), "--epochs", "4")
    plain = Job(tmp_path, "plain", *common).wait()
    absent = Job(
        tmp_path, "absent", *common, *RULE, "--interval", "5", controller=f"unix:{tmp_path}/nobody.sock"
    ).wait()
    assert absent["parameters_hash"] == plain["parameters_hash"]
    assert absent["validation_loss"] == plain["validation_loss"]
    assert absent["decisions"] == [] and absent["ranks_identical"]


def test_a_killed_controller_carries_on_where_it_was(
    tmp_path: pathlib.Path, digits: pathlib.Path, controller: Controller
):
    # More steps than any machine does in the time that this takes.
    with Job(
        tmp_path,
        "job",
        *TRAINING,
        *RULE,
        "--interval",
        "5",
        "--data",
        str(digits),
        "--epochs",
        "100000",
        "--metrics-port",
        "0",
        controller=controller.address,
    ) as job:
        wait_until(lambda: (metric(controller.metrics(), "egeria_readings_total") or 0) >= 4, 300, "four readings")
        controller.egeria("freeze", "digits", "1")
        wait_until(lambda: (metric(controller.metrics(), "egeria_readings_total") or 0) >= 12, 300, "eight more")
        before = readings(controller)
        decided = export(controller, "--decisions")
        assert [decision["frozen_prefix"] for decision in decided] == [1]
        step_before = step_of(controller)
        controller.kill()
        killed_at = steps_of_rank_0(job)
        wait_until(lambda: steps_of_rank_0(job) > killed_at + 2000, 300, "2,000 steps without a controller")
        controller.start()
        wait_until(lambda: step_of(controller) > step_before + 2000, 300, "the job's steps during the outage")
        wait_until(lambda: len(readings(controller)) > len(before) + 4, 300, "new readings")
        assert readings(controller)[: len(before)] == before
        assert export(controller, "--decisions") == decided


def test_a_stopped_controller_costs_samples_and_nothing_else(
    tmp_path: pathlib.Path, digits: pathlib.Path, controller: Controller
):
    for epochs in (60, 300, 1500):
        common = (*TRAINING, "--data", str(digits), "--epochs", str(epochs))
        plain = Job(tmp_path, "plain", *common).wait()
        with Job(
            tmp_path,
            f"job{epochs}",
            *common,
            *RULE,
            "--interval",
            "1",
            "--training-job",
            f"job{epochs}",
            controller=controller.address,
        ) as job:
            wait_until(
                lambda: (
                    job.process.poll() is not None  # pylint: disable=cell-var-from-loop
                    or (metric(controller.metrics(), "egeria_readings_total", training_job=f"job{epochs}") or 0) >= 3
                ),
                300,
                "three readings",
            )
            controller.signal(signal.SIGSTOP)
            run = job.wait()
        assert run["parameters_hash"] == plain["parameters_hash"]
        controller.signal(signal.SIGCONT)
        if run["samples_dropped"] > 0:
            break  # otherwise it was over before the controller had stopped
    assert run["samples_dropped"] > 0
    assert controller.stop() == 0
