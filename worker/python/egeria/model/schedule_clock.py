"""A ScheduleClock finds out how often a learning-rate scheduler is stepped, and from that what it is going to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from egeria.model.lr_schedules import (
    are_same_rates,
    is_of_timm,
    is_readable,
    planned_rates,
    rates_at,
    rates_now,
    ticks_of,
    unwrapped,
)

# Steps in a row with as many ticks, more than one, after which it is taken to stay so.
_SURE = 3
# Rates of earlier ticks are remembered for so many.
_MOST_PAST = 1000
# A scheduler of timm's may have gone on by so many ticks without a change of its rate.
_MOST_AT_ONCE = 64
# Somebody may be changing the rates besides, so that it is tried again, but not for ever.
_MOST_FAILURES = 4


class ScheduleClock:
    """People step schedulers with each optimizer step, once for each process in a step, with each micro-batch, or once
    an epoch. The scheduler's count at the ends of steps tells which it is; an epoch has to be over for that.
    Owned by the training thread.

    Attributes:
      scheduler: without accelerate's wrapper; None: there is none.
    """

    def __init__(self, scheduler: Any):
        self.scheduler = unwrapped(scheduler, "scheduler")
        self._ticks_a_step = 0  # in the newest steps
        self._in_a_row = 0  # the steps that have had as many
        self._step = 0
        self._tick: int | None = None  # in force in the newest step; None: not known
        self._ticked_at: int | None = None  # the first step of that tick
        self._steps_a_tick = 0  # where several steps make a tick; 0: not known
        self._past: dict[int, Sequence[float]] = {}
        self._failures = 0  # attempts to read it
        self._of_processes = _ticks_of_processes(scheduler)

    @property
    def is_readable(self) -> bool:
        """Whether the rates to come may be found out, now or later."""
        return is_readable(self.scheduler)

    def end_step(self, step: int) -> None:
        """An optimizer step has ended, the `step`-th of the training. Its rates are still in force, but where the
        scheduler has been stepped before the optimizer."""
        if not self.is_readable or (tick := self._tick_now(step)) is None:
            return
        if tick != self._tick and len(self._past) < _MOST_PAST:
            self._past[tick] = rates_now(self.scheduler)
        if self._tick is not None and step == self._step + 1:
            self._count(step, tick - self._tick)
        self._step, self._tick = step, tick

    def planned_rates(self, total_steps: int | None) -> list[float]:
        """As lr_schedules.planned_rates(); none while it is not known how often the scheduler is stepped."""
        if total_steps is None or not self._is_known() or self._failures >= _MOST_FAILURES:
            return []
        rates = planned_rates(self.scheduler, total_steps, self._tick_of, self._tick, self._past)
        self._failures += not rates
        return rates

    def total_steps(self) -> int | None:
        """Optimizer steps of the whole training, as far as the scheduler knows them."""
        ticks = ticks_of(self.scheduler) if self._is_known() else None
        if not ticks:
            return None
        return ticks * self._steps_a_tick if self._steps_a_tick else math.ceil(ticks / self._ticks_a_step)

    def _is_known(self) -> bool:
        if self._tick is None or self._steps_a_tick > 0:
            return self._tick is not None
        if self._ticks_a_step < 1 or self._in_a_row < (1 if self._ticks_a_step == self._of_processes else _SURE):
            return False
        # One that has been stepped less often belongs to another part of the training. More often is fine: a
        # GradScaler skips steps, the scheduler does not.
        return self._tick >= self._ticks_a_step * (self._step - 1)

    def _tick_of(self, step: int) -> int:
        """The tick in force at a step, from 0."""
        if self._steps_a_tick:
            return step // self._steps_a_tick
        return step * self._ticks_a_step

    def _count(self, step: int, ticks: int) -> None:
        """So many ticks have come between the step before and this one."""
        was_still = self._in_a_row > 0 and self._ticks_a_step == 0
        self._in_a_row = self._in_a_row + 1 if ticks == self._ticks_a_step else 1
        self._ticks_a_step = ticks
        if ticks == 0:
            return
        before, self._ticked_at = self._ticked_at, step - 1
        if was_still:
            # The first tick that is seen tells if all ticks before it have taken as many steps.
            steps, ticks = (step - 1, self._tick + ticks) if before is None else (step - 1 - before, ticks)
            self._steps_a_tick = steps // ticks if ticks > 0 and steps % ticks == 0 else 0

    def _tick_now(self, step: int) -> int | None:
        if not is_of_timm(self.scheduler):
            return getattr(self.scheduler, "last_epoch", None)
        if not self.scheduler.t_in_epochs:
            return step - 1
        now, known = rates_now(self.scheduler), self._tick or 0
        return next((tick for tick in range(known, known + _MOST_AT_ONCE) if self._is_at(tick, now)), None)

    def _is_at(self, tick: int, rates: Sequence[float]) -> bool:
        try:
            return are_same_rates(rates_at(self.scheduler, tick), rates)
        except Exception:  # pylint: disable=broad-exception-caught  # one that needs more than the tick
            return False


def _ticks_of_processes(scheduler: Any) -> int:
    """How many ticks accelerate's wrapper makes of a step; 1 without it."""
    counts = getattr(scheduler, "step_with_optimizer", False) and not getattr(scheduler, "split_batches", True)
    return dist.get_world_size() if counts and dist.is_initialized() else 1
