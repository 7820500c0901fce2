"""`--reinvest planned`: as many steps as the time buys that a clock is going to save."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from bench.harness import machine
from bench.harness.errors import BenchError
from bench.harness.runs import PLANNED, Run, resolved_options
from bench.harness.task import Task

if TYPE_CHECKING:
    from egeria.doctor.report import Report


def with_planned_steps(runs: Sequence[Run], task: Task, ranks: int, known: Sequence[Mapping[str, Any]]) -> list[Run]:
    """The runs, of which none is PLANNED any more: each takes as many steps as the same run has in the task's `known`
    records, or as egeria.reinvest() makes of times that are measured here. The data has been loaded.

    Raises:
      BenchError: [NO_PLAN].
    """
    report: Report | None = None
    settings, found = machine.settings_hash(task.profile), []
    for run in runs:
        if run.share == PLANNED:
            shares = [
                record["share"]
                for record in known
                if (record["settings"], record["ranks"], record["run"], record["options"])
                == (settings, ranks, run.label, dict(run.options))
            ]
            if not shares:
                report = report or _measure(task, ranks)
                shares = [_planned_steps(run, task, report) / task.profile.steps]
            run = dataclasses.replace(run, share=shares[-1])
            print(f"{task.name}, {run.label}: {run.share:.4f} times the plain run's steps", flush=True)
        found.append(run)
    return found


def _planned_steps(run: Run, task: Task, report: Report) -> int:
    import egeria

    steps = task.profile.steps
    try:
        config = egeria.Config(controller="none", policy=run.policy, options=resolved_options(run, len(report.modules)))
        return egeria.reinvest(steps, config, report, learning_rates=[task.rate(step / steps) for step in range(steps)])
    except egeria.EgeriaError as error:
        raise BenchError("NO_PLAN", f"{run.label}: {error}; or give a factor, such as --reinvest 1.06") from None


def _measure(task: Task, ranks: int) -> Report:
    """Measures the time of a rank's steps with frozen prefixes, on one thread as in a run."""
    import egeria

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        batch = task.batch(task.order(0, torch.Generator().manual_seed(0))[: task.profile.batch_size // ranks])
        return egeria.doctor(
            task.build_model().to(device),
            batch,
            lambda model, batch: task.loss(model, batch, device),
            modules=task.modules,
        )
    except egeria.EgeriaError as error:
        raise BenchError("NO_PLAN", f"{task.name}: {error}") from None
    finally:
        torch.set_num_threads(threads)
