"""This file finds out what a learning-rate scheduler is going to do, without touching it."""

from __future__ import annotations

import bisect
import copy
import math
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LRScheduler,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from egeria import _native

# A copy is stepped so many times at most, which takes some hundredths of a second.
_MOST_TICKS = 10_000


def unwrapped(prepared: Any, kind: str) -> Any:
    """The optimizer or scheduler (`kind` says which) inside one that accelerate has prepared; any other as it is."""
    return getattr(prepared, kind, prepared)


def is_readable(scheduler: Any) -> bool:
    """Whether the rates to come may be found out, once it is known how often the scheduler is stepped."""
    return is_of_timm(scheduler) or (
        isinstance(scheduler, LRScheduler)
        and not isinstance(scheduler, ReduceLROnPlateau)
        and not any(isinstance(value, nn.Module) for value in vars(scheduler).values())  # nobody copies a model for it
    )


def is_of_timm(scheduler: Any) -> bool:
    """Whether it is one of timm's, which are told the tick and keep none."""
    return all(hasattr(scheduler, name) for name in ("step_update", "_get_lr", "t_in_epochs", "optimizer"))


def ticks_of(scheduler: Any) -> int | None:
    """How many ticks a scheduler goes through, where it knows that."""
    if is_of_timm(scheduler):
        return getattr(scheduler, "t_initial", None)
    if isinstance(scheduler, OneCycleLR):
        return int(scheduler.total_steps)
    if isinstance(scheduler, CosineAnnealingLR):
        return int(scheduler.T_max)
    if isinstance(scheduler, PolynomialLR):
        return int(scheduler.total_iters)
    if isinstance(scheduler, SequentialLR):
        rest = ticks_of(scheduler._schedulers[-1]) or getattr(scheduler._schedulers[-1], "total_iters", None)
        return int(scheduler._milestones[-1] + rest) if rest else None
    return None


def rates_now(scheduler: Any) -> list[float]:
    """The rate of each parameter group that is in force."""
    return [float(group["lr"]) for group in scheduler.optimizer.param_groups]


def planned_rates(
    scheduler: Any,
    total_steps: int | None,
    tick_of: Callable[[int], int] = lambda step: step,
    now: int | None = None,
    past: Mapping[int, Sequence[float]] = MappingProxyType({}),
) -> list[float]:
    """Learning rates of the first parameter group whose rate is ever over 0, at evenly spread steps of the whole
    training, the first and the last included.

    A copy of the scheduler is evaluated: those of torch and timm whose rate is a function of the tick, and others of
    torch's kind by stepping the copy until the end. Their earlier rates have to be known.

    Args:
      scheduler: without accelerate's wrapper.
      total_steps: optimizer steps of the training; None: unknown.
      tick_of: the scheduler's tick in force at a step, both from 0.
      now: the tick in force; None: as the scheduler has counted.
      past: by tick, the rates of each group so far, where they are known.

    Returns:
      At most 1,024 rates; none where they cannot be told, or where the rate of now is not what was found for it.
    """
    if not is_readable(scheduler) or total_steps is None or total_steps < 2:
        return []
    now = scheduler.last_epoch if now is None else now
    count = min(total_steps, _native.MAX_PLANNED_RATES)
    ticks = [tick_of(round(index * (total_steps - 1) / (count - 1))) for index in range(count)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a scheduler is not meant to be used so
            twin = _twin(scheduler)
            try:
                found, by_group = rates_at(twin, now), list(zip(*(rates_at(twin, tick) for tick in ticks)))
            except _Stepwise:
                found, by_group = _rates_by_stepping(_twin(scheduler), now, ticks, past)
        if not are_same_rates(found, rates_now(scheduler)):
            return []
    except Exception:  # pylint: disable=broad-exception-caught  # a user's function, or a scheduler unlike torch's
        return []
    rates = next((rates for rates in by_group if any(rates)), by_group[0])
    return list(rates) if all(math.isfinite(rate) and rate >= 0 for rate in rates) else []


class _Stepwise(TypeError):
    """The rate is not known as a function of the tick."""


def _twin(scheduler: Any) -> Any:
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


def are_same_rates(found: Sequence[float], rates: Sequence[float]) -> bool:
    """Whether they are, but for rounding."""
    return all(math.isclose(rate, real, rel_tol=1e-6, abs_tol=1e-12) for rate, real in zip(found, rates))


def rates_at(scheduler: Any, tick: int) -> list[float]:
    """The rate of each group at a tick, which one of torch's goes to.

    Raises:
      TypeError: it is no function of the tick alone.
    """
    if is_of_timm(scheduler):
        return [
            float(rate) * group.get("lr_scale", 1.0)
            for rate, group in zip(scheduler._get_lr(tick), scheduler.optimizer.param_groups)
        ]
    if isinstance(scheduler, SequentialLR):
        index = bisect.bisect_right(scheduler._milestones, tick)
        begin = scheduler._milestones[index - 1] if index > 0 else 0
        return rates_at(scheduler._schedulers[index], tick - begin)
    scheduler.last_epoch = tick
    if isinstance(scheduler, OneCycleLR):
        scheduler.last_epoch = min(tick, scheduler.total_steps - 1)
    closed_form = getattr(scheduler, "_get_closed_form_lr", None)
    if closed_form is None and type(scheduler).get_lr not in (LambdaLR.get_lr, OneCycleLR.get_lr):
        raise _Stepwise(f"{type(scheduler).__name__} has no rate that is a function of the step")
    return [float(rate) for rate in (closed_form or scheduler.get_lr)()]


def _rates_by_stepping(
    twin: LRScheduler, now: int, ticks: Sequence[int], past: Mapping[int, Sequence[float]]
) -> tuple[list[float], list[tuple[float, ...]]]:
    """The rates of now, and for each group those at `ticks`, which do not fall."""
    last = ticks[-1]
    if last - now > _MOST_TICKS:
        raise ValueError("too many ticks are to come")
    known = {**past, now: rates_now(twin)}
    for tick in range(now + 1, last + 1):
        twin.step()
        known[tick] = rates_now(twin)
    return list(known[now]), list(zip(*(known[tick] for tick in ticks)))
