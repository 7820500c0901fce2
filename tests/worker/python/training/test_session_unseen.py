"""A session that does not see all that it needs goes on with the rest, and says what it lacks."""

from __future__ import annotations

import logging
import math
import re
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
    """Has its parts in another order than they are called in; forward() calls them, too."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder, self.encoder = nn.Linear(8, 8), stack(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


CALLS: dict[str, Callable[[Parts, Tensor], Tensor]] = {
    "by parts": lambda model, x: model.decoder(model.encoder(x)),
    "by layers": lambda model, x: model.decoder(model.encoder[1](model.encoder[0](x))),
    "by forward()": lambda model, x: model.forward(x),
    "by another method": lambda model, x: Parts.forward(model, x),
    "with given parameters": lambda model, x: torch.func.functional_call(model, dict(model.named_parameters()), (x,)),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_model_that_is_not_called_as_a_whole_freezes_in_the_order_of_its_calls(
    call: str, controller: Any, caplog: pytest.LogCaptureFixture
):
    model = Parts()
    session = attach(model, controller)
    loss_of = lambda: CALLS[call](model, torch.randn(4, 8)).square().mean()  # noqa: E731
    assert train_until(lambda _: session.prefix == 1, model, loss_of, session)
    assert told(caplog) == []
    assert not model.encoder[0].weight.requires_grad and model.decoder.weight.requires_grad
    session.close()
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_parts_are_followed_only_while_the_model_itself_is_not_called(controller: Any):
    model = Parts()
    session = attach(model, controller, policy="none", options={})
    follower = session._training._parts
    seen = []
    for call in ("by parts", "by parts", "by forward()", "whole", "whole", "by parts", "by parts"):
        loss = CALLS.get(call, lambda model, x: model(x))(model, torch.randn(4, 8)).square().mean()
        loss.backward()
        session._training.switcher.optimizers[0].step()
        seen.append((bool(follower._handles), follower.sees))
    assert seen == [(True, False), *[(True, True)] * 2, *[(False, False)] * 2, (True, False), (True, True)]


def test_each_micro_batch_of_a_model_that_is_called_by_parts_is_a_pass():
    model = Parts()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    session = egeria.attach(model, optimizer, config=egeria.Config(controller="none"))
    passes: list[int] = []
    inner, follower = session._training.on_part, session._training._parts
    follower._before = lambda args, kwargs: (passes.append(len(args[0])), inner(args, kwargs))
    for _ in range(3):
        for samples in (4, 2):
            hidden = model.encoder(model.encoder(torch.randn(samples, 8)))  # called twice, in one pass
            model.decoder(hidden).square().mean().backward()
        with torch.no_grad():
            model.encoder(torch.randn(3, 8))
        optimizer.step()
        optimizer.zero_grad()
    assert passes == [4, 2, 4, 2] and session.summary()["steps"] == 3


def test_a_policy_that_reads_plasticity_needs_the_model_to_be_called(controller: Any, caplog: pytest.LogCaptureFixture):
    model = Parts()
    session = attach(model, controller, policy="plasticity", options={})
    loss_of = lambda: CALLS["by parts"](model, torch.randn(4, 8)).square().mean()  # noqa: E731
    train_until(lambda number: number == 20, model, loss_of, session)
    (text,) = told(caplog)
    assert "[NO_PASSES] the model's forward pass is not seen" in text and session.summary()["steps"] == 20


def test_a_compiled_function_shows_no_order(controller: Any, caplog: pytest.LogCaptureFixture):
    model = Parts()

    @torch.compile(backend="eager")
    def loss_of() -> Tensor:
        return model(torch.randn(4, 8)).square().mean()

    session = attach(model, controller)
    train_until(lambda number: number == 20, model, loss_of, session)
    (text,) = told(caplog)
    assert "[NO_PASSES]" in text and "`modules` in forward order" in text and session.summary()["steps"] == 20


@pytest.mark.parametrize("samples", [1, 2])
def test_a_policy_that_reads_nothing_takes_batches_of_one(samples: int, controller: Any):
    model = stack()
    session = attach(model, controller)
    assert train_until(
        lambda _: session.prefix == 1, model, lambda: model(torch.randn(samples, 8)).square().mean(), session
    )


def test_batches_of_one_are_watched_and_the_readings_that_they_cannot_give_are_said_once(
    controller: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    model = stack()
    session = attach(model, controller, policy="plasticity", options={})
    train_until(lambda number: number == 10, model, lambda: model(torch.randn(1, 8)).square().mean(), session)
    assert session.counters()
    (text,) = told(caplog)
    assert "a batch has one sample, and a reading of plasticity compares at least two; they have no readings" in text
    assert "will not freeze" not in capfd.readouterr().err


class Detector(nn.Module):
    """Takes a list of images and a list of targets, or an object that says nothing of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(4))
        self.head = nn.Linear(3, 2)

    def forward(self, images: Any, targets: list[dict[str, Tensor]]) -> Tensor:
        x = torch.stack(images.images if isinstance(images, Images) else images)
        for layer in self.body:
            x = torch.relu(layer(x))
        return nn.functional.cross_entropy(self.head(x.mean((2, 3))), torch.cat([t["labels"] for t in targets]))


class Images:
    def __init__(self, images: list[Tensor]):
        self.images = images

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("holds a file")


@pytest.mark.parametrize("kind", [list, Images])
def test_a_model_that_takes_no_tensors_is_frozen(kind: type, controller: Any, caplog: pytest.LogCaptureFixture):
    model = Detector()
    session = attach(model, controller)

    def loss_of() -> Tensor:
        targets = [{"labels": torch.randint(2, (1,)), "boxes": torch.rand(5, 4)}]
        return model(kind([torch.randn(3, 8, 8)]), targets)

    assert train_until(lambda _: session.prefix == 1, model, loss_of, session)
    assert told(caplog) == []


class Foreign:
    """A scheduler that is none of torch's."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer

    def step_update(self, step: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * (1 + math.cos(step))


SCHEDULERS = {
    "each step": (lambda owner: torch.optim.lr_scheduler.CosineAnnealingLR(owner, 400), 1, None),
    "each epoch": (lambda owner: torch.optim.lr_scheduler.CosineAnnealingLR(owner, 40), 10, None),
    "constant": (lambda owner: torch.optim.lr_scheduler.LambdaLR(owner, lambda _: 1.0), 1, "[RATES_STAY_HIGH] "),
    "plateau": (torch.optim.lr_scheduler.ReduceLROnPlateau, 0, "[RATES_UNKNOWN] a ReduceLROnPlateau does not tell"),
    "foreign": (Foreign, 1, "[RATES_UNKNOWN] the rates to come cannot be read from the scheduler, a Foreign"),
    "none": (lambda _: None, 0, "[RATES_UNKNOWN] attach() was given no scheduler"),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_what_auto_cannot_do_by_the_rates_is_said_once(kind: str, controller: Any, caplog: pytest.LogCaptureFixture):
    make, every, warning = SCHEDULERS[kind]
    model = stack()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scheduler = make(optimizer)
    config = egeria.Config(controller=controller.address, total_steps=400)
    session = egeria.attach(model, optimizer, scheduler=scheduler, config=config)
    for number in range(1, 16):
        loss = model(torch.randn(4, 8)).mean()
        loss.backward()
        optimizer.step()
        session.step(loss)
        if every and number % every == 0:
            getattr(scheduler, "step_update", lambda _: scheduler.step())(number)
    assert [text.removeprefix("egeria: ").startswith(warning or "?") for text in told(caplog)] == [True] * bool(warning)
    assert session._training.link.link.has_plan == (every > 0 and kind != "foreign")


@pytest.mark.parametrize(("policy", "starts"), [("finetune", 4), ("auto", 2)])
def test_a_policy_that_freezes_at_once_waits_until_some_steps_are_measured(policy: str, starts: int, controller: Any):
    model = stack()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    session = egeria.attach(
        model, optimizer, config=egeria.Config(controller=controller.address, policy=policy, total_steps=400)
    )
    linked = []
    for _ in range(9):
        loss = model(torch.randn(4, 8)).mean()
        loss.backward()
        optimizer.step()
        session.step(loss)
        linked.append(session._training.link.link is not None)
    assert linked.index(True) + 1 == starts
    session.close()


def test_the_last_line_says_why_nothing_froze(controller: Any, capsys: pytest.CaptureFixture[str]):
    for why, more in {
        "no controller had taken this job by then": {"controller": "unix:/nobody/listens.sock"},
        "the training ended before the last of 1,000 steps": {"policy": "staged", "options": {}},
        "the policy 'none' never freezes": {"policy": "none", "options": {}},
        "[RATES_STAY_HIGH] ": {"policy": "auto", "options": {}, "scheduler": "constant"},
    }.items():
        model = stack()
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0) if more.pop("scheduler", None) else None
        config = egeria.Config(**{"controller": controller.address, "total_steps": 1000, **SCHEDULE, **more})
        session = egeria.attach(model, optimizer, scheduler=constant, config=config)
        for _ in range(60):
            model(torch.randn(4, 8)).mean().backward()
            optimizer.step()
            constant and constant.step()
            time.sleep(0.02)
        session.close()
        line = capsys.readouterr().out
        assert re.match(rf"egeria: 60 steps, Egeria took [\d.]+ s, nothing froze: {re.escape(why)}", line), line
