"""egeria.training.step_shares: whose time a backward pass and an optimizer's step are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from egeria.model.modules import partition
from egeria.training import step_shares
from egeria.training.step_shares import StepShares


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waited = 0.0  # so much of this time passed without work

    def __call__(self) -> float:
        return self.now

    def worked(self) -> float:
        return self.now - self.waited


class Slow(torch.autograd.Function):
    """Its backward pass takes some of a clock's time."""

    @staticmethod
    def forward(context, x: torch.Tensor, clock: Clock, seconds: float) -> torch.Tensor:
        context.clock, context.seconds = clock, seconds
        return x.clone()

    @staticmethod
    def backward(context, gradient: torch.Tensor):
        context.clock.now += context.seconds
        return gradient, None, None


class Model(nn.Module):
    def __init__(self, clock: Clock):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))
        self.clock = clock

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, seconds in zip(self.layers, (3.0, 2.0, 1.0)):
            x = Slow.apply(layer(x), self.clock, seconds)  # in the backward pass before the layer's weights
        return x


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(step_shares, "_marker", lambda device: made)
    monkeypatch.setattr(step_shares, "_processor_clock", lambda device: made.worked)
    return made


def measure(shares: StepShares, model: Model, modules, steps: int, forward: float = 3.4) -> None:
    """forward: seconds of the data and the forward pass."""
    for _ in range(steps):
        shares.begin(modules)
        model.clock.now += forward
        output = model(torch.randn(2, 4))
        shares.after_forward()
        output.sum().backward()
        shares.before_step()
        model.clock.now += 0.6
        shares.end()
        model.clock.now += 100.0  # evaluation


def test_time_goes_to_the_module_whose_gradient_comes_next(clock: Clock):
    model = Model(clock)
    modules = partition(model, [r"layers\.0", r"layers\.1", r"layers\.2"])
    shares = StepShares(model)
    assert shares.of(modules) == [0, 0, 0]
    measure(shares, model, modules, 3)
    assert shares.of(modules) == pytest.approx([0.32, 0.22, 0.12])
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_a_slow_first_step_does_not_count(clock: Clock):
    model = Model(clock)
    modules = partition(model, [r"layers\.0", r"layers\.1", r"layers\.2"])
    shares = StepShares(model)
    measure(shares, model, modules, 1, forward=90.0)
    measure(shares, model, modules, 2)
    assert shares.of(modules) == pytest.approx([0.32, 0.22, 0.12])


def test_what_waits_beside_communication_is_shared_out_by_processor_time(clock: Clock):
    model = Model(clock)

    def wait(_: torch.Tensor) -> None:
        clock.now += 2.0
        clock.waited += 2.0

    model.layers[1].register_full_backward_hook(lambda module, inputs, outputs: wait(outputs[0]))
    modules = partition(model, [r"layers\.0", r"layers\.1", r"layers\.2"])
    shares = StepShares(model)
    measure(shares, model, modules, 3)
    backward = [8 / 6 * seconds for seconds in (3.0, 2.0, 1.0)]  # 6 seconds of work and 2 of waiting
    assert shares.of(modules) == pytest.approx([(seconds + 0.2) / 12 for seconds in backward])


def test_what_egeria_takes_is_no_part_of_a_step(clock: Clock):
    model = Model(clock)
    modules = partition(model, [r"layers\.0", r"layers\.1", r"layers\.2"])
    own = [7.0]
    shares = StepShares(model, lambda: own[0])
    shares.begin(modules)
    clock.now += 3.4 + 50.0  # a proof of the cache's comes between
    output = model(torch.randn(2, 4))
    shares.after_forward()
    output.sum().backward()
    shares.before_step()
    clock.now += 0.6
    own[0] = 57.0
    shares.end()
    assert shares.of(modules) == pytest.approx([0.32, 0.22, 0.12])


def test_what_was_frozen_from_the_beginning_is_known_from_a_checkpoint(clock: Clock):
    model = Model(clock)
    modules = partition(model, [r"layers\.0", r"layers\.1", r"layers\.2"])
    shares = StepShares(model)
    shares.known = {modules[0].name: 0.3, modules[1].name: 0.1}
    model.layers[0].weight.requires_grad_(False)
    measure(shares, model, modules, 1)
    assert shares.of(modules)[0] == 0.3 and shares.of(modules)[1] > 0.2


def test_compiled_models_are_not_measured(clock: Clock):
    model = Model(clock)
    modules = partition(model, [r"layers\.0", r"layers\.1", r"layers\.2"])
    shares = StepShares(torch.compile(model, backend="eager"))
    measure(shares, model, modules, 1)
    assert shares.of(modules) == [0, 0, 0]


def test_behind_a_weight_that_trains_on_half_of_a_backward_pass_is_saved(clock: Clock):
    model = Model(clock)
    model.layers[2].weight = model.layers[1].weight
    modules = partition(model, [r"layers\.0", r"layers\.1", r"layers\.2"])
    shares = StepShares(model)
    measure(shares, model, modules, 1)
    first, second, _ = shares.of(modules)
    assert first == pytest.approx(0.3 + 0.03) and second == 0
    model = Model(clock)
    model.layers[2].weight = model.layers[0].weight
    shares = StepShares(model)
    modules = partition(model, [r"layers\.0", r"layers\.1", r"layers\.2"])
    measure(shares, model, modules, 1)
    assert shares.of(modules)[1] == pytest.approx(0.3 / 2 + 0.03), "the last weight's time is in front of it"
    model.layers[0].weight.requires_grad_(False)
    assert shares.of(modules)[1] == pytest.approx(0.3 + 0.03)
