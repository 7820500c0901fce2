"""The common part of the benchmarks of whole trainings: two ranks of the same script, and freezes by epoch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence


def run_two_ranks(script: str, options: Sequence[str], **environment: str) -> None:
    """Runs the script under torch.distributed.run with this process's arguments and `options`, one thread a rank, and
    with these variables in its environment besides."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        script,
        *sys.argv[1:],
        *options,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def read_plans(text: str, steps_per_epoch: int) -> list[tuple[int, int]]:
    """(step, frozen layer modules) of "epoch:modules,...", as egeria.Config takes them."""
    pairs = (plan.split(":") for plan in text.split(","))
    return [(int(epoch) * steps_per_epoch, int(prefix)) for epoch, prefix in pairs]
