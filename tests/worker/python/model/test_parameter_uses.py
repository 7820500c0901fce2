"""A parameter belongs to the last layer module that takes part in it, as the first pass of training shows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from egeria.model.call_order import CallOrder
from egeria.model.inputs import RootInputs
from egeria.model.modules import LayerModule, partition
from egeria.model.parameter_uses import place
from egeria.reference.probing import record_pass


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 4)

    def body(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.relu(block(x))
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)))


class Vision(Layers):
    """Its tokens and positions are added in front, its bias at the end, its spare is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.positions = nn.Parameter(torch.zeros(1, 16)), nn.Parameter(torch.zeros(9, 16))
        self.bias, self.spare = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        token = self.token.expand(1, -1)
        x = torch.cat((self.stem(x), token)) + self.positions[: len(x) + 1]
        return self.head(self.body(x)) + self.bias


class Clip(Layers):
    """Gives its temperature out, besides using it."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(self.body(self.stem(x * 1.0) + self.temperature)), self.temperature


class Language(Layers):
    """The matrix at the end is the stem's, by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(super().forward(x), self.stem.weight.t())


class Twice(Layers):
    """Two images pass through the same layers one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + super().forward(2 * x)


class Checkpointed(Vision):
    def body(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(lambda x, block=block: block(x) + self.positions.mean(), x, use_reentrant=self.reentrant)
        return x


def placed(model: Layers, autocast: bool = False) -> list[LayerModule]:
    """The layer modules after one pass."""
    modules = partition(model, ["stem", *(f"blocks.{i}" for i in range(3)), "head"])
    order = CallOrder(model, model)
    order.begin(modules)
    with torch.autocast("cpu", enabled=autocast):
        order.end(model(torch.randn(8, 8)))
    assert not nn.modules.module._global_forward_hooks and not nn.modules.module._global_forward_pre_hooks
    assert order.calls is not None and order.calls[:2] == [model, model.stem]
    return place(modules, order.uses)


def loose(modules: list[LayerModule]) -> dict[str, int]:
    return {name: index for index, module in enumerate(modules) for name, _ in module.loose}


@pytest.mark.parametrize("autocast", [False, True])
def test_what_the_model_itself_holds_belongs_where_it_is_used_last(autocast: bool):
    assert loose(placed(Vision(), autocast)) == {"token": 0, "positions": 0, "bias": 4, "spare": 4}
    assert loose(placed(Clip(), autocast)) == {"temperature": 4}, "the script has it, too"


@pytest.mark.parametrize("autocast", [False, True])
def test_a_weight_that_a_function_uses_once_more_belongs_to_the_last_layer_module(autocast: bool):
    model = Language()
    modules = placed(model, autocast)
    assert loose(modules) == {"stem.weight": 4}
    assert [name for name, _ in modules[0].parameters()] == ["stem.bias"] and modules[0].elsewhere == {"stem.weight"}
    assert dict(modules[-1].parameters())["stem.weight"] is model.stem.weight


def test_layers_that_are_called_twice_keep_what_is_theirs():
    modules = placed(Twice())
    assert not loose(modules) and not any(module.elsewhere for module in modules)


@pytest.mark.parametrize("reentrant, home", [(False, 3), (True, 4)])
def test_uses_inside_checkpoints_count_or_hide_all(reentrant: bool, home: int):
    model = Checkpointed()
    model.reentrant = reentrant
    assert loose(placed(model))["positions"] == home
    assert loose(placed(model))["token"] == (4 if reentrant else 0)


def test_checkpoints_compute_again_what_the_watched_pass_has_computed():
    model = Checkpointed()
    model.reentrant = False
    order = CallOrder(model, model)
    order.begin(partition(model, ["stem", *(f"blocks.{i}" for i in range(3)), "head"]))
    output = model(torch.randn(8, 8))
    order.end(output)
    output.sum().backward()  # raises where the pass has saved more tensors for it, or fewer


@pytest.mark.parametrize("kind", [Vision, Language])
def test_a_pass_of_a_shadow_shows_the_same(kind: type[Layers]):
    model = kind()
    modules = partition(model, ["stem", *(f"blocks.{i}" for i in range(3)), "head"])
    calls, uses = record_pass(model, RootInputs((torch.randn(8, 8),), {}, 8), modules)
    assert calls[:2] == [model, model.stem] and loose(place(modules, uses)) == loose(placed(kind()))


def test_an_error_of_ours_does_not_reach_the_pass(monkeypatch):
    monkeypatch.setattr("egeria.model.parameter_uses.torch.ones", lambda *_, **__: 1 / 0)
    assert loose(placed(Vision())) == {"token": 4, "positions": 4, "bias": 4, "spare": 4}
