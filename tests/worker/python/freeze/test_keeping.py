"""Frozen layers stay as they are, and the wishes of a script about them are remembered."""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from layered_models import Layered
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

import egeria
from egeria.freeze import keeper as keeper_module
from egeria.training import session as session_module

FREEZE_AT = 4


@pytest.fixture(autouse=True)
def no_session_stays_open(recompiles: None) -> Iterator[None]:
    yield
    for session in list(session_module._open.values()):
        session.close(finished=False)
    assert type(vars(nn.Parameter).get("requires_grad")) is not property, "torch is left as it was found"


@pytest.fixture
def recompiles() -> Iterator[None]:
    """Sessions raise these limits for the process."""
    config = torch._dynamo.config
    limits = config.recompile_limit, config.accumulated_recompile_limit
    yield
    config.recompile_limit, config.accumulated_recompile_limit = limits
    torch._dynamo.utils.counters.clear()


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="egeria")
    return caplog


class DecayFirst(torch.optim.Adam):
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.99)
        return super().step(closure)


class DecayOfData(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(0.99)
        return super().step(closure)


class ZerosFilledIn(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        return super().step(closure)


class LookAhead(torch.optim.Optimizer):
    """Holds another optimizer, whose weights it averages at each fifth step."""

    def __init__(self, parameters: list[nn.Parameter]):
        super().__init__(parameters, {})
        self.base = torch.optim.SGD(parameters, 0.1, momentum=0.9)
        self.slow = [parameter.detach().clone() for parameter in parameters]
        self.steps = 0

    def step(self, closure: Any = None) -> None:
        self.base.step(closure)
        self.steps += 1
        if self.steps % 5 == 0:
            for slow, parameter in zip(self.slow, self.param_groups[0]["params"]):
                slow.lerp_(parameter.detach(), 0.5)
                parameter.data.copy_(slow)


MOVERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "decay before the step": lambda parameters: DecayFirst(parameters, 1e-2),
    "decay of data": lambda parameters: DecayOfData(parameters, 1e-2),
    "zeros for gradients": lambda parameters: ZerosFilledIn(parameters, 0.1, momentum=0.9, weight_decay=0.1),
    "look-ahead": LookAhead,
}


class Training:
    def __init__(self, optimizer: Any = None, plans: Any = ((FREEZE_AT, 3),), **options: Any):
        torch.manual_seed(0)
        self.model = Layered(**{"norm": nn.BatchNorm1d, **options})
        make = optimizer or (lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9))
        self.optimizer = make(list(self.model.parameters()))
        self.called: nn.Module = self.model
        self.session = egeria.attach(self.model, self.optimizer, config=egeria.Config(plans=list(plans)))
        self.step = 0

    @property
    def front(self) -> nn.Module:
        return self.model.blocks[0]

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            self.model.train()
            data = torch.Generator().manual_seed(self.step)
            self.optimizer.zero_grad()
            self.called(torch.randn(16, 8, generator=data)).square().mean().backward()
            self.optimizer.step()


def values(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


# Optimizers.


@pytest.mark.parametrize("kind", MOVERS)
def test_an_optimizer_that_moves_what_is_frozen_is_named_and_freezes_nothing_more(
    kind: str, told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(MOVERS[kind], plans=[(FREEZE_AT, 3), (20, 3)])
    training.train(FREEZE_AT)
    before = values(training.front)
    seen: list[bool] = []  # at the thaw, after what was moved has been put back
    switch = training.session._training.switcher.switch
    monkeypatch.setattr(
        training.session._training.switcher,
        "switch",
        lambda *arguments: (seen.append(same(before, values(training.front))), switch(*arguments))[1],
    )
    training.train(6)
    assert seen == [True] and training.session.prefix == 0
    assert told.text.count("[OPTIMIZER_MOVES_FROZEN]") == 1 and "stem.weight" in told.text
    training.train(15)
    assert training.session.prefix == 0 and len(training.session.switches) == 2
    assert all(parameter.requires_grad for parameter in training.model.parameters())


@pytest.mark.parametrize("plain", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_an_optimizer_that_leaves_what_is_frozen_alone_is_left_alone(
    plain: Any, told: pytest.LogCaptureFixture
) -> None:
    training = Training(lambda parameters: plain(parameters, 1e-3, weight_decay=0.1))
    training.train(40)
    assert training.session.prefix == 3 and not told.text


def test_without_a_copy_what_was_moved_trains_again_as_it_is(
    told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "_SMALL_BYTES", 0)
    monkeypatch.setattr(keeper_module, "_STEPS_OF_A_TRIAL", 2)
    training = Training()
    training.train(FREEZE_AT + 3)
    assert all(kept.copy is None for kept in training.session._training.switcher.keeper._kept)
    training.optimizer.register_step_pre_hook(lambda *_: (training.front.up.weight.data.zero_(), None)[1])
    training.train(1)
    assert "[OPTIMIZER_MOVES_FROZEN]" in told.text and training.session.prefix == 0


def test_what_the_script_itself_writes_stays_and_is_told_once(told: pytest.LogCaptureFixture) -> None:
    training = Training()
    training.train(FREEZE_AT + 2)
    for write in (lambda weight: weight.mul_(2), lambda weight: weight.data.add_(1)):
        with torch.no_grad():
            write(training.front.up.weight)
        wanted = values(training.front)
        training.train(3)
        assert same(wanted, values(training.front)) and training.session.prefix == 3
    assert told.text.count("[FROZEN_WEIGHTS_WRITTEN]") == 1 and "blocks.0.up.weight" in told.text


def test_an_average_that_is_swapped_in_and_out_is_nothing_to_tell(told: pytest.LogCaptureFixture) -> None:
    training = Training()
    training.train(FREEZE_AT + 2)
    for write in (lambda weight, value: weight.copy_(value), lambda weight, value: weight.data.copy_(value)):
        kept = [parameter.detach().clone() for parameter in training.model.parameters()]
        with torch.no_grad():
            for parameter in training.model.parameters():
                write(parameter, torch.zeros_like(parameter))
            for parameter, value in zip(training.model.parameters(), kept):
                write(parameter, value)
        training.train(3)
    assert not told.text and training.session.prefix == 3


def test_momentum_is_reset_where_the_step_is_compiled_and_in_an_optimizer_inside_another() -> None:
    class Around(torch.optim.Optimizer):
        def __init__(self, parameters: list[nn.Parameter]):
            super().__init__(parameters, {})
            self.base_optimizer = torch.optim.SGD(parameters, 0.05, momentum=0.9)

        def step(self, closure: Any = None) -> None:
            self.base_optimizer.step()

    compiled = Training(plans=[(FREEZE_AT, 3), (9, 0)])
    compiled.optimizer.step = torch.compile(compiled.optimizer.step, backend="eager")
    around = Training(Around, plans=[(FREEZE_AT, 3), (9, 0)])
    for training, holder in ((compiled, compiled.optimizer), (around, around.optimizer.base_optimizer)):
        training.train(9)
        assert [switch.frozen_prefix for switch in training.session.switches] == [3, 0]
        for name, parameter in training.model.named_parameters():
            unfrozen = name.startswith(("stem", "blocks.0", "blocks.1"))
            assert (holder.state[parameter]["momentum_buffer"].norm() == 0) == unfrozen, name


# Wishes of the script.


SETTERS: dict[str, Callable[[nn.Module], Any]] = {
    "module": lambda module: module.requires_grad_(False),
    "parameters": lambda module: [parameter.requires_grad_(False) for parameter in module.parameters()],
    "assignment": lambda module: [setattr(parameter, "requires_grad", False) for parameter in module.parameters()],
}


@pytest.mark.parametrize("setter", SETTERS)
def test_what_the_script_freezes_for_good_stays_frozen_after_the_thaw(setter: str) -> None:
    training = Training(plans=[(FREEZE_AT, 3), (10, 0)])
    training.train(FREEZE_AT + 2)
    SETTERS[setter](training.front)
    before = {name: value.clone() for name, value in training.front.named_parameters()}
    training.train(10)
    assert same(before, dict(training.front.named_parameters()))
    assert not any(parameter.requires_grad for parameter in training.front.parameters())
    assert all(parameter.requires_grad for parameter in training.model.stem.parameters())


def test_the_last_wish_counts() -> None:
    training = Training(plans=[(FREEZE_AT, 3), (10, 0)])
    for _ in range(9):
        training.train(1)
        training.front.requires_grad_(False)  # as where two networks train in turn
        training.front.requires_grad_(True)
    training.train(3)
    assert training.session.prefix == 0 and all(value.requires_grad for value in training.front.parameters())


def test_what_a_script_restores_as_it_read_it_is_no_wish_and_is_told(told: pytest.LogCaptureFixture) -> None:
    training = Training(plans=[(FREEZE_AT, 3), (10, 0)])
    for _ in range(12):
        training.train(1)
        saved = [parameter.requires_grad for parameter in training.front.parameters()]
        training.front.requires_grad_(False)
        for parameter, value in zip(training.front.parameters(), saved):
            parameter.requires_grad = value
    assert all(parameter.requires_grad for parameter in training.front.parameters())
    assert told.text.count("set requires_grad=False") == 1


def test_copies_of_frozen_layers_train() -> None:
    training = Training()
    training.model.stem.bias.requires_grad_(False)
    training.train(FREEZE_AT + 1)
    assert not training.front.up.weight.requires_grad
    file = io.BytesIO()
    torch.save(training.model, file)
    file.seek(0)
    for other in (copy.deepcopy(training.model), torch.load(file, weights_only=False)):
        wanted = {name: name != "stem.bias" for name, _ in other.named_parameters()}
        assert {name: parameter.requires_grad for name, parameter in other.named_parameters()} == wanted
        assert type(other.stem.weight) is nn.Parameter
        other(torch.randn(4, 8)).sum().backward()
        assert other.blocks[0].up.weight.grad is not None
    assert not training.front.up.weight.requires_grad


# Modes outside of training.


def varies(call: Callable[[Tensor], Tensor]) -> bool:
    x = torch.randn(64, 8)
    with torch.no_grad():
        return not torch.equal(call(x), call(x))


def front_of(model: Layered) -> Callable[[Tensor], Tensor]:
    return lambda x: model.blocks[0](model.stem(x))


@pytest.mark.parametrize("how", ["dropouts of a model in eval mode", "the whole model"])
@pytest.mark.parametrize("through", ["model", "front"])
def test_dropout_samples_outside_of_training_as_the_script_asks(how: str, through: str) -> None:
    training = Training(norm=nn.Identity, dropout=0.5)
    training.train(FREEZE_AT + 2)
    call = front_of(training.model) if through == "front" else training.model
    training.model.eval()
    assert not varies(call)
    if how == "the whole model":
        training.model.train()
    else:
        for module in training.model.modules():
            if isinstance(module, nn.Dropout):
                module.train()
    assert varies(call) and varies(front_of(training.model))
    training.train(1)
    x = torch.randn(64, 8)
    assert torch.equal(training.front(training.model.stem(x)), training.front(training.model.stem(x)))
    training.model.eval()
    assert not varies(call)


def reset_by_hand(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.zero_()
            module.running_var.fill_(1)
            module.num_batches_tracked.zero_()


def reset_as_lightning_does(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean = torch.zeros_like(module.running_mean)
            module.running_var = torch.ones_like(module.running_var)
            module.momentum = None
            module.num_batches_tracked *= 0


@pytest.mark.parametrize("how", ["update_bn", "by hand", "lightning"])
@pytest.mark.parametrize("compiled", [False, True])
def test_statistics_that_the_script_makes_anew_are_those_of_the_plain_script(
    how: str, compiled: bool, told: pytest.LogCaptureFixture
) -> None:
    batches = [torch.randn(16, 8, generator=torch.Generator().manual_seed(number)) for number in range(5)]
    training = Training()
    if compiled:
        torch._dynamo.reset()
        training.called = torch.compile(training.model, backend="eager")
        training.session.close(finished=False)
        training.session = egeria.attach(
            training.called, training.optimizer, config=egeria.Config(plans=[(FREEZE_AT, 3)])
        )
    training.train(FREEZE_AT + 2)
    before = values(training.front)
    plain = copy.deepcopy(training.model)
    for model, called in ((plain, plain), (training.model, training.called)):
        model.train()
        if how == "update_bn":
            update_bn(batches, called)
            continue
        (reset_by_hand if how == "by hand" else reset_as_lightning_does)(model)
        with torch.set_grad_enabled(how == "lightning"):
            for batch in batches:
                called(batch)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.momentum = 0.1
    remade = values(training.front)
    assert same(remade, values(plain.blocks[0])) and not same(remade, before)
    training.train(5)
    assert same(remade, values(training.front)) and training.session.prefix == 3
    assert told.text.count("[FROZEN_BUFFERS_WRITTEN]") == 1


def test_passes_without_gradients_leave_frozen_statistics_alone() -> None:
    training = Training()
    training.train(FREEZE_AT + 2)
    before = values(training.front)
    for _ in range(3):
        training.model.train()
        with torch.no_grad():
            training.model(torch.randn(16, 8))
        training.train(1)
    assert same(before, values(training.front))


def test_dropout_of_frozen_layers_is_off_in_parts_of_a_training_pass_that_run_without_gradients() -> None:
    class Reversible(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor, layers: nn.Module) -> Tensor:
            return layers(x)

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Any:
            return gradient, None

    training = Training(norm=nn.Identity, dropout=0.5)
    training.train(FREEZE_AT + 2)
    plain = training.model.forward
    given: list[Tensor] = []

    def forward(x: Tensor) -> Tensor:
        given.extend(Reversible.apply(training.model.stem(x), training.front) for _ in range(2))
        return plain(x)

    training.model.forward = forward
    training.train(1)
    assert torch.equal(*given)
