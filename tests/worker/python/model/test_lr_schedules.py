"""egeria.model.lr_schedules: what torch's schedulers are going to do, and nothing that they did not do."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.optim import lr_scheduler

from egeria.model.lr_schedules import planned_rates

STEPS = 60


def optimizer() -> torch.optim.Optimizer:
    groups = [
        {"params": [torch.zeros(2, requires_grad=True)], "lr": 0.4},
        {"params": [torch.zeros(2, requires_grad=True)], "lr": 0.1},
    ]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def sequential(owner: torch.optim.Optimizer) -> lr_scheduler.SequentialLR:
    return lr_scheduler.SequentialLR(
        owner,
        [lr_scheduler.LinearLR(owner, 0.1, total_iters=10), lr_scheduler.CosineAnnealingLR(owner, STEPS - 10)],
        [10],
    )


class Own(lr_scheduler.LRScheduler):
    """A scheduler as people write them: each rate from the one before."""

    def get_lr(self) -> list[float]:
        return [group["lr"] * (1.0 if self.last_epoch == 0 else 0.96) for group in self.optimizer.param_groups]


MAKERS: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "lambda": lambda owner: lr_scheduler.LambdaLR(owner, lambda step: math.exp(-step / 20)),
    "step": lambda owner: lr_scheduler.StepLR(owner, 20, 0.1),
    "multi": lambda owner: lr_scheduler.MultiStepLR(owner, [30, 45], 0.1),
    "cosine": lambda owner: lr_scheduler.CosineAnnealingLR(owner, STEPS),
    "cycle": lambda owner: lr_scheduler.OneCycleLR(owner, 0.4, total_steps=STEPS),
    "linear": lambda owner: lr_scheduler.LinearLR(owner, 1.0, 0.0, total_iters=STEPS),
    "polynomial": lambda owner: lr_scheduler.PolynomialLR(owner, STEPS, 2.0),
    "sequential": sequential,
    "cyclic": lambda owner: lr_scheduler.CyclicLR(owner, 0.1, 0.4, step_size_up=7),
    "restarts": lambda owner: lr_scheduler.CosineAnnealingWarmRestarts(owner, 20),
    "multiplicative": lambda owner: lr_scheduler.MultiplicativeLR(owner, lambda _: 0.95),
    "own": Own,
}


def test_rates_are_those_of_the_first_group_that_learns():
    groups = [{"params": [torch.zeros(2, requires_grad=True)], "lr": rate} for rate in (0.0, 0.4, 0.1)]
    scheduler = lr_scheduler.CosineAnnealingLR(torch.optim.SGD(groups, lr=0.1), STEPS)
    planned = planned_rates(scheduler, STEPS)
    assert planned[0] == 0.4 and planned[STEPS // 2] == pytest.approx(0.2)


@pytest.mark.parametrize("name", MAKERS)
def test_rates_are_those_that_come_and_the_scheduler_is_left_alone(name: str):
    owner = optimizer()
    scheduler = MAKERS[name](owner)
    rates = []
    past: dict[int, list[float]] = {}
    planned: list[float] = []
    for step in range(STEPS):
        past[step] = [group["lr"] for group in owner.param_groups]
        if step == 7:
            before = repr(scheduler.state_dict()), repr(owner.state_dict())
            planned = planned_rates(scheduler, STEPS, past=past)
            assert (repr(scheduler.state_dict()), repr(owner.state_dict())) == before
        rates.append(owner.param_groups[0]["lr"])
        owner.step()
        if step < STEPS - 1:
            scheduler.step()
    assert planned == pytest.approx(rates, rel=1e-6, abs=1e-9)


def test_long_trainings_are_told_at_a_thousand_steps():
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer(), 1_000_000)
    planned = planned_rates(scheduler, 1_000_000)
    assert len(planned) == 1024 and planned[0] == pytest.approx(0.4) and planned[-1] == pytest.approx(0, abs=1e-9)


def test_a_method_is_not_copied_with_all_that_it_belongs_to():
    class Trainer:
        def rate(self, step: int) -> float:
            return math.exp(-step / 20)

        def __deepcopy__(self, _: dict) -> None:
            raise AssertionError("a trainer has the model and the data")

    for scheduler in (
        lr_scheduler.LambdaLR(optimizer(), Trainer().rate),
        lr_scheduler.SequentialLR(
            owner := optimizer(),
            [lr_scheduler.LambdaLR(owner, Trainer().rate), lr_scheduler.StepLR(owner, 20, 0.1)],
            [30],
        ),
    ):
        assert planned_rates(scheduler, STEPS)[:20] == planned_rates(MAKERS["lambda"](optimizer()), STEPS)[:20] != []


def test_what_is_no_function_of_the_step_is_not_told():
    owner = optimizer()
    assert planned_rates(lr_scheduler.ReduceLROnPlateau(owner), STEPS) == []
    assert planned_rates(None, STEPS) == [] and planned_rates(MAKERS["step"](owner), None) == []
    scheduler = MAKERS["lambda"](optimizer())
    scheduler.optimizer.param_groups[0]["lr"] = 0.123  # somebody else sets rates too
    assert planned_rates(scheduler, STEPS) == []
