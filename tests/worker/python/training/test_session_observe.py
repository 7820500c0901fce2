"""Observing a training on two ranks changes nothing in it."""

from __future__ import annotations

import pathlib

import pytest
from session_runs import run


@pytest.mark.parametrize(
    "options",
    [
        "--model convolutions",
        "--model noisy --bf16 --accumulate 2 --early",
        "--model encoder --wrap compile_ddp",
        "--model convolutions --wrap ddp_compile --bf16 --accumulate 2 --optimizer adamw",
        "--model convolutions --wrap later_compile",
        "--model branches --wrap later",
        "--model encoder --wrap fsdp2 --optimizer adamw",
    ],
)
def test_watching_changes_no_bit_of_a_training(options: str, tmp_path: pathlib.Path):
    watched, output = run(
        tmp_path / "watched",
        "--steps",
        24,
        "--egeria",
        "observe",
        "--pace",
        0.15,
        "--until",
        "samples",
        *options.split(),
    )  # on a busy machine requests take a while to come
    steps = len(watched[0]["losses"])
    plain, _ = run(tmp_path / "plain", "--steps", steps, *options.split())
    assert f"egeria: {steps} steps observed, nothing was frozen, Egeria took " in output
    for one, other in zip(plain, watched):
        assert one["losses"] == other["losses"] and one["weights"] == other["weights"]
        assert one["keys"] == other["keys"] and one["passes"] == other["passes"]
        assert one["compiles"].get("graphs") == other["compiles"].get("graphs")
        assert other["switches"] == []
    assert watched[0]["counters"]["samples_sent"] > 0 and watched[0]["counters"]["snapshots_sent"] > 0
