"""This file finds out what a learning-rate scheduler is going to do, without touching it."""

from __future__ import annotations

import bisect
import copy
import math
import types
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, SequentialLR

from egeria import _native


def unwrapped(prepared: Any, kind: str) -> Any:
    """The optimizer or scheduler (`kind` says which) inside one that accelerate has prepared; any other as it is."""
    return getattr(prepared, kind, prepared)


def counts_processes(scheduler: Any) -> bool:
    """Whether the scheduler steps once for each process in a step, as accelerate's wrapper does."""
    return (
        getattr(scheduler, "step_with_optimizer", False)
        and not getattr(scheduler, "split_batches", True)
        and dist.is_initialized()
        and dist.get_world_size() > 1
    )


def planned_rates(
    scheduler: Any, total_steps: int | None, step: int | None = None, before: int | None = None
) -> list[float]:
    """Learning rates of the first parameter group whose rate is ever over 0, at evenly spread steps of the whole
    training, the first and the last included.

    Only for schedulers whose rate is a function of the step alone, stepped once per optimizer step: torch's LambdaLR,
    StepLR, MultiStepLR, ConstantLR, LinearLR, ExponentialLR, CosineAnnealingLR, PolynomialLR, OneCycleLR, and
    SequentialLR of those. They are evaluated on a copy.

    Args:
      total_steps: optimizer steps of the training; None: unknown.
      step: how many of them are done; None: as many as the scheduler has counted. One that counts something else
        (epochs, micro-batches) tells nothing.
      before: what the scheduler had counted a step ago. Where a GradScaler skips steps, a scheduler counts more than
        are done, but one for each.

    Returns:
      At most 1,024 rates; none where they cannot be told, or where the rate of now is not what was found for it.
    """
    if counts_processes(scheduler):
        return []
    scheduler = unwrapped(scheduler, "scheduler")
    if not isinstance(scheduler, LRScheduler) or total_steps is None or total_steps < 2:
        return []
    skipped = before is not None and step is not None and scheduler.last_epoch == before + 1 > step
    if step is not None and not step - 1 <= scheduler.last_epoch <= step and not skipped:
        return []
    now = [float(group["lr"]) for group in scheduler.optimizer.param_groups]
    count = min(total_steps, _native.MAX_PLANNED_RATES)
    steps = [round(index * (total_steps - 1) / (count - 1)) for index in range(count)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a scheduler is not meant to be used so
            twin = _twin(scheduler)
            found = _rates(twin, scheduler.last_epoch)
            if not all(math.isclose(rate, real, rel_tol=1e-6, abs_tol=1e-12) for rate, real in zip(found, now)):
                return []
            by_group = list(zip(*(_rates(twin, step) for step in steps)))
    except Exception:  # pylint: disable=broad-exception-caught  # a user's function, or a scheduler unlike torch's
        return []
    rates = next((rates for rates in by_group if any(rates)), by_group[0])
    return list(rates) if all(math.isfinite(rate) and rate >= 0 for rate in rates) else []


def _twin(scheduler: LRScheduler) -> LRScheduler:
    """A copy with an optimizer of its own, of the same groups without parameters that matter."""
    memo: dict[int, Any] = {id(scheduler.optimizer): _stand_in(scheduler.optimizer)}
    for part in getattr(scheduler, "_schedulers", [scheduler]):
        for function in getattr(part, "lr_lambdas", []):
            if isinstance(function, types.MethodType):  # a copy would copy its owner too, a trainer say
                memo[id(function)] = function
    return copy.deepcopy(scheduler, memo)


def _stand_in(optimizer: Optimizer) -> Optimizer:
    groups = [
        {
            **{name: value for name, value in group.items() if name != "params"},
            "params": [torch.zeros(1, requires_grad=True)],
        }
        for group in optimizer.param_groups
    ]
    return Optimizer(groups, dict(optimizer.defaults))


def _rates(scheduler: LRScheduler, step: int) -> list[float]:
    """The rate of each group after `step` steps."""
    if isinstance(scheduler, SequentialLR):
        index = bisect.bisect_right(scheduler._milestones, step)
        begin = scheduler._milestones[index - 1] if index > 0 else 0
        return _rates(scheduler._schedulers[index], step - begin)
    scheduler.last_epoch = step
    if isinstance(scheduler, OneCycleLR):
        scheduler.last_epoch = min(step, scheduler.total_steps - 1)
    closed_form = getattr(scheduler, "_get_closed_form_lr", None)
    if closed_form is None and type(scheduler).get_lr not in (LambdaLR.get_lr, OneCycleLR.get_lr):
        raise TypeError(f"{type(scheduler).__name__} has no rate that is a function of the step")
    return [float(rate) for rate in (closed_form or scheduler.get_lr)()]
