"""Freezing on one process: weights and optimizer state."""

from __future__ import annotations

import functools
import io
import random

import pytest
import torch
import torch._dynamo.testing
from layered_models import (
    Layered,
    backward,
    equal,
    freeze_by_hand,
    gradients,
    largest_relative_error,
    layer_modules,
    make,
)
from torch import nn

from egeria.errors import EgeriaError
from egeria.freeze.freezer import Freezer

OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, momentum=0.9),
    "nesterov": functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "adam": torch.optim.Adam,
    "adamw": functools.partial(torch.optim.AdamW, amsgrad=True),
    "rmsprop": functools.partial(torch.optim.RMSprop, momentum=0.9, centered=True),
    "adagrad": torch.optim.Adagrad,
}
VARIANTS = [
    (name, variant)
    for name in OPTIMIZERS
    for variant in ("plain", "foreach", "fused")
    if not (variant == "fused" and name == "rmsprop")
]  # torch has no fused RMSprop


def make_optimizer(name: str, variant: str, model: nn.Module, **options) -> torch.optim.Optimizer:
    options = {"lr": 1e-2, "weight_decay": 0.1, "foreach": variant == "foreach", **options}
    if variant == "fused":
        options |= {"foreach": None, "fused": True}
    return OPTIMIZERS[name](model.parameters(), **options)


def state_of(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    return [torch.as_tensor(value).clone() for p in parameters for _, value in sorted(optimizer.state[p].items())]


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("name, variant", VARIANTS)
def test_frozen_weights_and_their_optimizer_state_stay_constant_to_the_bit(name, variant, set_to_none):
    model = make()
    modules = layer_modules(model)
    optimizer = make_optimizer(name, variant, model)
    freezer = Freezer(modules, [optimizer])
    steps = 0

    def after_step(*_):  # as a session does it: while gradients of this step are still there
        nonlocal steps
        steps += 1
        if steps == 10:
            freezer.apply(3)

    optimizer.register_step_post_hook(after_step)
    frozen = [p for module in modules[:3] for _, p in module.parameters()]
    active = [p for module in modules[3:] for _, p in module.parameters()]
    for step in range(60):
        if step == 10:
            weights, state = [p.detach().clone() for p in frozen], state_of(optimizer, frozen)
            others = [p.detach().clone() for p in active]
        optimizer.zero_grad(set_to_none=set_to_none)
        backward(model, step)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    assert steps == 60
    assert equal(weights, frozen) and equal(state, state_of(optimizer, frozen)) and state
    assert all(not torch.equal(before, p) for before, p in zip(others, active))
    assert [p for group in optimizer.param_groups for p in group["params"]] == list(model.parameters())


@pytest.mark.parametrize("name, variant", VARIANTS)
def test_a_checkpoint_of_a_frozen_phase_continues_bit_for_bit_after_the_unfreeze(name, variant):
    model = make()
    optimizer = make_optimizer(name, variant, model)
    freezer = Freezer(layer_modules(model), [optimizer])
    for step in range(20):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        if step == 10:
            freezer.apply(3)
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file)

    other = make(seed=1)
    other_optimizer = make_optimizer(name, variant, other)
    other_freezer = Freezer(layer_modules(other), [other_optimizer])
    other.load_state_dict(weights)
    other_optimizer.load_state_dict(state)
    other_freezer.apply(3)
    for step in range(20, 30):
        for net, optim, freeze in ((model, optimizer, freezer), (other, other_optimizer, other_freezer)):
            optim.zero_grad()
            backward(net, step)
            optim.step()
            if step == 24:
                freeze.apply(0)
    assert equal(list(model.parameters()), list(other.parameters()))


@pytest.mark.parametrize("variant", ["plain", "foreach", "fused"])
def test_momentum_starts_anew_at_the_unfreeze_and_that_of_active_layers_does_not(variant):
    model = make()
    optimizer = make_optimizer("sgd", variant, model)
    freezer = Freezer(layer_modules(model), [optimizer])
    unfrozen = dict(layer_modules(model)[0].parameters())

    def step(number: int) -> None:
        optimizer.zero_grad()
        backward(model, number)
        optimizer.step()

    for number in range(10):
        step(number)
    freezer.apply(2)
    step(10)
    kept = optimizer.state[model.head.weight]["momentum_buffer"].clone()
    freezer.apply(0)
    assert torch.equal(kept, optimizer.state[model.head.weight]["momentum_buffer"])
    before = {name: p.detach().clone() for name, p in unfrozen.items()}
    step(11)
    for name, parameter in unfrozen.items():
        first = parameter.grad + 0.1 * before[name]  # the gradient with weight decay: what a first step is
        torch.testing.assert_close(parameter.detach(), before[name] - 1e-2 * first, rtol=1e-6, atol=1e-7)


def test_moments_of_adam_are_kept_over_a_freeze():
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    freezer = Freezer(layer_modules(model), [optimizer])
    for number in range(5):
        optimizer.zero_grad()
        backward(model, number)
        optimizer.step()
    state = state_of(optimizer, [model.stem.weight])
    freezer.apply(2)
    freezer.apply(0)
    assert equal(state, state_of(optimizer, [model.stem.weight])) and len(state) == 3


def test_a_parameter_that_asked_for_no_gradient_never_gets_one():
    model = make()
    model.stem.bias.requires_grad_(False)
    model.blocks[1].norm.requires_grad_(False)
    before = [p.requires_grad for p in model.parameters()]
    freezer = Freezer(layer_modules(model), [])
    for prefix in (1, 3, 2, 0, 4, 0):
        freezer.apply(prefix)
        flags = {name: p.requires_grad for name, p in model.named_parameters()}
        assert not flags["stem.bias"] and not flags["blocks.1.norm.weight"]
        assert flags["blocks.1.up.weight"] == (prefix < 3) and flags["stem.weight"] == (prefix < 1)
    assert [p.requires_grad for p in model.parameters()] == before


def test_gradients_that_are_switched_on_again_are_switched_off_before_the_next_pass():
    model = Layered()
    freezer = Freezer(layer_modules(model), [torch.optim.SGD(model.parameters(), 0.1)])
    model.stem.bias.requires_grad_(False)
    freezer.apply(2)
    model.requires_grad_(True)
    model(torch.randn(4, 8)).sum().backward()  # the pass before a session looks
    freezer.hold()
    assert not any(value.requires_grad or value.grad is not None for value in model.stem.parameters())
    assert not any(value.requires_grad for value in model.blocks[0].parameters())
    assert all(value.requires_grad for value in model.blocks[1].parameters())
    freezer.apply(0)
    assert all(value.requires_grad for value in model.parameters()), "as was asked for meanwhile"


def test_applying_says_whether_it_changed_anything_and_how_much_is_frozen():
    model = make(blocks=2, width=16)
    freezer = Freezer(layer_modules(model), [])
    total = sum(p.numel() for p in model.parameters())
    stem = sum(p.numel() for p in model.stem.parameters())
    assert freezer.prefix == 0 and freezer.frozen_share == 0.0
    assert not freezer.apply(0)
    assert freezer.apply(1) and freezer.prefix == 1 and freezer.frozen_share == stem / total
    assert not freezer.apply(1)


@pytest.mark.parametrize("prefix", [-1, 6, 100])
def test_the_last_layer_module_never_freezes(prefix):
    freezer = Freezer(layer_modules(make()), [])
    freezer.apply(2)
    with pytest.raises(EgeriaError, match=r"^\[BAD_PREFIX\] .* give 0 to 5$"):
        freezer.apply(prefix)
    assert freezer.prefix == 2


def test_parameters_that_were_replaced_while_frozen_are_unfrozen_by_their_names():
    model = make()
    freezer = Freezer(layer_modules(model), [])
    freezer.apply(3)
    model.load_state_dict(make(seed=1).state_dict(), assign=True)
    freezer.apply(0)
    assert all(p.requires_grad for p in model.parameters())


def test_random_toggles_train_like_a_model_frozen_by_hand():
    model, twin = make(norm=nn.BatchNorm1d), make(norm=nn.BatchNorm1d)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    freezer = Freezer(layer_modules(model), [optimizer])
    rng = random.Random(0)
    for toggle in range(100):
        prefix = rng.randrange(6)
        freezer.apply(prefix)
        freeze_by_hand(layer_modules(twin), prefix)
        twin.load_state_dict(model.state_dict())
        model.train()  # as every loop does at each epoch
        optimizer.zero_grad()
        twin.zero_grad()
        backward(model, toggle)
        backward(twin, toggle)
        assert largest_relative_error(gradients(model), gradients(twin)) == 0.0
        assert equal(list(model.buffers()), list(twin.buffers()))
        optimizer.step()


@pytest.mark.parametrize("name, variant", VARIANTS)
def test_an_optimizer_whose_parameters_are_all_frozen_changes_nothing(name, variant):
    model = make()
    backbone = nn.ModuleList([model.stem, model.blocks])
    optimizer = make_optimizer(name, variant, backbone)
    freezer = Freezer(layer_modules(model), [optimizer])
    backward(model, 0)
    optimizer.step()
    freezer.apply(5)
    before = [p.detach().clone() for p in backbone.parameters()]
    backward(model, 1)
    optimizer.step()
    assert equal(before, list(backbone.parameters()))
    freezer.apply(0)
