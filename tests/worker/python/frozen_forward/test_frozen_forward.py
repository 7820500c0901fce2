"""Frozen layers in inference form give what they give as they are, but for roundings, and never anything stale."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from processors import needs_bf16
from torch import Tensor, nn

from egeria.cache.forward_patches import ForwardPatches
from egeria.frozen_forward import fusing, inference_form
from egeria.frozen_forward.frozen_forward import FrozenForward
from egeria.frozen_forward.passes import Passes
from egeria.tell_once import TellOnce


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential(nn.Conv2d(width, width, 1), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class Chain(nn.Module):
    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean((2, 3)))


class OneByOne(Chain):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)))


Follow = Callable[..., FrozenForward]


@pytest.fixture(name="follow")
def follow_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[Follow]:
    """Follows a model's frozen modules: all of its layers, or those that are given. Time decides nothing."""
    monkeypatch.setattr(inference_form, "_WORTH", 1e9)
    monkeypatch.setattr(Passes, "may_build", lambda self: True)
    with contextlib.ExitStack() as stack:

        def follow(model: Chain, wanted: str = "fused", frozen: list[nn.Module] | None = None, busy: bool = False):
            spend = contextlib.nullcontext
            forward = FrozenForward(model, wanted, lambda: busy, spend, TellOnce())
            units = list(model.layers) if frozen is None else frozen
            for unit in units:
                unit.requires_grad_(False)
            forward.follow(units)
            stack.callback(forward.close)
            return forward

        yield follow


def chain(*layers: nn.Module, kind: type[Chain] = Chain) -> Chain:
    torch.manual_seed(0)
    model = kind(*(layers or (Block(8), Block(8), Block(8))))
    for _ in range(3):
        model(batch())
    return model.eval()


def batch(samples: int = 6, seed: int = 1) -> Tensor:
    return torch.randn(samples, 8, 12, 12, generator=torch.Generator().manual_seed(seed))


def form(model: Chain, forward: FrozenForward, x: Tensor | None = None) -> None:
    """Calls the model until all that can have a form has one."""
    for _ in range(4):
        model(batch() if x is None else x)
        forward.end_step()


def closely(one: Tensor, other: Tensor, bound: float = 1e-5) -> bool:
    return bool((one - other).abs().max() <= bound * other.abs().max())


@pytest.mark.parametrize("kind", [Chain, OneByOne])
def test_a_form_gives_what_the_layers_give_and_the_difference_is_told(
    kind: type[Chain], follow: Follow, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "egeria")
    model = chain(kind=kind)
    exact = model(batch())
    forward = follow(model)
    form(model, forward)
    calls = forward.calls
    assert closely(model(batch()), exact) and forward.calls > calls
    summary = forward.summary()
    assert summary["parts"] == (1 if kind is Chain else 3)
    assert 0 < summary["difference"] < 1e-5 * summary["of"] and summary["reasons"] == []
    assert "frozen layers run fused in" in caplog.text and "the largest difference on a real batch is" in caplog.text


def test_a_form_has_no_batch_normalisation_and_fuses_sums_and_activations(follow: Follow):
    model = chain()
    forward = follow(model)
    form(model, forward)
    (part,) = (part for part in forward._parts.values() if part.forms)
    (made,) = part.forms.values()
    called = [str(node.target) for node in made._trace.module.graph.nodes if node.op == "call_function"]
    assert not any("batch_norm" in name or "relu" in name or "add" in name for name in called), called
    assert called.count("mkldnn._convolution_pointwise_.binary") == 3  # over what the shortcut has computed


@needs_bf16
def test_bf16_is_rounded_where_it_was_asked_for(follow: Follow):
    model = chain()
    exact = model(batch())
    forward = follow(model, "bf16")
    form(model, forward)
    assert model(batch()).dtype == torch.float32
    assert closely(model(batch()), exact, 0.05) and not closely(model(batch()), exact)
    assert forward.summary()["difference"] > 1e-4 and forward.summary()["form"] == "bf16"


def test_where_bf16_does_not_pay_layers_run_fused_and_say_so(
    follow: Follow, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    def fuse(traced: Any, dtype: torch.dtype) -> bool:
        if dtype == torch.bfloat16:
            raise RuntimeError("this processor has no bfloat16")
        return fusing.fuse(traced, dtype)

    monkeypatch.setattr(inference_form, "fuse", fuse)
    caplog.set_level("INFO", "egeria")
    model = chain()
    exact = model(batch())
    forward = follow(model, "bf16")
    form(model, forward)
    assert closely(model(batch()), exact) and forward.calls > 0
    assert forward.summary()["form"] == "fused" and "frozen layers run fused in 1 parts" in caplog.text
    assert forward.summary()["reasons"] == ["[RAISES] in bfloat16: RuntimeError: this processor has no bfloat16"]


def test_a_sequential_goes_on_with_its_layers_that_train(follow: Follow):
    model = chain()
    exact = model(batch())
    forward = follow(model, frozen=list(model.layers)[:2])
    form(model, forward)
    assert closely(output := model(batch()), exact) and forward.summary()["parts"] == 1
    output.sum().backward()
    assert model.layers[2].conv1.weight.grad is not None and model.layers[1].conv1.weight.grad is None


class Past(Chain):
    """Calls what is in its trunk, and not the trunk."""

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.trunk = Chain(*layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.trunk.layers:
            x = layer(x)
        return self.head(x.mean((2, 3)))


def test_modules_that_are_called_past_what_is_frozen_are_formed(follow: Follow):
    model = chain(kind=Past)
    exact = model(batch())
    forward = follow(model, frozen=[model.trunk])
    form(model, forward)
    form(model, forward)
    calls = forward.calls
    assert closely(model(batch()), exact) and forward.calls == calls + 3


def test_layers_without_weights_between_frozen_ones_are_fused_with_them(follow: Follow):
    layers = [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    model = chain(*layers)
    exact = model(batch())
    forward = follow(model, frozen=[*model.layers[:2]])
    form(model, forward)
    calls = forward.calls
    assert closely(model(batch()), exact) and forward.calls == calls + 1
    (part,) = (part for part in forward._parts.values() if part.forms)
    assert len(part.frozen) == 3


WRITES = {
    "in place": lambda layer: layer.conv1.weight.data.mul_(2),
    "counted": lambda layer: torch.no_grad()(lambda: layer.bn1.weight.mul_(3))(),
    "a statistic": lambda layer: layer.bn2.running_mean.add_(1),
    "another tensor": lambda layer: setattr(layer.conv2, "weight", nn.Parameter(2 * layer.conv2.weight, False)),
    "a setting": lambda layer: setattr(layer.bn1, "eps", 0.5),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_form_of_other_weights_is_never_used(write: Callable[[Block], None], follow: Follow):
    model = chain()
    forward = follow(model)
    form(model, forward)
    calls = forward.calls
    write(model.layers[1])
    found = model(batch())
    assert forward.calls == calls
    plain = copy.deepcopy(model)
    assert torch.equal(found, plain(batch()))
    for _ in range(8):
        form(model, forward)
    calls = forward.calls
    assert closely(model(batch()), found) and forward.calls > calls  # a new form


def test_layers_that_train_again_are_computed_as_they_are(follow: Follow):
    model = chain()
    exact = model(batch())
    forward = follow(model)
    form(model, forward)
    model.requires_grad_(True)
    output = model(batch())
    assert torch.equal(output, exact)
    output.sum().backward()
    assert model.layers[0].conv1.weight.grad is not None


def test_a_gradient_autocast_and_the_cache_get_the_layers_as_they_are(follow: Follow):
    model = chain()
    exact = model(batch())
    forward = follow(model)
    form(model, forward)
    calls = forward.calls
    x = batch().requires_grad_()
    output = model(x)
    output.sum().backward()
    assert torch.equal(output, exact) and x.grad is not None
    with torch.autocast("cpu", torch.bfloat16):
        model(batch())
    forward._passes._is_busy = lambda: True
    assert torch.equal(model(batch()), exact)
    assert forward.calls == calls


def test_other_numbers_of_samples_and_channels_last_work(follow: Follow):
    class Viewing(Block):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.reshape(x.size(0), -1).reshape(x.shape))

    model = chain(Viewing(8), Viewing(8))
    cases = [batch(6), batch(5), batch(1), batch(6).contiguous(memory_format=torch.channels_last)]
    exact = [model.layers(x) for x in cases]
    forward = follow(model)
    for x in cases:
        form(model, forward, x)
        for other, expected in zip(cases, exact):
            found = model.layers(other)
            assert closely(found, expected) and found.stride() == expected.stride()
    assert sum(len(part.forms) for part in forward._parts.values()) >= 4


class Deciding(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


class Writing(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(0.5))


class Counting(Block):
    def __init__(self, width: int):
        super().__init__(width)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return super().forward(x)


class Keeping(Block):
    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.mean()
        return super().forward(x)


class Drawing(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.rand_like(x))


@pytest.mark.parametrize(
    "kind, name",
    [
        (Deciding, "NO_GRAPH"),
        (Writing, "WRITES_INPUT"),
        (Counting, "KEEPS_STATE"),
        (Keeping, "KEEPS_STATE"),
        (Drawing, "RANDOM"),
    ],
)
def test_what_is_no_function_of_its_input_is_refused_by_name_and_its_parts_are_formed(
    kind: type[Block], name: str, follow: Follow
):
    model = chain(kind(8), Block(8))
    plain = copy.deepcopy(model)
    forward = follow(model)
    for seed in range(8):
        torch.manual_seed(seed)
        found = model(batch(seed=seed))
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        assert closely(found, plain(batch(seed=seed)))
        assert torch.equal(state, torch.get_rng_state())
        forward.end_step()
    summary = forward.summary()
    assert any(reason.startswith(f"[{name}]") for reason in summary["reasons"]), summary
    assert summary["parts"] > 0 and forward.calls > 0  # the block behind it, if not what is inside it
    assert kind is not Counting or torch.equal(model.layers[0].calls, plain.layers[0].calls)


class Attending(nn.Module):
    """Attention over places, without a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        given = self.project(x.flatten(2).transpose(1, 2)).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(*given).transpose(1, 2).reshape(x.shape)


def test_what_has_no_convolution_is_rounded_or_left_alone(follow: Follow):
    model = chain(Attending())
    exact = model(batch())
    forward = follow(model)
    form(model, forward)
    assert torch.equal(model(batch()), exact)
    assert forward.summary()["reasons"][0].startswith("[NOTHING_TO_FUSE]")
    forward.close()
    forward = follow(model, "bf16")
    form(model, forward)
    assert closely(model(batch()), exact, 0.05) and forward.calls > 0 and forward.summary()["reasons"] == []


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(8), nn.Dropout(0.5), nn.Dropout2d(0.5)])
def test_training_mode_is_refused_by_name_and_evaluation_mode_is_not(layer: nn.Module, follow: Follow):
    model = chain(Block(8), nn.Sequential(nn.Conv2d(8, 8, 1), layer), Block(8))
    layer.train()
    forward = follow(model)
    form(model, forward)
    (reason,) = forward.summary()["reasons"][:1] or [""]
    assert reason.startswith("[TRAINING_MODE] 'layers.1.1'") and "eval()" in reason
    layer.eval()
    form(model, forward)
    plain, calls = copy.deepcopy(model), forward.calls
    assert closely(model(batch()), plain(batch())) and forward.calls > calls


@pytest.mark.parametrize("late", [False, True])
def test_hooks_inside_see_what_they_saw(late: bool, follow: Follow):
    model = chain()
    seen: list[Tensor] = []

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(output.detach().clone())

    if not late:
        model.layers[1].conv1.register_forward_hook(hook)
    exact = model(batch())
    forward = follow(model)
    form(model, forward)
    if late:
        model.layers[1].conv1.register_forward_hook(hook)
    form(model, forward)
    seen.clear()
    calls = forward.calls
    assert closely(model(batch()), exact)
    assert len(seen) == 1 and forward.calls > calls
    assert closely(seen[0], copy.deepcopy(model.layers[1].conv1)(copy.deepcopy(model.layers[0])(batch())))
    assert any(reason.startswith("[HOOKED]") for reason in forward.summary()["reasons"])


def test_copies_pickles_and_states_of_the_model_have_nothing_of_it(follow: Follow):
    model = chain()
    names = [(name, list(vars(module))) for name, module in model.named_modules()]
    exact, states = model(batch()), list(model.state_dict())
    forward = follow(model)
    form(model, forward)
    assert list(model.state_dict()) == states
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(batch()), exact)
        assert not any("forward" in vars(module) for module in other.modules())
    file = io.BytesIO()
    torch.save(model.layers[0].conv1, file)
    assert b"egeria" not in file.getvalue()
    forward.close()
    assert [(name, list(vars(module))) for name, module in model.named_modules()] == names
    assert torch.equal(model(batch()), exact)


def test_the_models_compiler_does_it_where_there_is_one(follow: Follow):
    model = chain()
    model.compile(backend="eager")
    forward = follow(model)
    form(model, forward)
    assert forward.summary()["reasons"][0].startswith("[COMPILED]") and forward.calls == 0


def test_a_model_that_is_compiled_later_is_left_alone_from_there_on(follow: Follow):
    model = chain()
    exact = model(batch())
    forward = follow(model)
    form(model, forward)
    model.compile(backend="eager")
    forward.end_step()
    assert torch.equal(model(batch()), exact) and not any("forward" in vars(module) for module in model.modules())


def test_a_form_that_is_not_faster_is_not_used(follow: Follow, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inference_form, "_WORTH", 0.0)
    model = chain()
    exact = model(batch())
    forward = follow(model)
    form(model, forward)
    assert torch.equal(model(batch()), exact)
    assert forward.summary()["reasons"][0].startswith("[NOT_FASTER] in float32 it takes")


def test_a_form_that_computes_something_else_is_not_used(follow: Follow, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inference_form, "_TOLERANCE", dict.fromkeys((torch.float32, torch.bfloat16), -1.0))
    model = chain()
    exact = model(batch())
    forward = follow(model)
    form(model, forward)
    assert torch.equal(model(batch()), exact)
    assert any(reason.startswith("[OUTPUT_DIFFERS]") for reason in forward.summary()["reasons"])


def test_making_forms_never_takes_longer_than_the_layers_have_taken(monkeypatch: pytest.MonkeyPatch):
    built: list[float] = []
    model = chain()
    forward = FrozenForward(model, "fused", lambda: False, contextlib.nullcontext, TellOnce())
    may_build = Passes.may_build

    def note(self: Passes) -> bool:
        if may_build(self):
            built.append(self._exact_seconds - self.build_seconds)
        return may_build(self)

    monkeypatch.setattr(Passes, "may_build", note)
    model.layers.requires_grad_(False)
    forward.follow(list(model.layers))
    for _ in range(20):
        model(batch())
        forward.end_step()
    forward.close()
    assert all(left > 0 for left in built)


@pytest.mark.parametrize("lower_first", [False, True])
def test_patches_over_one_another_are_taken_away_in_any_order(lower_first: bool):
    layer = nn.Linear(2, 2)
    lower, upper = ForwardPatches(), ForwardPatches()
    lower.replace(layer, lambda original, x: original(x) + 1)
    upper.replace(layer, lambda original, x: original(x) * 2)
    x = torch.ones(1, 2)
    assert torch.equal(layer(x), (nn.functional.linear(x, layer.weight, layer.bias) + 1) * 2)
    (lower if lower_first else upper).release()
    left = nn.functional.linear(x, layer.weight, layer.bias)
    assert torch.equal(layer(x), left * 2 if lower_first else left + 1)
    (upper if lower_first else lower).release()
    assert torch.equal(layer(x), left) and "forward" not in vars(layer)
