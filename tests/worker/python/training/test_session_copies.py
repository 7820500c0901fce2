"""Copies, pickles and TorchScript of a model that a session is attached to, and several sessions in a process."""

from __future__ import annotations

import copy
import io
import pickle
import pickletools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from layered_models import Block, Layered
from torch import nn
from torch.optim.swa_utils import AveragedModel

import egeria
from egeria.training import session as session_module

CLASSES = [Layered, Block, nn.Linear, nn.LayerNorm, nn.Dropout, nn.ModuleList, nn.Sequential, nn.ReLU]


@pytest.fixture(autouse=True)
def no_session_stays_open() -> Iterator[None]:
    yield
    for session in list(session_module._open.values()):
        session.close(finished=False)


def trained(model: nn.Module, plans: Any = ((2, 2),), steps: int = 3) -> egeria.Session:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = egeria.attach(model, optimizer, config=egeria.Config(plans=list(plans)))
    train(model, optimizer, steps)
    return session


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def saved(model: nn.Module) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file


def names_in(pickled: bytes) -> set[str]:
    return {str(argument) for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str)}


def plain(model: nn.Module) -> Layered:
    """A model that has never been attached, with the same attributes."""
    other = Layered()
    other.load_state_dict(model.state_dict())
    for name, parameter in other.named_parameters():
        parameter.requires_grad_(model.get_parameter(name).requires_grad)
    for name, module in other.named_modules():
        module.training = model.get_submodule(name).training
    return other


@pytest.mark.parametrize("plans", [[(9, 1)], [(2, 2)]])
def test_a_pickle_of_an_attached_model_is_that_of_a_plain_one(plans: list[tuple[int, int]]):
    model = Layered()
    session = trained(model, plans)
    assert session.prefix == (2 if plans[0][0] == 2 else 0)
    assert pickle.dumps(model.state_dict()) and names_in(pickle.dumps(model)) == names_in(pickle.dumps(plain(model)))
    with torch.serialization.safe_globals(CLASSES):
        loaded = torch.load(saved(model), weights_only=True)
    for other in (loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(vars(inner).keys() == vars(Block(4)).keys() for inner in other.blocks)
        assert not any(
            table for inner in other.modules() for name, table in vars(inner).items() if "forward" in name and table
        )
        assert torch.equal(other.head(torch.ones(1, 16)), model.head(torch.ones(1, 16)))
    assert not copy.copy(model)._forward_pre_hooks and "__getstate__" not in vars(copy.copy(model))
    assert len(model._forward_pre_hooks) > 1 and session.prefix == session.state_dict()["frozen_prefix"]
    session.close(finished=False)
    assert all("__getstate__" not in vars(inner) for inner in model.modules())


def test_hooks_of_the_users_own_are_copied_and_those_of_egeria_are_not():
    model = Layered()
    calls: list[int] = []
    first = model.register_forward_pre_hook(Count(calls), with_kwargs=False)
    session = trained(model)
    model.blocks[0].register_forward_hook(Count(calls))
    other = copy.deepcopy(model)
    assert list(other._forward_pre_hooks) == [first.id] and len(other.blocks[0]._forward_hooks) == 1
    assert not other._forward_pre_hooks_with_kwargs
    first.remove()
    assert len(other._forward_pre_hooks) == 1 and session.prefix == 2


class Count:
    def __init__(self, calls: list[int]):
        self.calls = calls

    def __call__(self, *_: Any) -> None:
        self.calls.append(1)


class Stateful(Layered):
    """Has a __getstate__ of its own, as models do that leave something out."""

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "left": "out"}


def test_a_model_says_itself_what_is_copied_of_it():
    model = Stateful()
    trained(model)
    other = copy.deepcopy(model)
    assert other.left == "out" and not other._forward_pre_hooks and not hasattr(model, "left")


@pytest.mark.parametrize("where", ["attribute", "list", "submodule"])
def test_a_model_that_holds_its_session_is_copied_and_saved(where: str):
    model = Layered()
    session = trained(model)
    if where == "attribute":
        model.session = session
    elif where == "list":
        model.helpers = [session, {"of": session}]
    else:
        model.blocks[0].session = session
    other = copy.deepcopy(model)
    held = {"attribute": lambda: other.session, "list": lambda: other.helpers[0]}.get(
        where, lambda: other.blocks[0].session
    )()
    held.step(torch.ones(()))
    assert held is not session and held.prefix == 0 and held.summary()["steps"] == 0
    held.close()
    with torch.serialization.safe_globals(CLASSES):
        loaded = torch.load(saved(model), weights_only=True)
    assert torch.equal(loaded.head(torch.ones(1, 16)), model.head(torch.ones(1, 16)))
    assert copy.copy(session) is session
    steps = session.summary()["steps"]
    train(model, session._training.switcher.optimizers[0], 2)
    assert session.summary()["steps"] == steps + 2


class Scriptable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x)))


def test_torchscript_takes_a_copy_and_refuses_the_attached_model_in_a_sentence():
    model = Scriptable()
    session = trained(model, [(2, 1)])
    with pytest.raises(egeria.EgeriaError, match=r"^\[SCRIPTED_MODULE\] TorchScript cannot.*copy.deepcopy\(model\)"):
        torch.jit.script(model)
    x = torch.randn(2, 8)
    assert torch.equal(torch.jit.script(copy.deepcopy(model))(x), model(x))
    assert torch.equal(torch.jit.trace(copy.deepcopy(model), x)(x), model(x))
    assert not any(hasattr(hook, "__name__") for hook in model._forward_hooks.values())
    session.close(finished=False)
    assert torch.equal(torch.jit.script(model)(x), model(x))


# Several sessions in a process.


def test_two_models_have_a_session_each(capsys: pytest.CaptureFixture[str]):
    models = [Layered(), Layered()]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    sessions = [
        egeria.attach(model, optimizer, config=egeria.Config(plans=[(step, 2)]))
        for model, optimizer, step in zip(models, optimizers, (3, 5))
    ]
    for _ in range(4):
        for model, optimizer in zip(models, optimizers):
            train(model, optimizer, 1)
    assert [session.prefix for session in sessions] == [2, 0]
    sessions[0].close()
    assert capsys.readouterr().out.startswith("egeria: Layered 1: 4 steps")
    train(models[1], optimizers[1], 2)
    assert [session.summary()["steps"] for session in sessions] == [4, 6] and sessions[1].prefix == 2


def test_one_optimizer_may_train_two_models():
    models = nn.ModuleList([Layered(), Layered()])
    optimizer = torch.optim.SGD(models.parameters(), 0.1)
    sessions = [egeria.attach(model, optimizer, config=egeria.Config(plans=[(3, 2)])) for model in models]
    for _ in range(4):
        (models[0](torch.randn(4, 8)) - models[1](torch.randn(4, 8))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [(session.summary()["steps"], session.prefix) for session in sessions] == [(4, 2), (4, 2)]


def from_a_file(model: nn.Module) -> nn.Module:
    return torch.load(saved(model), weights_only=False)


def from_a_state(model: nn.Module) -> nn.Module:
    other = Layered()
    other.load_state_dict(model.state_dict())
    return other


def from_an_average(model: nn.Module) -> nn.Module:
    average = AveragedModel(model)
    average.update_parameters(model)
    return average.module


@pytest.mark.parametrize("way", [copy.deepcopy, from_a_file, from_a_state, from_an_average])
def test_what_was_copied_while_layers_were_frozen_trains_as_a_whole(way: Callable[[nn.Module], nn.Module]):
    model = Layered(dropout=0.1)
    session = trained(model)
    assert session.prefix == 2
    best = way(model)
    best.train()
    before = [parameter.detach().clone() for parameter in best.parameters()]
    train(best, torch.optim.SGD(best.parameters(), 0.1), 1)
    assert not any(torch.equal(*pair) for pair in zip(before, best.parameters()))
    assert all(module.training for module in best.modules()) and session.prefix == 2
