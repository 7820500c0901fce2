"""egeria.model.schedule_clock: how often a scheduler is stepped, and what it is going to do then."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from egeria.model.schedule_clock import ScheduleClock

EPOCHS, PER_EPOCH = 10, 6
STEPS = EPOCHS * PER_EPOCH


class OfTimm:
    """As timm's schedulers are: it is told the epoch, or the number of updates, and keeps no count."""

    def __init__(self, optimizer: torch.optim.Optimizer, ticks: int, t_in_epochs: bool, warmup: int = 0):
        self.optimizer, self.t_initial, self.t_in_epochs, self.warmup = optimizer, ticks, t_in_epochs, warmup
        self._update(0)

    def _get_lr(self, t: int) -> list[float]:
        falling = 0.1 * (1 + math.cos(math.pi * t / self.t_initial))
        return [0.01 if t < self.warmup else falling for _ in self.optimizer.param_groups]

    def _update(self, t: int) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._get_lr(t)):
            group["lr"] = rate * group.get("lr_scale", 1.0)

    def step(self, epoch: int) -> None:
        if self.t_in_epochs:
            self._update(epoch)

    def step_update(self, updates: int) -> None:
        if not self.t_in_epochs:
            self._update(updates)


def optimizer() -> torch.optim.Optimizer:
    groups = [{"params": [torch.zeros(2, requires_grad=True)]}, {"params": [torch.zeros(2)], "lr_scale": 0.5}]
    return torch.optim.SGD(groups, lr=0.2)


def train(scheduler: Any, tick: Callable[[int], None], steps: int = STEPS) -> tuple[list[float], int, list[float], Any]:
    """The rates of the training, the first step after which they are known, what is told then, and the clock."""
    clock = ScheduleClock(scheduler)
    owner = scheduler.optimizer
    rates, known_at, planned = [], 0, []
    for step in range(1, steps + 1):
        rates.append(owner.param_groups[0]["lr"])
        owner.step()
        clock.end_step(step)
        if not known_at and (planned := clock.planned_rates(STEPS)):
            known_at = step
        tick(step)
    return rates, known_at, planned, clock


PER_EPOCH_KINDS: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "cosine": lambda owner: lr_scheduler.CosineAnnealingLR(owner, EPOCHS),
    "step": lambda owner: lr_scheduler.StepLR(owner, 3, 0.1),
    "lambda": lambda owner: lr_scheduler.LambdaLR(owner, lambda epoch: 0.9**epoch),
    "restarts": lambda owner: lr_scheduler.CosineAnnealingWarmRestarts(owner, 5),
    "sequential": lambda owner: lr_scheduler.SequentialLR(
        owner,
        [lr_scheduler.LinearLR(owner, 0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(owner, EPOCHS - 2)],
        [2],
    ),
}


@pytest.mark.parametrize("kind", PER_EPOCH_KINDS)
def test_one_that_is_stepped_each_epoch_is_known_when_the_first_is_over(kind: str):
    scheduler = PER_EPOCH_KINDS[kind](optimizer())
    rates, known_at, planned, clock = train(scheduler, lambda step: step % PER_EPOCH or scheduler.step())
    assert known_at == PER_EPOCH + 1
    assert planned == pytest.approx(rates, rel=1e-6, abs=1e-12)
    assert clock.total_steps() == (STEPS if kind in ("cosine", "sequential") else None)


def test_an_epoch_that_has_begun_before_tells_with_the_second_one():
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer(), EPOCHS)
    scheduler.step()
    _, known_at, _, _ = train(scheduler, lambda step: (step + 1) % PER_EPOCH or scheduler.step())
    assert known_at == 2 * PER_EPOCH


@pytest.mark.parametrize("in_epochs", [True, False])
def test_those_of_timm_are_read_though_they_keep_no_count(in_epochs: bool):
    scheduler = OfTimm(optimizer(), EPOCHS if in_epochs else STEPS, in_epochs, warmup=2 if in_epochs else 4)

    def tick(step: int) -> None:
        scheduler.step_update(step)
        if step % PER_EPOCH == 0:
            scheduler.step(step // PER_EPOCH)

    rates, known_at, planned, clock = train(scheduler, tick)
    assert known_at == (2 * PER_EPOCH + 1 if in_epochs else 2), "in the warm-up its epochs look alike"
    assert planned == pytest.approx(rates, rel=1e-6, abs=1e-12)
    assert clock.total_steps() == STEPS


@pytest.mark.parametrize("times", [2, 4])
def test_one_that_is_stepped_several_times_a_step_is_read(times: int):
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer(), times * STEPS)
    rates, known_at, planned, clock = train(scheduler, lambda _: [scheduler.step() for _ in range(times)])
    assert known_at == 4 and planned == pytest.approx(rates, rel=1e-6, abs=1e-12) and clock.total_steps() == STEPS


def test_one_that_counts_steps_is_known_at_once():
    for steps_skipped in (0, 2):  # by a GradScaler, before the first one counts
        scheduler = lr_scheduler.CosineAnnealingLR(optimizer(), STEPS)
        for _ in range(steps_skipped):
            scheduler.step()
        assert train(scheduler, lambda _: scheduler.step())[1] == 2


def test_one_that_is_behind_belongs_to_another_part_of_the_training():
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer(), STEPS)
    clock = ScheduleClock(scheduler)
    for step in range(30, 40):
        clock.end_step(step)
        scheduler.step()
    assert clock.planned_rates(STEPS) == [] and clock.total_steps() is None


def test_accelerates_wrapper_ticks_for_each_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    inner = lr_scheduler.CosineAnnealingLR(optimizer(), 2 * STEPS)
    clock = ScheduleClock(SimpleNamespace(scheduler=inner, step_with_optimizer=True, split_batches=False))
    clock.end_step(1)
    inner.step()
    inner.step()
    clock.end_step(2)
    planned = clock.planned_rates(STEPS)
    assert len(planned) == STEPS and planned[30] == pytest.approx(0.1) and clock.total_steps() == STEPS


def test_what_cannot_be_read_is_not():
    owner = optimizer()
    for scheduler in (None, lr_scheduler.ReduceLROnPlateau(owner), SimpleNamespace(optimizer=owner)):
        clock = ScheduleClock(scheduler)
        for step in range(1, 20):
            clock.end_step(step)
        assert not clock.is_readable and clock.planned_rates(STEPS) == [] and clock.total_steps() is None
    never = ScheduleClock(lr_scheduler.StepLR(owner, 3))
    for step in range(1, 20):
        never.end_step(step)
    assert never.is_readable and never.planned_rates(STEPS) == []
