"""A session finds the steps of a training, whichever optimizers make them, and says where it finds none."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from layered_models import Layered
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

import egeria
from egeria.training import session as session_module

PLANS = [(5, 2), (15, 0)]


@pytest.fixture(autouse=True)
def no_session_stays_open() -> Iterator[None]:
    yield
    for session in list(session_module._open.values()):
        session.close(finished=False)


def network(seed: int = 0) -> Layered:
    torch.manual_seed(seed)
    return Layered()


def attach(model: nn.Module, optimizers: Any, plans: Any = PLANS, **more: Any) -> egeria.Session:
    return egeria.attach(model, optimizers, config=egeria.Config(plans=plans), **more)


def backward(model: nn.Module, step: int) -> Tensor:
    loss = model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step))).square().mean()
    loss.backward()
    return loss


def train(model: nn.Module, steps: int, step: Callable[[int], None], session: egeria.Session | None = None) -> None:
    for number in range(steps):
        loss = backward(model, number)
        step(number)
        if session is not None:
            session.step(loss)


def step_and_clear(*optimizers: Optimizer) -> None:
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def found(session: egeria.Session) -> tuple[int, list[tuple[int, int]]]:
    """Steps, and switches that came true."""
    return session.summary()["steps"], [(switch.step, switch.frozen_prefix) for switch in session.switches]


# Whichever optimizers make the steps.


@pytest.mark.parametrize("with_losses", [True, False])
def test_an_optimizer_made_in_mid_training_is_followed(with_losses: bool):
    model = network()
    optimizers: list[Optimizer] = [SGD(model.parameters(), 0.1)]
    session = attach(model, optimizers[0])

    def step(number: int) -> None:
        if number == 8:
            optimizers.append(SGD(model.parameters(), 0.01, momentum=0.9))
        if number == 15:  # the first step behind the thaw
            stem = optimizers[1].state[model.stem.weight]
            stem["momentum_buffer"] = torch.zeros_like(model.stem.weight)
        step_and_clear(optimizers[-1])

    train(model, 40, step, session if with_losses else None)
    assert found(session) == (40, PLANS)
    assert session._training._rates.now() == [0.01]
    assert session._training.switcher.optimizers == optimizers[1:], "the old one holds memory in vain"


def test_the_momentum_of_an_optimizer_made_in_mid_training_is_reset_at_the_thaw():
    model = network()
    optimizer: Optimizer = SGD(model.parameters(), 0.1)
    session = attach(model, optimizer)
    train(model, 4, lambda _: step_and_clear(optimizer))
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    train(model, 11, lambda _: step_and_clear(optimizer))  # it steps once before the freeze
    assert found(session) == (15, PLANS)
    assert not optimizer.state[model.stem.weight]["momentum_buffer"].any()
    assert optimizer.state[model.head.weight]["momentum_buffer"].any()


def test_optimizers_that_only_step_where_there_are_gradients_are_followed():
    model = network()
    front = SGD([*model.stem.parameters(), *model.blocks.parameters()], 0.1)
    head = SGD(model.head.parameters(), 0.1)
    session = attach(model, [front, head], [(5, 5), (15, 0)])  # all of the front freezes

    def step(_: int) -> None:
        for optimizer in (front, head):
            if any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
                step_and_clear(optimizer)

    train(model, 25, step, session)
    assert found(session) == (25, [(5, 5), (15, 0)])


def test_optimizers_with_a_pass_of_their_own_each_make_one_step_together():
    model = network()
    front, head = SGD(model.stem.parameters(), 0.1), SGD([*model.blocks.parameters(), *model.head.parameters()], 0.1)
    session = attach(model, [front, head])
    for number in range(20):
        for optimizer in (front, head):
            backward(model, number)
            step_and_clear(optimizer)
    assert found(session) == (20, PLANS)


def test_optimizers_that_step_inside_the_backward_pass_are_followed():
    model, watched = network(), network()
    for each in (model, watched):
        optimizers = {parameter: SGD([parameter], 0.1, momentum=0.9) for parameter in each.parameters()}

        def step(parameter: Tensor, optimizers: dict = optimizers) -> None:
            step_and_clear(optimizers[parameter])

        for parameter in each.parameters():
            parameter.register_post_accumulate_grad_hook(step)
    session = attach(watched, list(optimizers.values()))
    prefixes = []
    for number in range(25):
        if number < 5:
            backward(model, number)
        backward(watched, number)
        prefixes.append(session.prefix)
        if number == 4:
            assert all(map(torch.equal, model.parameters(), watched.parameters()))
            stem = watched.stem.weight.clone()
        if number == 14:
            assert torch.equal(stem, watched.stem.weight)
    assert found(session) == (25, PLANS)
    assert prefixes == [0] * 5 + [2] * 10 + [0] * 10 and not torch.equal(stem, watched.stem.weight)


class Shell(nn.Module):
    """A training framework's module, whose network is called through its parts."""

    def __init__(self, network: Layered):
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        x = self.network.stem(x)
        for block in self.network.blocks:
            x = block(x)
        return self.network.head(x)


def test_passes_of_a_wrapper_that_go_past_the_network_end_steps_too():
    shell = Shell(network())
    optimizers = {parameter: SGD([parameter], 0.1) for parameter in shell.parameters()}
    for parameter in shell.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: step_and_clear(optimizers[parameter]))
    session = attach(shell, list(optimizers.values()), network=shell.network)
    for number in range(25):
        backward(shell, number)
    assert found(session) == (25, PLANS)


def test_an_optimizer_of_parameters_that_are_no_more_is_let_go():
    model = network()
    optimizer: Optimizer = SGD(model.parameters(), 0.1)
    session = attach(model, optimizer, [(50, 2)])
    train(model, 3, lambda _: step_and_clear(optimizer))
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().clone()))
    optimizer = SGD(model.parameters(), 0.1)
    train(model, 3, lambda _: step_and_clear(optimizer))
    assert found(session)[0] == 6 and session._training.switcher.optimizers == [optimizer]


class Sam(Optimizer):
    """Sharpness-aware minimisation; its steps are two calls, or one with a closure."""

    def __init__(self, parameters: Any, rate: float):
        super().__init__(parameters, {"lr": rate})
        self.inner = SGD(self.param_groups, rate, momentum=0.9)
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def climb(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter]["before"] = parameter.clone()
                    parameter.add_(parameter.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def descend(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.copy_(self.state[parameter]["before"])
        self.inner.step()
        self.zero_grad()

    def step(self, closure: Any = None) -> None:
        self.climb()
        with torch.enable_grad():
            closure()
        self.descend()


def train_with_sam(model: nn.Module, optimizer: Sam, with_closure: bool, steps: int) -> list[tuple[Tensor, Tensor]]:
    """The stem's weight and momentum after each step."""
    seen = []
    for number in range(steps):
        backward(model, number)
        if with_closure:
            optimizer.step(lambda number=number: backward(model, number))
        else:
            optimizer.climb()
            backward(model, number)
            optimizer.descend()
        momentum = optimizer.inner.state[model.stem.weight]["momentum_buffer"]
        seen.append((model.stem.weight.detach().clone(), momentum.clone()))
    return seen


@pytest.mark.parametrize("with_closure", [True, False])
def test_two_passes_of_sam_are_one_step_and_no_weight_freezes_between_them(with_closure: bool):
    plain, model = network(), network()
    expected = train_with_sam(plain, Sam(plain.parameters(), 0.05), with_closure, 5)
    optimizer = Sam(model.parameters(), 0.05)
    session = attach(model, optimizer)
    seen = train_with_sam(model, optimizer, with_closure, 25)
    assert found(session) == (25, PLANS)
    assert torch.equal(seen[4][0], expected[4][0]) and torch.equal(seen[14][0], seen[4][0])
    assert not seen[14][1].any() and seen[13][1].any() and not torch.equal(seen[15][0], seen[4][0])


class Own(SGD):
    """Calls its parent's step(), which has hooks, too."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_an_optimizer_that_calls_its_parents_step_makes_one_step():
    model = network()
    SGD(model.parameters(), 0.1)  # torch puts hooks around the step() of a class at its first object
    optimizer = Own(model.parameters(), 0.1)
    session = attach(model, optimizer)
    train(model, 20, lambda _: step_and_clear(optimizer))
    assert found(session) == (20, PLANS)


def test_steps_of_other_models_are_none_of_this_one():
    model, other = network(), network()
    optimizer, others = SGD(model.parameters(), 0.1), Adam(other.parameters())
    session = attach(model, optimizer)

    def step(number: int) -> None:
        step_and_clear(optimizer)
        backward(other, number)
        step_and_clear(others)

    train(model, 10, step, session)
    assert found(session) == (10, PLANS[:1])


def test_an_exception_in_a_step_does_not_confuse_the_count():
    model = network()
    optimizer = Own(model.parameters(), 0.1)
    session = attach(model, optimizer)
    train(model, 3, lambda _: step_and_clear(optimizer))
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 // 0)
    train(model, 3, lambda _: step_and_clear(optimizer))
    assert found(session)[0] == 6


def test_a_scaler_made_after_attach_passes_over_what_is_frozen_as_a_whole():
    model = network()
    front = SGD([*model.stem.parameters(), *model.blocks[0].parameters()], 0.1)
    rest = SGD([*model.blocks[1:].parameters(), *model.head.parameters()], 0.1)
    session = attach(model, [rest, front])
    scaler = torch.amp.GradScaler("cpu")
    for number in range(20):
        scaler.scale(model(torch.randn(4, 8)).square().mean()).backward()
        for optimizer in (front, rest):
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
    assert found(session) == (20, PLANS)
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.step(front)  # as ever, where nothing is frozen


def test_a_new_optimizer_without_what_was_frozen_is_told_of(caplog: pytest.LogCaptureFixture):
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    session = attach(model, optimizer)
    train(model, 8, lambda _: step_and_clear(optimizer))
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    train(model, 8, lambda _: step_and_clear(optimizer))
    assert found(session) == (16, PLANS)
    assert "[PARAMETER_WITHOUT_OPTIMIZER] 'stem.weight'" in caplog.text


def test_nothing_freezes_while_the_loss_is_nan(controller: Any, capfd: pytest.CaptureFixture[str]):
    model = network()
    optimizer = SGD(model.parameters(), 0.01)
    options = {"entries": [{"fraction": 0.1, "frozen_prefix": 1}]}
    config = egeria.Config(controller=controller.address, policy="schedule", options=options, total_steps=200)
    session = egeria.attach(model, optimizer, config=config)

    def train_until(condition: Callable[[], bool], loss: float, steps: int) -> None:
        for number in range(steps):
            backward(model, number)
            step_and_clear(optimizer)
            session.step(loss)
            time.sleep(0.05)
            if condition():
                return

    def blocked() -> str:
        jobs = controller.egeria("list", "--json").splitlines()
        return json.loads(jobs[0]).get("blocked", "") if jobs else ""

    train_until(lambda: False, math.nan, 60)
    assert session.prefix == 0 and blocked().startswith("[LOSS_NOT_FINITE]")
    train_until(lambda: session.prefix == 1, 1.0, 600)
    assert session.prefix == 1 and blocked() == ""
    assert capfd.readouterr().err.count("[LOSS_NOT_FINITE] the loss of step") == 1


# Where none are found.


def write_by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.data -= 0.01 * parameter.grad
            parameter.grad = None


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("with_losses", [True, False])
def test_weights_that_move_without_steps_are_told_of_and_thaw(with_losses: bool, caplog: pytest.LogCaptureFixture):
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    session = attach(model, optimizer, [(5, 2), (40, 3)])
    train(model, 6, lambda _: step_and_clear(optimizer))
    assert session.prefix == 2
    train(model, 20, lambda _: write_by_hand(model), session if with_losses else None)
    assert session.prefix == 0 and all(parameter.requires_grad for parameter in model.parameters())
    train(model, 60, lambda _: step_and_clear(optimizer), session)
    assert found(session) == (66, [(5, 2), (6, 0)]), "nothing freezes from there on"
    (text,) = told(caplog)
    assert text.startswith("egeria: [NO_STEPS]") and "frozen layers train again" in text


def test_steps_that_come_again_are_followed_where_nothing_was_frozen(caplog: pytest.LogCaptureFixture):
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    session = attach(model, optimizer, [(40, 2)])
    train(model, 30, lambda _: write_by_hand(model), session)
    assert [text[:18] for text in told(caplog)] == ["egeria: [NO_STEPS]"]
    train(model, 45, lambda _: step_and_clear(optimizer), session)
    assert found(session) == (45, [(40, 2)])


def test_losses_of_another_model_are_told_of(caplog: pytest.LogCaptureFixture):
    model, other = network(), network()
    session = attach(model, SGD(model.parameters(), 0.1))
    optimizer = SGD(other.parameters(), 0.1)
    train(other, 20, lambda _: step_and_clear(optimizer), session)
    (text,) = told(caplog)
    assert text.startswith("egeria: [NO_STEPS] losses are reported")


@pytest.mark.parametrize("kept", [True, False])
def test_long_accumulation_and_passes_for_other_ends_are_no_reason_to_speak(
    kept: bool, caplog: pytest.LogCaptureFixture
):
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    session = attach(model, optimizer)
    for number in range(20):
        for micro in range(50):
            if kept:
                session.step(backward(model, micro))
            else:
                images = torch.randn(4, 8, requires_grad=True)
                torch.autograd.grad(model(images).sum(), images)  # an attack on its inputs, say
        step_and_clear(optimizer)
    assert found(session) == (20, PLANS) and told(caplog) == []
