"""One rank loses its line to the controller: nobody applies anything until it is back, then all at one step."""

import pathlib
import stat

from harness import BIN, Controller, Job, metric, wait_until
from proxy import CuttableProxy


def test_no_rank_applies_a_plan_that_another_one_lacks(
    tmp_path: pathlib.Path, digits: pathlib.Path, controller: Controller
):
    proxy = CuttableProxy(tmp_path / "rank1.sock", tmp_path / "controller.sock")
    # torchrun gives all ranks the same environment; rank 1 is to reach the controller through the proxy.
    wrapper = tmp_path / "train"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$RANK" = 1 ] && EGERIA_CONTROLLER={proxy.address}\n'
        f'export EGERIA_CONTROLLER\nexec {BIN}/egeria-train "$@"\n'
    )
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    # More steps than any machine does in the time that this takes.
    with Job(
        tmp_path,
        "job",
        "--task",
        "digits",
        "--data",
        str(digits),
        "--epochs",
        "100000",
        "--policy",
        "none",
        "--metrics-port",
        "0",
        controller=controller.address,
        program=(str(wrapper),),
    ) as job:
        wait_until(lambda: metric(controller.metrics(), "egeria_connected_ranks") == 2, 300, "both ranks")
        proxy.cut()
        wait_until(lambda: metric(controller.metrics(), "egeria_connected_ranks") == 1, 300, "the cut")
        controller.egeria("freeze", "digits", "2")
        step = lambda: metric(controller.metrics(), "egeria_job_step")  # noqa: E731
        frozen_at = step()
        wait_until(lambda: step() > frozen_at + 200, 300, "200 more steps")
        assert metric(controller.metrics(), "egeria_frozen_prefix", state="decided") == 2
        assert metric(controller.metrics(), "egeria_frozen_prefix", state="applied") == 0
        assert all(metric(job.metrics(rank), "egeria_worker_frozen_prefix") == 0 for rank in (0, 1))
        proxy.restore()
        wait_until(lambda: metric(controller.metrics(), "egeria_frozen_prefix", state="applied") == 2, 300, "a freeze")
        for rank in (0, 1):
            text = job.metrics(rank)
            assert metric(text, "egeria_worker_frozen_prefix") == 2
            assert metric(text, "egeria_worker_switches_total", action="freeze") == 1
            assert metric(text, "egeria_worker_switches_total", action="unfreeze") == 0
            assert metric(text, "egeria_worker_commits_total") == 1
            assert metric(text, "egeria_worker_checksum_mismatches_total") == 0
