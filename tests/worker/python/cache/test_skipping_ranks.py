"""Skipped frozen layers under DistributedDataParallel on two ranks."""

from __future__ import annotations

import pathlib

from launching import Program


def test_two_ranks_that_freeze_unfreeze_and_freeze_again_end_with_the_same_bits(tmp_path: pathlib.Path) -> None:
    with Program(tmp_path, "skipping_job.py", ranks=2) as job:
        job.succeed()
