"""Readings that this process takes itself, and what its line to the controller is told."""

from __future__ import annotations

import random

import pytest
import torch
from recorded_models import Branches, ResNet, call_of, random_statistics
from torch import nn

from egeria.graph import GraphError, RootInputs, export_model
from egeria.isolation import undisturbed
from egeria.modules import partition
from egeria.probing import LocalReference, compared, distance, gram, record_calls, sp_loss
from egeria.reports import Reports, total_steps_of


def test_the_sp_loss_is_that_of_the_controller():
    # Cases whose values controller/plasticity's tests have: equal, scaled, orthogonal.
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert sp_loss(a, a) == 0.0
    assert sp_loss(a, 7 * a) < 1e-15
    assert sp_loss(torch.eye(2), torch.eye(2).flip(0)) == pytest.approx(4 / 4)
    assert sp_loss(torch.eye(3), -torch.eye(3)) == pytest.approx(12 / 9)
    rows = torch.randn(4, 10)
    by_hand = (
        sum(((g / g.norm() - h / h.norm()) ** 2).sum() for g, h in zip(gram(rows).double(), gram(rows.abs()).double()))
        / 16
    )
    assert sp_loss(gram(rows), gram(rows.abs())) == pytest.approx(float(by_hand))


@pytest.mark.parametrize(
    "pair",
    [
        (torch.eye(2), torch.eye(3)),
        (torch.ones(1, 1), torch.ones(1, 1)),
        (torch.eye(2), torch.full((2, 2), float("nan"))),
    ],
)
def test_matrices_that_tell_nothing_are_refused(pair: tuple[torch.Tensor, torch.Tensor]):
    with pytest.raises(ValueError, match="Gram matri"):
        sp_loss(*pair)


def test_the_norm_is_that_of_the_difference_over_the_references():
    reference = torch.tensor([[1.0, 2.0], [3.0, 1.0]])
    assert distance(2 * reference, reference, "norm") == pytest.approx(1.0)
    assert distance(reference, reference, "norm") == 0.0
    for other in (torch.zeros(2, 3), torch.tensor([[1.0, float("nan")], [0.0, 0.0]])):
        with pytest.raises(ValueError):
            distance(other, reference, "norm")


def test_a_local_reading_is_that_of_the_recording_up_to_the_copys_rounding():
    torch.manual_seed(0)
    model = random_statistics(ResNet()).train()
    inputs = RootInputs(*call_of("ResNet"), 8)
    calls = record_calls(model, inputs)
    modules = partition(model, [["conv1", "bn1", "layer1"], "layer2.0", "layer2.1", "fc"])
    exported = export_model(model, modules, inputs)
    exact, rounded = LocalReference(model, modules, calls, dtype=None), LocalReference(model, modules, calls)
    for index in range(len(modules) - 1):
        assert not exact.has(index)
        with pytest.raises(GraphError, match="no copy"):
            exact.reading(index, inputs)
        exact.take(index)
        rounded.take(index)
        assert exact.reading(index, inputs) == 0.0
        assert 0 < rounded.reading(index, inputs) < 1e-5
        then = gram(exported.run(index, exported.inputs_of(index, inputs)))
        with torch.no_grad():
            for _, parameter in modules[index].parameters():
                parameter.mul_(1 + 0.1 * torch.rand_like(parameter))
        now = gram(exported.run(index, exported.inputs_of(index, inputs)))
        wanted = sp_loss(now, then)
        assert exact.reading(index, inputs) == pytest.approx(wanted, rel=1e-3, abs=1e-12)
        # The copy is of before the change, so that the norm is that of ours over the copy's.
        norm = exact.reading(index, inputs, "norm")
        with exact._copied_weights():
            copy = compared(exact._output(index, inputs), "norm")
        ours = compared(exact._output(index, inputs), "norm")
        assert norm == pytest.approx(float((ours - copy).norm() / copy.norm()), rel=1e-4) and norm > 0
        assert rounded.reading(index, inputs) == pytest.approx(wanted, rel=0.1, abs=1e-6)


def test_a_local_reading_leaves_no_trace_and_stops_behind_its_layer_module():
    class Drawing(Branches):
        def __init__(self) -> None:
            super().__init__()
            self.passes, self.reached = 0, 0
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.passes += 1
            self.seen.add_(random.random() * torch.rand(()))
            x = super().forward(x)
            self.reached += 1
            return x

    torch.manual_seed(0)
    model = Drawing()
    inputs = RootInputs((torch.randn(8, 8),), {}, 8)
    reference = LocalReference(model, modules := partition(model), record_calls(model, inputs))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate()
    counted: list[int] = []
    handle = model.head.register_forward_hook(lambda *_: counted.append(1))
    reference.take(1)
    reference.reading(1, inputs)
    handle.remove()
    assert not counted and len(modules) > 2
    assert model.passes == model.reached == 0
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(not module._forward_hooks for module in model.modules())


def test_undisturbed_puts_everything_back_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2))
    model[1].eval()
    with pytest.raises(KeyError), undisturbed(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        model[0].extra, model[0].weight = 1, nn.Parameter(torch.zeros(2, 2))
        model[2].running_mean.fill_(7)
        model[2].running_var = torch.zeros(2)
        torch.rand(3)
        raise KeyError
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert not hasattr(model[0], "extra") and model[0].weight.abs().sum() > 0
    assert torch.equal(model[2].running_mean, torch.zeros(2)) and torch.equal(model[2].running_var, torch.ones(2))
    assert torch.is_grad_enabled()


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


def test_schedulers_tell_the_number_of_steps_if_they_count_steps():
    schedulers = torch.optim.lr_scheduler
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)

    def stepped(scheduler: schedulers.LRScheduler, times: int) -> schedulers.LRScheduler:
        for _ in range(times):
            optimizer.step()
            scheduler.step()
        return scheduler

    assert total_steps_of(stepped(schedulers.OneCycleLR(optimizer, 0.1, total_steps=90), 2), 2) == 90
    assert total_steps_of(stepped(schedulers.CosineAnnealingLR(optimizer, 80), 1), 2) == 80
    assert total_steps_of(schedulers.CosineAnnealingLR(optimizer, 80), 2) is None  # it counts epochs
    assert total_steps_of(stepped(schedulers.LambdaLR(optimizer, lambda _: 1.0), 2), 2) is None
    parts = [schedulers.LinearLR(optimizer), schedulers.CosineAnnealingLR(optimizer, 50)]
    both = schedulers.SequentialLR(optimizer, parts, [10])
    assert total_steps_of(stepped(both, 2), 2) == 60
    assert total_steps_of(None, 2) is None
