"""Frozen trunks that their script changes in mid-run. Weights are the plain script's, to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frozen_trunk import IMAGES, Network, Run, Script, Trunk, changed, optimizer_of
from torch import Tensor, nn


def blend(step: int, model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.trunk.parameters():
            parameter.lerp_(torch.ones_like(parameter), 0.01)


def blend_by_pointer(step: int, model: nn.Module) -> None:
    if step % 5 == 4:
        for parameter in model.trunk.parameters():
            parameter.data = parameter.data * 1.01


def blend_by_numpy(step: int, model: nn.Module) -> None:
    if step % 5 == 4:
        model.trunk.first[0].weight.detach().numpy()[:] *= 1.01


def blend_one_element(step: int, model: nn.Module) -> None:
    if step in (9, 17):
        model.trunk.second[0].weight.data.view(-1)[17] += 1e-3


def load(step: int, model: nn.Module) -> None:
    if step == 13:
        model.trunk.load_state_dict({name: value * 1.5 for name, value in model.trunk.state_dict().items()})


def replace_layer(step: int, model: nn.Module) -> None:
    if step == 13:
        torch.manual_seed(9)
        model.trunk.second[0] = nn.Conv2d(8, 8, 3, 2, 1).requires_grad_(False)


def replace_trunk(step: int, model: nn.Module) -> None:
    if step == 13:
        torch.manual_seed(9)
        model.trunk = Trunk().requires_grad_(False).eval()


def replace_parameter(step: int, model: nn.Module) -> None:
    if step == 13:
        model.trunk.first[0].weight = nn.Parameter(torch.ones(8, 3, 3, 3), requires_grad=False)


def change_buffer(step: int, model: nn.Module) -> None:
    if step == 13:
        model.trunk.first[1].running_mean.add_(0.5)


def change_epsilon(step: int, model: nn.Module) -> None:
    if step == 13:
        model.trunk.first[1].eps = 0.1


def change_stride(step: int, model: nn.Module) -> None:
    if step == 13:
        model.trunk.second[0].stride = (1, 1)


def change_forward(step: int, model: nn.Module) -> None:
    if step == 13:
        original = model.trunk.first.forward
        model.trunk.first.forward = lambda images: original(images) + 1


class Patched(Trunk):
    """Its class's method is another one in the middle of a training."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images)


def change_method(step: int, model: nn.Module) -> None:
    if step == 0:
        model.trunk.__class__ = Patched
        Patched.forward = Trunk.forward
    if step == 13:
        Patched.forward = lambda self, images: Trunk.forward(self, images) + 1


def change_class_and_back(step: int, model: nn.Module) -> None:
    class Trunk(type(model.trunk)):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) + 1

    if step == 10:
        model.trunk.__class__ = Trunk
    if step == 21:
        model.trunk.__class__ = type(model.trunk).__mro__[1]


def transpose(step: int, model: nn.Module) -> None:
    if step == 13:
        weight = model.trunk.second[0].weight
        weight.data = weight.data.transpose(0, 1)


def turn_kernels(step: int, model: nn.Module) -> None:
    if step == 13:
        weight = model.trunk.second[0].weight
        weight.data = weight.data.transpose(2, 3)


def change_class(step: int, model: nn.Module) -> None:
    class Other(Trunk):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) + 1

    if step == 13:
        model.trunk.__class__ = Other


def to_double_and_back(step: int, model: nn.Module) -> None:
    if step == 13:
        model.trunk.half().float()


def prune(step: int, model: nn.Module) -> None:
    from torch.nn.utils.prune import random_unstructured

    if step == 13:
        torch.manual_seed(9)
        random_unstructured(model.trunk.first[0], "weight", 0.5)
        model.trunk.requires_grad_(False)


def channels_last(step: int, model: nn.Module) -> None:
    if step == 13:
        model.to(memory_format=torch.channels_last)


def threads(step: int, model: nn.Module) -> None:
    if step in (13, 20):
        torch.set_num_threads(2 if step == 13 else 1)


CHANGES = [
    blend,
    blend_by_pointer,
    blend_by_numpy,
    blend_one_element,
    load,
    replace_layer,
    replace_trunk,
    replace_parameter,
    change_buffer,
    change_epsilon,
    change_stride,
    change_forward,
    change_class,
    change_class_and_back,
    change_method,
    transpose,
    turn_kernels,
    to_double_and_back,
    prune,
    channels_last,
    threads,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_trunk_that_the_script_changes(change: Callable[[int, nn.Module], None], run: Run):
    run(changed(Network, change))


def test_a_teacher_s_average_of_the_trunk(run: Run):
    """The trunk is the moving average of another one, which trains beside it."""

    class Momentum(Network):
        def __init__(self) -> None:
            super().__init__()
            self.online = Trunk()
            self.online.load_state_dict(self.trunk.state_dict())

        def forward(self, images: Tensor) -> Tensor:
            return self.head(self.trunk(images) + self.online(images))

    def change(step: int, model: nn.Module) -> None:
        with torch.no_grad():
            for mine, other in zip(model.trunk.parameters(), model.online.parameters()):
                mine.mul_(0.9).add_(other, alpha=0.1)

    run(changed(Momentum, change))


def test_an_average_of_the_model_that_is_swapped_in_for_validation(run: Run):
    def script(run_: Script) -> Any:
        model = Network()
        optimizer = optimizer_of(model)
        run_.attach(model, optimizer)
        average = torch.optim.swa_utils.AveragedModel(model)
        seen = []

        def validate(epoch: int) -> None:
            average.update_parameters(model)
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict(average.module.state_dict())
            model.eval()
            with torch.no_grad():
                seen.append(model(IMAGES))
            model.train()
            model.load_state_dict(kept)

        run_.train(model, optimizer, each_epoch=validate)
        return [model, average, *seen]

    outcome = run(script)
    assert outcome.served >= 5 or outcome.names, outcome.text


def test_what_changes_in_each_pass_and_back_begins_the_cache_ever_more_rarely(run: Run, monkeypatch: Any):
    calls = [0]
    original = nn.Conv2d.forward

    def counted(self: nn.Conv2d, images: Tensor) -> Tensor:
        calls[0] += 1
        return original(self, images)

    def begin_anew(step: int) -> None:
        calls[0] = 0

    proofs = []

    def script(run_: Script) -> Any:
        model = Network()
        optimizer = optimizer_of(model)
        run_.attach(model, optimizer)
        run_.train(model, optimizer, epochs=12, before=begin_anew)
        if run_.session is not None:
            proofs.append(run_.session.cache_counters()["proofs"])
        return [model]

    monkeypatch.setattr(nn.Conv2d, "forward", counted)
    assert "SETTING_CHANGED" in run(script).names
    assert 2 <= proofs[0] <= 12  # there are 72 passes
