"""A shadow of a model runs without a trace on it, or does not run."""

from __future__ import annotations

import copy
import logging
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import shared_state
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from egeria.model.module_copies import CannotCopy
from egeria.model.shadow import FirstPass, NoShadow, Shadow

COUNT = {"n": 0}
LIST: list[int] = []
SCALES = {"x": 2.0}
GENERATOR = torch.Generator()
TABLE = torch.zeros(4)
OTHER = nn.Linear(4, 4)
number = 0


def bump(_: Any = None) -> None:
    global number
    number += 1


def append_to(values: list[int]) -> None:
    values.append(1)


class Helper:
    made = 0

    def __init__(self) -> None:
        self.mean = torch.zeros(4)

    def update(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + x.detach().mean(0)
        self.mean.add_(1)
        return self.mean


class Net(nn.Module):
    """Its state is of every kind that a shadow has for itself."""

    seen: list[int] = []

    def __init__(self) -> None:
        super().__init__()
        self.front, self.norm, self.head = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.generator, self.random, self.helper = torch.Generator().manual_seed(3), random.Random(2), Helper()
        self.passes, self.kept = 0, []
        self.register_buffer("count", torch.zeros(()))

    def extra(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        self.count += 1
        self.seen.append(1)
        x = self.extra(self.norm(self.front(x)))
        x = F.dropout(x, 0.3, self.training) * (torch.rand(x.shape, generator=self.generator) > 0.2)
        self.kept.append(x)
        return self.head(x) * self.random.random() * SCALES["x"] + self.helper.update(x)


class WritesGlobal(Net):
    def extra(self, x: Tensor) -> Tensor:
        COUNT["n"] += 1
        return x


class CallsWriter(Net):
    def extra(self, x: Tensor) -> Tensor:
        bump()
        return x


class Appends(Net):
    def extra(self, x: Tensor) -> Tensor:
        LIST.append(1)
        return x


class HandsOn(Net):
    def extra(self, x: Tensor) -> Tensor:
        append_to(LIST)
        return x


class CountsByClass(Net):
    count_of_all = 0

    def extra(self, x: Tensor) -> Tensor:
        type(self).count_of_all += 1
        return x


class CountsByHelper(Net):
    def extra(self, x: Tensor) -> Tensor:
        Helper.made += 1
        return x


class Closure(Net):
    def __init__(self) -> None:
        super().__init__()
        self.note = self.make()

    @staticmethod
    def make() -> Callable[[Tensor], Tensor]:
        calls = 0

        def note(x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return x

        return note

    def extra(self, x: Tensor) -> Tensor:
        return self.note(x)


class ClosureOverItself(Net):
    def __init__(self) -> None:
        super().__init__()
        self.note = lambda x: x if self.training else x

    def extra(self, x: Tensor) -> Tensor:
        return self.note(x)


class OthersModule(Net):
    def extra(self, x: Tensor) -> Tensor:
        return OTHER(x)


class OthersGenerator(Net):
    def extra(self, x: Tensor) -> Tensor:
        return x + torch.rand(x.shape, generator=GENERATOR)


class OthersTensor(Net):
    def extra(self, x: Tensor) -> Tensor:
        TABLE.add_(x.detach().mean(0))
        return x


class Momentum(Net):
    def extra(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.front.weight.mul_(0.9)
        return x


class MomentumByData(Net):
    def extra(self, x: Tensor) -> Tensor:
        torch._foreach_mul_([parameter.data for parameter in self.head.parameters()], 0.9)
        return x


class Catches(Net):
    def extra(self, x: Tensor) -> Tensor:
        try:
            self.front.weight.data.mul_(0.9)
        except Exception:  # pylint: disable=broad-exception-caught
            pass
        return x


class AppendsByClass(Net):
    def extra(self, x: Tensor) -> Tensor:
        Net.seen.append(2)
        return x


class AppendsToAModule(Net):
    def extra(self, x: Tensor) -> Tensor:
        shared_state.CALLS.append(1)
        return x


class ImportsAList(Net):
    def extra(self, x: Tensor) -> Tensor:
        from shared_state import CALLS

        CALLS.append(1)
        return x


class ListOfFunctions(Net):
    def __init__(self) -> None:
        super().__init__()
        self.ways = [lambda x: self.front(x)]

    def extra(self, x: Tensor) -> Tensor:
        return self.ways[0](x)


class Weak(Net):
    def __init__(self) -> None:
        super().__init__()
        self.place = [weakref.ref(self.front)]

    def extra(self, x: Tensor) -> Tensor:
        return self.place[0]()(x)


class BoundToAList(Net):
    def __init__(self) -> None:
        super().__init__()
        self.note = LIST.append

    def extra(self, x: Tensor) -> Tensor:
        self.note(1)
        return x


class Logs(Net):
    def __init__(self) -> None:
        super().__init__()
        self.log = logging.getLogger("mine")

    def extra(self, x: Tensor) -> Tensor:
        self.log.warning("a pass")
        return x


class Prints(Net):
    def extra(self, x: Tensor) -> Tensor:
        print("a pass")
        return x


class Locked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def extra(self, x: Tensor) -> Tensor:
        with self.lock:
            return x


class AsksForALock(Locked):
    def extra(self, x: Tensor) -> Tensor:
        return x if self.lock else x + 1


def state(model: Net) -> list[Any]:
    return [
        {name: value.clone() for name, value in model.state_dict().items()},
        (model.passes, list(model.kept), model.random.getstate(), model.helper.mean.clone()),
        (model.generator.get_state(), torch.get_rng_state(), random.getstate(), GENERATOR.get_state()),
        (
            dict(COUNT),
            list(LIST),
            list(shared_state.CALLS),
            dict(SCALES),
            TABLE.clone(),
            number,
            list(Net.seen),
            Helper.made,
        ),
    ]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


def hook_everything(model: nn.Module, calls: list[str]) -> list[Any]:
    return [
        model.front.register_forward_hook(lambda *_: calls.append("after")),
        model.front.register_forward_pre_hook(lambda *_: calls.append("before")),
        model.front.register_full_backward_hook(lambda *_: calls.append("backward")),
        model.front.weight.register_hook(lambda _: calls.append("gradient")),
        model.head.weight.register_post_accumulate_grad_hook(lambda _: calls.append("accumulated")),
        nn.modules.module.register_module_forward_hook(lambda *_: calls.append("any")),
        nn.modules.module.register_module_full_backward_hook(lambda *_: calls.append("any backward")),
    ]


REFUSED = {
    WritesGlobal: "the global 'COUNT'",
    CallsWriter: "writes the global 'number'",
    Appends: "the global 'LIST'",
    CountsByClass: "writes 'count_of_all' of CountsByClass",
    CountsByHelper: "writes 'made' of Helper",
    Closure: "writes the variable 'calls' of an enclosing function",
    ClosureOverItself: "the variable 'self' of an enclosing function, a ClosureOverItself of which it has no copy",
    OthersModule: "the global 'OTHER'",
    OthersGenerator: "the global 'GENERATOR'",
    OthersTensor: "writes to a parameter, or to a tensor",
    Momentum: "writes to a parameter",
    MomentumByData: "writes to a parameter",
    Catches: "writes to a parameter",
    Prints: "calls print()",
    AppendsByClass: "'seen' of Net",
    AppendsToAModule: "'CALLS' of shared_state",
    ImportsAList: "'CALLS' of shared_state",
    ListOfFunctions: "the variable 'self' of an enclosing function",
    Weak: "a ReferenceType",
    BoundToAList: "a list that is no part of the model",
    Logs: "a Logger",
    Locked: "its attribute Locked.lock cannot be copied",
    AsksForALock: "its attribute AsksForALock.lock cannot be copied",
}


@pytest.mark.parametrize("kind", [Net, *REFUSED])
def test_a_first_pass_leaves_no_trace(kind: type[Net]) -> None:
    torch.manual_seed(0)
    model, x = kind(), torch.randn(8, 4)
    calls: list[str] = []
    handles = hook_everything(model, calls)
    before, first = state(model), FirstPass(model, model)
    first.before_forward((x,), {})
    assert same(state(model), before) and calls == []
    for handle in handles:
        handle.remove()
    assert (first.reason or "").count(REFUSED.get(kind, "its first pass has not ended")) == 1
    first.after_forward(model(x))
    assert (first.reason is None) == (kind is Net)


def test_what_is_only_read_has_to_stay_as_it_is() -> None:
    """Who hands a list on to somebody who changes it is found out afterwards."""
    model = HandsOn()
    shadow = Shadow(model)
    LIST.clear()
    with pytest.raises(NoShadow, match="outside"), shadow.running() as twin:
        twin(torch.randn(8, 4))
    LIST.clear()


def test_gradients_of_a_shadow_are_its_own() -> None:
    torch.manual_seed(0)
    model, calls = Net(), []
    handles = hook_everything(model, calls)
    shadow = Shadow(model)
    with shadow.running() as twin:
        twin(torch.randn(8, 4)).square().sum().backward()
    for handle in handles:
        handle.remove()
    assert calls == [] and all(parameter.grad is None for parameter in model.parameters())
    assert twin.front.weight.data_ptr() == model.front.weight.data_ptr()
    assert shadow.of(model.front) is twin.front


def test_a_shadow_that_computes_something_else_is_found_out() -> None:
    class Fickle(Net):
        def __getstate__(self) -> Any:  # copies are shifted
            state = self.__dict__.copy()
            state["shift"] = 1.0
            return state

        def extra(self, x: Tensor) -> Tensor:
            return x + getattr(self, "shift", 0.0)

    model, x = Fickle(), torch.randn(8, 4)
    first = FirstPass(model, model)
    first.before_forward((x,), {})
    first.after_forward(model(x))
    assert "something else" in first.reason


def test_collectives_are_not_carried_out(tmp_path: Any) -> None:
    import torch.distributed as dist

    class Talking(Net):
        def extra(self, x: Tensor) -> Tensor:
            dist.all_reduce(x)
            return x

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        first = FirstPass(model := Talking(), model)
        first.before_forward((torch.randn(8, 4),), {})
        assert "talks to other ranks" in first.reason
    finally:
        dist.destroy_process_group()


def test_what_hooks_belong_to_is_not_copied() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.lock, self.batches, self.seen = threading.Lock(), iter(DataLoader([1, 2])), 0

        def record(self, *_: Any) -> None:
            self.seen += 1

    model, recorder, x = Net(), Recorder(), torch.randn(8, 4)
    for module in (model, model.head):
        module.register_forward_hook(recorder.record)
        module.register_forward_pre_hook(recorder.record)
    first = FirstPass(model, model)
    first.before_forward((x,), {})
    assert recorder.seen == 0
    first.after_forward(model(x))
    assert first.reason is None and recorder.seen == 4


def test_what_no_pass_uses_need_not_be_copied() -> None:
    class Logged(Net):
        def __init__(self) -> None:
            super().__init__()
            self.writer = {"file": open(__file__, encoding="utf-8"), "helper": self.helper}  # noqa: SIM115

        def __getstate__(self) -> dict[str, Any]:
            return {**vars(self), "trainer": None}

    model, x = Logged(), torch.randn(8, 4)
    first = FirstPass(model, model)
    first.before_forward((x,), {})
    first.after_forward(model(x))
    model.writer["file"].close()
    assert first.reason is None
    with pytest.raises(CannotCopy, match="its attribute Logged.writer cannot be copied"):
        copy.deepcopy(Shadow(model).model).writer["file"]


def test_torchs_own_hooks_belong_to_a_module() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    model[0].weight_g.data.mul_(2)
    x = torch.randn(8, 4)
    first = FirstPass(model, model)
    first.before_forward((x,), {})
    first.after_forward(model(x))
    assert first.reason is None


def test_a_compiled_submodule_runs_as_it_is_written() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(torch.compile(nn.Linear(4, 4), backend="eager"), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(8, 4)
    model(x)
    twin = copy.deepcopy(Shadow(model).model)
    assert [name for name, _ in twin.named_parameters()] == [name for name, _ in model.named_parameters()]
    first = FirstPass(model, model)
    first.before_forward((x,), {})
    first.after_forward(model(x))
    assert first.reason is None
