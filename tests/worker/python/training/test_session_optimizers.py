"""Optimizers as people have them: wrapped, two of them, with rates of their own, or such that keep copies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from layered_models import Layered
from torch import nn
from torch.optim import SGD, Optimizer

import egeria
from egeria.errors import EgeriaError
from egeria.training import session as session_module

PLANS = [(5, 2), (15, 0)]


@pytest.fixture(autouse=True)
def no_session_stays_open() -> Iterator[None]:
    yield
    for session in list(session_module._open.values()):
        session.close(finished=False)


class Wrapper:
    """Around an optimizer, and none itself."""

    def __init__(self, inner: Any, name: str = "optimizer"):
        vars(self)[name] = inner
        self.step, self.zero_grad = inner.step, inner.zero_grad


class Lookahead(Optimizer):
    """Leaves out the constructor of its base, as torch_optimizer's does."""

    def __init__(self, inner: Optimizer):
        self.optimizer, self.param_groups = inner, inner.param_groups
        self.slow = {p: p.detach().clone() for group in self.param_groups for p in group["params"]}
        self.count = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:
        self.optimizer.step(closure)
        self.count += 1
        for parameter, slow in self.slow.items() if self.count % 5 == 0 else ():
            slow.add_(0.5 * (parameter.data - slow))
            parameter.data.copy_(slow)


class OwnRate(Optimizer):
    """Makes learning rates of its own, as Adafactor with relative steps."""

    def __init__(self, parameters: Any):
        super().__init__(parameters, {"lr": None})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(0.1 * parameter.grad)


def muon_and_adamw(model: nn.Module) -> list[Optimizer]:
    parameters = list(model.parameters())
    return [
        torch.optim.Muon([p for p in parameters if p.dim() == 2], 0.02),
        torch.optim.AdamW([p for p in parameters if p.dim() != 2], 1e-3),
    ]


OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {
    "a wrapper": lambda model: Wrapper(SGD(model.parameters(), 0.1, momentum=0.9)),
    "two wrappers": lambda model: Wrapper(Wrapper(SGD(model.parameters(), 0.1), "base_optimizer"), "_optimizer"),
    "look-ahead": lambda model: Lookahead(SGD(model.parameters(), 0.1, momentum=0.9)),
    "Adafactor": lambda model: torch.optim.Adafactor(model.parameters(), 1e-2),
    "Muon and AdamW": muon_and_adamw,
    "rates of its own": lambda model: OwnRate(model.parameters()),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_its_steps_are_followed_and_what_is_frozen_stays(kind: str):
    torch.manual_seed(0)
    model = Layered()
    made = OPTIMIZERS[kind](model)
    optimizers = made if isinstance(made, list) else [made]
    config = egeria.Config(plans=PLANS, controller="none")
    session = egeria.attach(model, made, modules=["stem", "blocks.0", r"blocks.[^0]", "head"], config=config)
    frozen = []
    for _ in range(20):
        model(torch.randn(4, 8)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        if session.prefix:
            frozen.append(model.stem.weight.detach().clone())
    assert [(switch.step, switch.frozen_prefix) for switch in session.switches] == PLANS
    assert all(torch.equal(one, frozen[0]) for one in frozen) and session.summary()["steps"] == 20
    assert not torch.equal(model.stem.weight, frozen[0])


def test_one_that_keeps_copies_of_the_parameters_is_refused():
    model = Layered()
    masters = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    with pytest.raises(EgeriaError, match=r"\[MODEL_NOT_IN_OPTIMIZER\] .* or copies of them"):
        egeria.attach(model, Wrapper(SGD(masters, 0.1)), config=egeria.Config(controller="none"))


@pytest.mark.parametrize("given", [SimpleNamespace(step=print), Wrapper(Wrapper(SimpleNamespace(step=1, zero_grad=1)))])
def test_what_holds_no_optimizer_is_refused(given: Any):
    with pytest.raises(EgeriaError, match=r"\[BAD_OPTIMIZER\]"):
        egeria.attach(Layered(), given, config=egeria.Config(controller="none"))


def test_rates_that_an_optimizer_makes_itself_are_told_of(controller: Any, caplog: pytest.LogCaptureFixture):
    model = Layered()
    optimizer = OwnRate(model.parameters())
    session = egeria.attach(model, optimizer, config=egeria.Config(controller=controller.address, total_steps=100))
    for _ in range(5):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    (text,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "[RATES_UNKNOWN] an optimizer makes learning rates of its own" in text and session.prefix == 0
