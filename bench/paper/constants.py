"""Tries the rule's constants and its reference's precision without a training: by replays, and by the doctor."""

from __future__ import annotations

import json
import pathlib
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from bench.harness.processes import find_program
from bench.harness.task import Task
from bench.paper.measurements import WINDOWS

TOLERANCES = (0.1, 0.2, 0.4)
_BOOTSTRAP = 6  # readings that the bootstrapping stage would have taken


def replay_rule(measured: Mapping[str, Any], task: Task) -> list[dict[str, Any]]:
    """The decisions of the policy `plasticity` on the plain run's readings, one row for each window and tolerance.

    A reading is made at each checkpoint for every module, so that the rule sees whichever is frontmost.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="egeria-paper-") as folder:
        for window in WINDOWS:
            file = pathlib.Path(folder) / f"{window}.jsonl"
            file.write_text(_recording(measured, task, window), encoding="utf-8")
            for tolerance in TOLERANCES:
                options = {"window": window, "tolerance": tolerance, "bootstrap": False}
                output = subprocess.run(
                    [
                        find_program("egeria"),
                        "replay",
                        file,
                        "--policy",
                        "plasticity",
                        "--options",
                        json.dumps(options),
                    ],
                    check=True,
                    capture_output=True,
                    text=True,
                    timeout=60,
                ).stdout
                decisions = [json.loads(line) for line in output.splitlines()]
                rows.append({"window": window, "tolerance": tolerance, **_summary(decisions, measured)})
    return rows


def measure_precision(task: Task, network: nn.Module, ranks: int) -> list[dict[str, Any]]:
    """Asks egeria.doctor() about each layer module's reference: per backend its time over plain operators, and the SP
    loss that its arithmetic alone makes. The network has the weights of a checkpoint; the data has been loaded."""
    import egeria

    samples = task.order(0, torch.Generator().manual_seed(0))[: task.profile.batch_size // ranks]
    report = egeria.doctor(
        network, samples, lambda model, batch: task.loss(model, batch, torch.device("cpu")), modules=task.modules
    )
    return [
        {
            "module": module.name,
            "backends": {
                backend.name: {"time": backend.ratio, "noise": backend.noise}
                for backend in module.backends
                if backend.refusal is None
            },
        }
        for module in report.modules
    ]


def signal(measured: Mapping[str, Any], name: str) -> list[float]:
    """The median reading of each module, without those of a reference with itself."""
    rows = measured["plasticity"][name]
    return [statistics.median([row[index] for row in rows if row[index] > 0] or [0.0]) for index in range(len(rows[0]))]


def _recording(measured: Mapping[str, Any], task: Task, window: int) -> str:
    steps = measured["steps"]
    job = {"modules": len(measured["modules"]), "ranks": measured["ranks"], "total_steps": steps[-1]}
    lines: list[dict[str, Any]] = [{"job": job}]
    for step, readings in list(zip(steps, measured["plasticity"][f"moving {window}"]))[_BOOTSTRAP:]:
        rate = task.settings["rate"] * task.rate(min(step, steps[-1] - 1) / steps[-1])
        lines.append({"step": step, "lr": rate, "plasticity": readings})
    return "".join(json.dumps(line) + "\n" for line in lines)


def _summary(decisions: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]) -> dict[str, Any]:
    total, sizes = measured["steps"][-1], measured["parameters"]
    share, at, prefix = 0.0, 0, 0
    for step, after in [*((each["step"], each["frozen_prefix"]) for each in decisions), (total, 0)]:
        share += (step - at) / total * sum(sizes[:prefix]) / sum(sizes)
        at, prefix = step, after
    freezes = [each for each in decisions if each["action"] == "freeze"]
    return {
        "switches": [{"step": each["step"], "frozen_prefix": each["frozen_prefix"]} for each in decisions],
        "first_freeze": freezes[0]["step"] if freezes else None,
        "freezes": len(freezes),
        "thaws": sum(each["action"] == "unfreeze" for each in decisions),
        "deepest": max((each["frozen_prefix"] for each in decisions), default=0),
        "frozen_share": round(share, 4),
    }
