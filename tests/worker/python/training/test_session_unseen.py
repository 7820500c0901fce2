"""A session that does not see all that it needs goes on with the rest, and says what it lacks."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from layered_models import Layered
from torch import Tensor, nn

import egeria
from egeria.training import session as session_module

SCHEDULE = {"policy": "schedule", "options": {"entries": [{"fraction": 0.01, "frozen_prefix": 1}]}}


@pytest.fixture(autouse=True)
def no_session_stays_open() -> Iterator[None]:
    yield
    for session in list(session_module._open.values()):
        session.close(finished=False)
    torch._dynamo.reset()


def stack(layers: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(layers)])


def train_until(
    condition: Callable[[int], bool], model: nn.Module, loss_of: Callable[[], Tensor], session: egeria.Session
) -> bool:
    """Whether `condition`, which is given the number of the step, came true."""
    optimizer = session._training.switcher.optimizers[0]
    for number in range(2000):
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(loss)
        if condition(number + 1):
            return True
        time.sleep(0.002)  # the controller answers within some of these steps
    return False


def attach(model: nn.Module, controller: Any, **more: Any) -> egeria.Session:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    given = {name: more.pop(name) for name in ("modules", "scheduler") if name in more}
    config = egeria.Config(**{"controller": controller.address, "total_steps": 1000, **SCHEDULE, **more})
    return egeria.attach(model, optimizer, config=config, **given)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("when", ["before attach", "after attach", "in mid-training"])
def test_a_model_that_is_compiled_in_place_is_followed(when: str, controller: Any, caplog: pytest.LogCaptureFixture):
    model = stack()
    if when == "before attach":
        model.compile(backend="eager")
    session = attach(model, controller)
    if when == "after attach":
        model.compile(backend="eager")
    passes: list[int] = []

    def condition(number: int) -> bool:
        if when == "in mid-training" and number == 20:
            model.compile(backend="eager")
        return session.prefix == 1 and number > 40

    inner = session._training.on_forward
    session._training._passes._before = lambda *given: (passes.append(1), inner(*given))
    assert train_until(condition, model, lambda: model(torch.randn(4, 8)).square().mean(), session)
    steps = session.summary()["steps"]
    assert steps == len(passes)
    assert told(caplog) == []
    assert not model._forward_hooks and not model._forward_pre_hooks, "the compiler would take them in"
    session.close()
    compiled = model._compiled_call_impl
    assert compiled is not None and "session_hooks" not in type(compiled).__module__
    assert "compile" not in vars(model)


@pytest.mark.parametrize("known", ["a sequence", "by modules"])
def test_a_model_that_is_called_in_a_compiled_function_is_frozen_where_its_order_is_known(
    known: str, controller: Any, caplog: pytest.LogCaptureFixture
):
    model = stack() if known == "a sequence" else Layered()

    @torch.compile(backend="eager")
    def loss_of() -> Tensor:
        return model(torch.randn(4, 8)).square().mean()

    more = {} if known == "a sequence" else {"modules": ["stem", "blocks", "head"]}
    session = attach(model, controller, **more)
    assert train_until(lambda _: session.prefix == 1, model, loss_of, session)
    assert told(caplog) == []


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decoder, self.encoder = nn.Linear(8, 8), stack(2)


@pytest.mark.parametrize("policy", ["schedule", "plasticity"])
def test_a_model_whose_parts_are_called_alone_is_told_of(
    policy: str, controller: Any, caplog: pytest.LogCaptureFixture
):
    model = Parts()
    session = attach(model, controller, policy=policy, options=SCHEDULE["options"] if policy == "schedule" else {})
    loss_of = lambda: model.decoder(model.encoder(torch.randn(4, 8))).square().mean()  # noqa: E731
    train_until(lambda number: number == 20, model, loss_of, session)
    (text,) = told(caplog)
    assert "[NO_PASSES] the model's forward pass is not seen" in text and session.summary()["steps"] == 20


@pytest.mark.parametrize("samples", [1, 2])
def test_a_policy_that_reads_nothing_takes_batches_of_one(samples: int, controller: Any):
    model = stack()
    session = attach(model, controller)
    assert train_until(
        lambda _: session.prefix == 1, model, lambda: model(torch.randn(samples, 8)).square().mean(), session
    )


def test_a_training_without_a_controller_says_so_at_both_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    for given in (None, "none"):
        if given is None:
            monkeypatch.delenv("EGERIA_CONTROLLER", raising=False)
        else:
            monkeypatch.setenv("EGERIA_CONTROLLER", given)
        model = stack()
        session = egeria.attach(model, torch.optim.SGD(model.parameters(), 1e-3), config=egeria.Config(cache="none"))
        train_until(lambda number: number == 3, model, lambda: model(torch.randn(4, 8)).mean(), session)
        session.close()
    assert [("egeria-run" in text) for text in told(caplog)] == [True]
    first, second = capsys.readouterr().out.splitlines()
    assert "there is no controller" in first and "there is no controller" not in second


class Foreign:
    """A scheduler that is none of torch's."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer

    def step_update(self, step: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * (1 + math.cos(step))


@pytest.mark.parametrize("kind", ["torch", "foreign", "none"])
def test_a_scheduler_that_cannot_be_read_is_told_of(kind: str, controller: Any, caplog: pytest.LogCaptureFixture):
    model = stack()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scheduler: Any = None
    if kind == "torch":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    elif kind == "foreign":
        scheduler = Foreign(optimizer)
    config = egeria.Config(controller=controller.address, total_steps=1000)
    session = egeria.attach(model, optimizer, scheduler=scheduler, config=config)
    for number in range(5):
        loss = model(torch.randn(4, 8)).mean()
        loss.backward()
        optimizer.step()
        session.step(loss)
        if kind == "torch":
            scheduler.step()
        elif kind == "foreign":
            scheduler.step_update(number)
    assert [("a Foreign" in text) for text in told(caplog)] == ([True] if kind == "foreign" else [])
