"""Readings that this process takes itself."""

from __future__ import annotations

import random

import pytest
import torch
from egeria._native import compared, distance
from recorded_models import Branches, ResNet, call_of, random_statistics
from torch import nn

from egeria.model.inputs import GraphError, RootInputs
from egeria.model.isolation import undisturbed
from egeria.model.modules import partition
from egeria.reference.graph import export_model
from egeria.reference.probing import LocalReference, record_calls


def gram(output: torch.Tensor) -> torch.Tensor:
    return compared(output, "sp")


def sp_loss(training: torch.Tensor, reference: torch.Tensor) -> float:
    return distance(training, reference, "sp")


def test_the_sp_loss_is_that_of_the_controller():
    # Cases whose values the tests of common/plasticity have: equal, scaled, orthogonal.
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
        copy, ours = (exact.compared(index, inputs, "norm", copied) for copied in (True, False))
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
    for index in (0, 1):
        reference.take(index)
        copied = {name: value.clone() for name, value in reference._copy.items()}
        reference.reading(index, inputs)
        assert all(torch.equal(copied[name], value) for name, value in reference._copy.items())
    assert "seen" in {name for module in modules for name, _ in module.buffers()}
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
