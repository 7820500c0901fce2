"""Ranks that do not hear the same from a controller: they apply the same plan at the same step, or none."""

import pathlib
import shutil
import stat

from harness import BIN, Controller, Job, metric, wait_until
from proxy import CuttableProxy


def start(folder: pathlib.Path, digits: pathlib.Path, address: str, address_of_rank_1: str) -> Job:
    """Starts a training whose rank 1 is on another node, and has another controller's address than rank 0."""
    wrapper = folder / "train"  # torchrun gives all ranks the same environment
    wrapper.write_text(
        f'#!/bin/sh\n[ "$RANK" = 1 ] && EGERIA_CONTROLLER={address_of_rank_1} EGERIA_NODE=another\n'
        f'export EGERIA_CONTROLLER EGERIA_NODE\nexec {BIN}/egeria-train "$@"\n'
    )
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    training = ("--task", "digits", "--data", str(digits), "--epochs", "100000")  # more steps than a machine does here
    options = ("--policy", "none", "--metrics-port", "0")
    return Job(folder, "job", *training, *options, controller=address, program=(str(wrapper),))


def of_ranks(job: Job, name: str, **labels: str) -> list[float]:
    """A metric of both ranks."""
    return [metric(job.metrics(rank), f"egeria_worker_{name}", **labels) for rank in (0, 1)]


def wait_for_ranks(controller: Controller, ranks: int) -> None:
    wait_until(lambda: metric(controller.metrics(), "egeria_connected_ranks") == ranks, 300, f"{ranks} ranks")


def wait_for_steps(controller: Controller, steps: int) -> None:
    step = lambda: metric(controller.metrics(), "egeria_job_step")  # noqa: E731
    before = step()
    wait_until(lambda: step() > before + steps, 300, f"{steps} more steps")


def test_no_rank_applies_a_plan_that_another_one_lacks(
    tmp_path: pathlib.Path, digits: pathlib.Path, controller: Controller
):
    proxy = CuttableProxy(tmp_path / "rank1.sock", tmp_path / "controller.sock")
    with start(tmp_path, digits, controller.address, proxy.address) as job:
        wait_for_ranks(controller, 2)
        proxy.cut()
        wait_for_ranks(controller, 1)
        controller.egeria("freeze", "digits", "2")
        wait_for_steps(controller, 200)
        assert metric(controller.metrics(), "egeria_frozen_prefix", state="decided") == 2
        assert metric(controller.metrics(), "egeria_frozen_prefix", state="applied") == 0
        assert of_ranks(job, "frozen_prefix") == [0, 0]
        proxy.restore()
        wait_until(lambda: metric(controller.metrics(), "egeria_frozen_prefix", state="applied") == 2, 300, "a freeze")
        assert of_ranks(job, "frozen_prefix") == [2, 2]
        assert of_ranks(job, "switches_total", action="freeze") == [1, 1]
        assert of_ranks(job, "switches_total", action="unfreeze") == [0, 0]
        assert of_ranks(job, "commits_total") == [1, 1]
        assert of_ranks(job, "checksum_mismatches_total") == [0, 0]


def test_after_a_lost_journal_no_plan_means_two_things(
    tmp_path: pathlib.Path, digits: pathlib.Path, controller: Controller
):
    proxy = CuttableProxy(tmp_path / "rank1.sock", tmp_path / "controller.sock")
    with start(tmp_path, digits, controller.address, proxy.address) as job:
        wait_for_ranks(controller, 2)
        proxy.cut()
        wait_for_ranks(controller, 1)
        controller.egeria("freeze", "digits", "1")
        wait_for_steps(controller, 200)  # rank 0 has received the plan
        controller.kill()
        shutil.rmtree(tmp_path / "state")
        controller.start()
        proxy.restore()
        wait_for_ranks(controller, 2)
        controller.egeria("freeze", "digits", "3")
        wait_until(lambda: of_ranks(job, "frozen_prefix") == [3, 3], 300, "the freeze on both ranks")
        assert of_ranks(job, "checksum_mismatches_total") == [0, 0]


def test_two_controllers_whose_plans_differ_freeze_nothing(
    tmp_path: pathlib.Path, digits: pathlib.Path, controller: Controller
):
    folder = tmp_path / "other"
    folder.mkdir()
    with Controller(folder) as other, start(tmp_path, digits, controller.address, other.address) as job:
        for one in (controller, other):
            wait_for_ranks(one, 1)
        controller.egeria("freeze", "digits", "1")
        other.egeria("freeze", "digits", "3")
        wait_until(lambda: of_ranks(job, "plans_disputed_total") == [1, 1], 300, "the dispute")
        assert of_ranks(job, "frozen_prefix") == [0, 0]
        assert job.log.read_text().count("[PLAN_DISPUTED] plan 1") == 2
        assert "rank 0 has 1 frozen modules" in job.log.read_text()
        for one in (controller, other):
            one.egeria("freeze", "digits", "2", "--force")
        wait_until(lambda: of_ranks(job, "frozen_prefix") == [2, 2], 300, "what both controllers say")
        assert of_ranks(job, "checksum_mismatches_total") == [0, 0]
