"""The controller is told the loss of each step."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from egeria.training.step_reports import Reports


class Told:
    """Stands for a line to the controller; keeps what it is told."""

    def __init__(self) -> None:
        self.native = self
        self.reports: list[tuple[int, float | None, list[float], int]] = []

    def report(self, step: int, loss: torch.Tensor | None, rates: list[float], prefix: int, still: int) -> None:
        assert still == 0
        self.reports.append((step, None if loss is None else round(float(loss), 6), rates, prefix))


def drive(order: str, steps: int = 4) -> list[tuple[int, float | None]]:
    """Runs steps in which f is a forward pass, l a loss, s the optimizer's step."""
    reports, told, loss, step = Reports(), Told(), 0.0, 0
    for _ in range(steps):
        for event in order:
            if event == "f":
                reports.forward()
            elif event == "l":
                loss += 1.0
                reports.add_loss(torch.tensor(loss) if loss % 2 else loss, told, 0)
            else:
                step += 1
                reports.end_step(step, [0.1], 0, told, 0)
                reports.boundary(told, 0)
    reports.flush(told, 0)
    return [(step, loss) for step, loss, _, _ in told.reports]


@pytest.mark.parametrize(
    ("order", "wanted"),
    [
        ("fsl", [(1, None), (2, 2.0), (3, 3.0), (4, 4.0)]),
        ("fls", [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]),
        ("flfls", [(1, 1.5), (2, 3.5), (3, 5.5), (4, 7.5)]),
        ("flfsl", [(1, 1.0), (2, 3.5), (3, 5.5), (4, 7.5)]),
        ("fs", [(1, None), (2, None), (3, None), (4, None)]),
    ],
)
def test_losses_belong_to_their_steps_whenever_they_are_reported(order: str, wanted: list[tuple[int, float | None]]):
    # The first loss behind a step comes too late for it: from the second on it is waited for.
    assert drive(order) == wanted


@pytest.mark.parametrize(
    "loss",
    [
        torch.empty((), device="meta"),
        FakeTensorMode().from_tensor(torch.tensor(1.0)),
        torch.tensor(1 + 1j),
        torch.empty(0),
        {"loss": 1.0},
        "nan?",
    ],
    ids=["meta", "fake", "complex", "empty", "dict", "text"],
)
def test_a_loss_without_a_value_is_refused_in_words(loss):
    reports = Reports()
    with pytest.raises((TypeError, ValueError)):
        reports.add_loss(loss, Told(), 0)
    assert not reports.any_loss


def test_a_loss_may_be_of_any_real_type():
    reports, told = Reports(), Told()
    for step, loss in enumerate((torch.tensor(True), torch.tensor(2.0, dtype=torch.bfloat16), float("nan"), 3)):
        reports.forward()
        reports.add_loss(loss, told, 0)
        reports.end_step(step, [0.1], 0, told, 0)
    reports.flush(told, 0)
    assert [loss for _, loss, _, _ in told.reports][:2] == [1.0, 2.0] and told.reports[3][1] == 3.0
