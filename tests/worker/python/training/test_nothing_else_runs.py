"""Nothing of the user's runs unless his script runs it: each call of each part, each hook, each generator."""

from __future__ import annotations

import contextlib
import json
import pathlib
from typing import Any

import pytest
from cache_daemon import Daemon
from harness import Controller
from launching import Program


def run(folder: pathlib.Path, *options: object, egeria: bool = True) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Returns the weights and calls, what the session says, and the log."""
    folder.mkdir(exist_ok=True)
    out = folder / "result.json"
    with contextlib.ExitStack() as stack:
        variables = {"EGERIA_CACHE": "none"}
        if egeria:
            variables["EGERIA_CONTROLLER"] = stack.enter_context(Controller(folder, "--log-level", "warning")).address
        program = stack.enter_context(Program(folder, "counted_job.py", "--out", out, *options, environment=variables))
        program.succeed()
        text = program.text()
    found = json.loads(out.read_text())
    return found["trained"], found["told"], text


@pytest.mark.parametrize("policy", ["auto", "plasticity", "gradnorm"])
@pytest.mark.parametrize(
    "options",
    [
        "--model Stateful",
        "--model Momentum",
        "--model Global",
        "--model Stateful --accumulate 2",
        "--model Stateful --compile --no-hooks",
    ],
)
def test_observing_runs_nothing(options: str, policy: str, tmp_path: pathlib.Path):
    plain, _, _ = run(tmp_path / "plain", *options.split(), egeria=False)
    watched, told, text = run(tmp_path / "watched", *options.split(), "--policy", policy)
    assert watched == plain
    if policy == "plasticity" and "Stateful" in options:  # there is a shadow, and it has made passes
        assert told["counters"]["samples_sent"] > 0, text
    if policy == "plasticity" and "Stateful" not in options:
        assert text.count("no readings of plasticity") == 1, text


@pytest.mark.parametrize("options", ["--model Plain", "--model Stateful", "--model Stateful --accumulate 2"])
def test_freezing_runs_nothing(options: str, tmp_path: pathlib.Path):
    """Two modules are frozen early. Passes go through them as before; of the hooks all are behind them."""
    plain, _, _ = run(tmp_path / "plain", *options.split(), egeria=False)
    frozen, told, _ = run(tmp_path / "frozen", *options.split(), "--policy", "plans", "--act", egeria=False)
    assert told["prefix"] == 2 and frozen["weights"] != plain["weights"]
    assert {**frozen, "weights": 0} == {**plain, "weights": 0}


@pytest.mark.parametrize("model", ["Plain", "Momentum"])
def test_the_cache_leaves_calls_out_and_adds_none(model: str, tmp_path: pathlib.Path):
    options = ["--model", model, "--no-hooks", "--steps", 200, "--policy", "plans", "--act"]
    usual, _, _ = run(tmp_path / "usual", *options, egeria=False)
    daemon = Daemon(tmp_path)
    daemon.start()
    try:
        cached, told, text = run(tmp_path / "cached", *options, "--cache", daemon.address, egeria=False)
    finally:
        daemon.process.terminate()
        daemon.process.wait()
    skipped = told["cache"]["passes_skipped"]
    assert (skipped > 0) == (model == "Plain"), text
    assert ("[NO_SHADOW]" in told["cache_reason"]) == (model == "Momentum")
    calls = usual["calls"]
    for name, count in calls.items():
        frozen = name.startswith(("a.", "b."))
        assert cached["calls"].get(name, 0) == count - (skipped if frozen else 0), name
    assert {**cached, "calls": 0} == {**usual, "calls": 0}
