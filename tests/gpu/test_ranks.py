"""Ranks on a GPU freeze at the same step, and stay alike."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from gpu_training import DEVICE, readings
from harness import Controller, free_port
from preloaded import rank_environment

SCRIPT = pathlib.Path(__file__).with_name("ranks_on_gpu.py")
PLANS = "3:1,6:3,10:0,12:2"


def run(
    folder: pathlib.Path, backend: str, ranks: int, plans: str = PLANS, wrap: str = "ddp", **variables: str
) -> list[dict[str, Any]]:
    log, port = folder / "output.log", free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    with log.open("wb") as output:
        processes = [
            subprocess.Popen(
                [sys.executable, SCRIPT, folder, backend, plans, wrap],
                stdout=output,
                stderr=output,
                env={**environment, **rank_environment(rank, ranks, port)},
            )
            for rank in range(ranks)
        ]
        try:
            codes = [process.wait(150) for process in processes]
        finally:
            for process in processes:
                process.kill()
    assert codes == [0] * ranks, log.read_text()[-6000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def check(found: list[dict[str, Any]]) -> None:
    assert all(one == found[0] for one in found)
    assert found[0]["switches"] == [[3, 1, True], [6, 3, True], [10, 0, True], [12, 2, True]]
    assert found[0]["prefixes"] == [0] * 2 + [1] * 3 + [3] * 4 + [0] * 2 + [2] * 5


@pytest.mark.only_cuda
def test_one_rank_over_nccl(tmp_path: pathlib.Path) -> None:
    """NCCL takes one rank for each GPU."""
    check(run(tmp_path, "nccl", 1))


def test_two_ranks_over_gloo_on_one_gpu(tmp_path: pathlib.Path) -> None:
    check(run(tmp_path, "gloo", 2))


@pytest.mark.skipif(DEVICE.type != "cuda", reason="gloo alone is tried on the CPU elsewhere")
def test_two_groups(tmp_path: pathlib.Path) -> None:
    check(run(tmp_path, "cpu:gloo,cuda:nccl", 1))


def test_ranks_that_come_apart_take_what_rank_0_has(tmp_path: pathlib.Path) -> None:
    one, other = run(tmp_path, "gloo", 2, wrap="apart")
    assert one["hashes"][:7] == other["hashes"][:7] and one["hashes"][8] != other["hashes"][8]
    assert one["hashes"][10:] == other["hashes"][10:]  # from the switch at the tenth step on
    assert one["switches"] == other["switches"] and one["switches"][2] == [10, 0, False]


@pytest.mark.only_cuda
def test_a_sharded_model(tmp_path: pathlib.Path) -> None:
    """FSDP2, with one rank."""
    check(run(tmp_path, "cpu:gloo,cuda:nccl", 1, wrap="fsdp2"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_readings_of_gradients_over_ranks(ranks: int, tmp_path: pathlib.Path, controller: Controller) -> None:
    found = run(tmp_path, "gloo", ranks, "none", EGERIA_CONTROLLER=controller.address)
    assert all(one == found[0] for one in found) and found[0]["switches"] == []
    assert len(readings(controller)) > 0
