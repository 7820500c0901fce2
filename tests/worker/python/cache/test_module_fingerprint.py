"""Attributes that nobody registers: what changes them ends the skipping of frozen layers, to the bit in time."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from cache_daemon import Daemon
from skipped_models import square, vectors
from skipping_runs import DictStore, cached_step, epochs, train
from torch import Tensor, nn

import egeria
from egeria.cache.module_fingerprint import ModuleFingerprint
from egeria.cache.prefix_store import fingerprint
from egeria.freeze.freezer import Freezer
from egeria.model.modules import partition

STEPS = epochs(16, 8, 10, vectors)
CHANGE_AT = 12


@dataclasses.dataclass
class Options:
    gain: float = 1.0
    stages: list[dict[str, float]] = dataclasses.field(default_factory=lambda: [{"low": 1.0}, {"low": 1.0}])


class Slotted:
    __slots__ = ("gain",)

    def __init__(self) -> None:
        self.gain = 1.0


class Turned(nn.Linear):
    """Has tensors that are no buffers."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.freqs = torch.linspace(0.5, 1.5, 8)
        self.books = {"first": [torch.ones(8)]}
        self.window = np.ones(8, np.float32)

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x) * self.freqs + self.books["first"][0]
        return x * torch.from_numpy(self.window)


class Constant(nn.Module):
    """In no layer module, since it has no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("gain", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


class Body(nn.Module):
    """A container of frozen layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Turned(), nn.Linear(8, 8)
        self.gain = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x * self.gain))


class Glued(nn.Module):
    """Uses whatever a module can hold before it calls its frozen layers."""

    offset = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.body, self.constant, self.act, self.head = Body(), Constant(), nn.ReLU(), nn.Linear(8, 2)
        self.gain, self.options, self.named = 1.0, Options(), types.SimpleNamespace(gain=1.0)
        self.pair, self.chosen, self.slotted = (1.0, [1.0]), {"sum"}, Slotted()
        self.function: Callable[[Tensor], Tensor] = torch.abs
        self.power = functools.partial(torch.pow, exponent=1.0)
        self.hidden = [nn.Linear(8, 8).requires_grad_(False)]
        self.schedule: Callable[[], float] | None = None
        self.device, self.device_ids, self.where = torch.device("cuda", 0), [0], "cuda:0"
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.schedule is not None:
            self.gain = self.schedule()
        x = self.constant(x * self.gain * self.options.gain * self.options.stages[1]["low"] * self.named.gain)
        x = (x + self.offset) * self.pair[0] * self.pair[1][0] * self.slotted.gain
        x = self.hidden[0](self.act(x)) if "sum" in self.chosen else -x
        return self.head(self.body(self.power(self.function(x))))


def layers_of(model: Glued) -> list[Any]:
    return [model.body.a, model.body.b, model.head]


def assign(path: str, value: Any) -> Callable[[Glued], None]:
    *path_to, name = path.split(".")
    return lambda model: setattr(functools.reduce(getattr, path_to, model), name, value)


CHANGES: dict[str, Callable[[Glued], Any]] = {
    "of the model": assign("gain", 2.0),
    "of a container": assign("body.gain", 2.0),
    "of a class": lambda model: setattr(type(model), "offset", 1.0),
    "that is new": lambda model: setattr(model, "offset", 1.0),
    "of a data class": assign("options.gain", 2.0),
    "in a dict in a list": lambda model: model.options.stages[1].update(low=2.0),
    "in a dict in a new list": lambda model: setattr(model.options, "stages", [{"low": 1.0}, {"low": 2.0}]),
    "of a namespace": assign("named.gain", 2.0),
    "in a list in a tuple": lambda model: model.pair[1].__setitem__(0, 2.0),
    "in a set": lambda model: model.chosen.clear(),
    "in a slot": assign("slotted.gain", 2.0),
    "a function": assign("function", torch.neg),
    "a function of Python's": assign("function", lambda x: x + 1),
    "an argument": assign("power", functools.partial(torch.pow, exponent=2.0)),
    "a module": assign("act", nn.Tanh()),
    "a module in a list": lambda model: model.hidden[0].weight.data.mul_(2),
    "a tensor": assign("body.a.freqs", torch.ones(8)),
    "in a tensor": lambda model: model.body.a.freqs.mul_(2),
    "in a tensor's data": lambda model: model.body.a.freqs.data.mul_(2),
    "in a tensor in a list": lambda model: model.body.a.books["first"][0].zero_(),
    "in an array": lambda model: model.body.a.window.__imul__(2),
    "in one element of an array": lambda model: model.body.a.window.__setitem__(5, 2),
    "in a buffer of no layer": lambda model: model.constant.gain.mul_(2),
    "a forward function": lambda model: setattr(model.body.a, "forward", lambda x: x),
}


@pytest.fixture(autouse=True)
def classes_stay_as_they_are() -> Iterator[None]:
    yield
    Glued.offset = 0.0


def run(store: Any, prefix: int, change: Callable[[int, nn.Module], Any] = lambda number, model: None) -> Any:
    Glued.offset = 0.0
    return train(
        Glued, layers_of, prefix, STEPS, square, store, each_step=lambda number, model, _: change(number, model)
    )


@pytest.mark.parametrize("prefix", [1, 2])
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_ends_it(what: str, prefix: int) -> None:
    def change(number: int, model: nn.Module) -> None:
        if number == CHANGE_AT:
            CHANGES[what](model)

    cached = run(DictStore(), prefix, change)
    assert cached.refusal == "SETTING_CHANGED", cached.skipper.refusal
    assert cached.counters["passes_skipped"] > 0 and cached.counters["failures"] == 0
    assert cached.same_as(run(None, prefix, change))
    assert not cached.same_as(run(None, prefix)), "a change that does not matter"


@pytest.mark.parametrize("how", ["schedule", "hook"])
def test_a_change_in_the_pass_itself_ends_it(how: str) -> None:
    """After the moment when it is decided whether to skip."""

    def change(number: int, model: nn.Module) -> None:
        numbers.append(number)
        if number == 0 and how == "schedule":
            model.schedule = lambda: 1.0 + (numbers[-1] >= CHANGE_AT)
        elif number == 0:
            model.register_forward_pre_hook(
                lambda module, args: setattr(module, "gain", 1.0 + (numbers[-1] >= CHANGE_AT))
            )

    numbers: list[int] = []
    cached = run(DictStore(), 2, change)
    plain = run(None, 2, change)
    assert cached.same_as(plain) and not plain.same_as(run(None, 2))
    assert cached.refusal == "SETTING_CHANGED"
    # A function that has captured a list that grows is another one at each step.
    assert (cached.counters["passes_skipped"] > 0) == (how == "hook")


def test_what_is_assigned_anew_has_not_changed() -> None:
    def change(number: int, model: nn.Module) -> None:
        model.gain, model.options, model.pair = float("1.0"), Options(), (float("1.0"), [1.0])
        model.body.a.freqs = model.body.a.freqs.clone()
        model.body.a.window = model.body.a.window.copy()
        model.constant.gain.copy_(model.constant.gain.clone())  # as DistributedDataParallel does
        model.device, model.device_ids, model.where = torch.device("cuda", number), [number], f"cuda:{number}"

    cached = run(DictStore(), 2, change)
    assert cached.refusal is None, cached.skipper.refusal
    assert cached.same_as(run(None, 2, change)) and cached.counters["passes_skipped"] > 10


def test_a_counter_ends_it() -> None:
    """Nobody knows what it is for."""

    def change(number: int, model: nn.Module) -> None:
        model.passes += 1

    cached = run(DictStore(), 2, change)
    assert cached.refusal == "SETTING_CHANGED" and "passes of a Glued" in str(cached.skipper.refusal)
    assert cached.same_as(run(None, 2, change))


class Noting(Glued):
    """Keeps a book of its passes, by which its output goes."""

    def __init__(self) -> None:
        super().__init__()
        self.book = {"passes": [0.0], "mean": torch.zeros(8)}
        self.last = types.SimpleNamespace(passes=0)

    def forward(self, x: Tensor) -> Tensor:
        self.book["passes"].append(self.book["passes"][-1] + 1)
        self.book["mean"].lerp_(x.mean(0), 0.1)
        self.last.passes += 1
        behind = self.body.b(self.body.a(x)) + self.book["mean"]
        return self.head(behind) * self.book["passes"][-1] / (self.last.passes + 1)


def test_passes_on_the_side_leave_no_note() -> None:
    runs = [train(Noting, layers_of, 2, STEPS, square, store) for store in (None, DictStore())]
    assert runs[1].same_as(runs[0])
    assert runs[1].counters["proofs"] == 1 and runs[1].refusal == "SETTING_CHANGED"


# These tests are about what tells prefixes apart.


def prefix_of(model: nn.Module, layers: Any = layers_of, prefix: int = 2) -> bytes:
    modules = partition(model, layers)
    Freezer(modules, []).apply(prefix)
    return fingerprint(ModuleFingerprint(model, modules, prefix))


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_another_prefix(what: str) -> None:
    torch.manual_seed(0)
    model = Glued()
    before = prefix_of(model)
    CHANGES[what](model)
    assert prefix_of(model) != before


def prefix_of_kind(kind: str) -> str:
    torch.manual_seed(0)
    if kind == "glued":
        model, layers = Glued(), layers_of
        model.device, model.device_ids, model.where = torch.device("cuda", os.getpid()), [os.getpid()], "cuda:3"
    else:
        from test_skipping_models import gpt_layers, untied_gpt  # pylint: disable=import-outside-toplevel

        model, layers = untied_gpt(), gpt_layers
    return prefix_of(model, layers).hex()


@functools.cache
def prefixes_of_another_process() -> list[str]:
    """The prefixes of the kinds glued and gpt in an interpreter that hashes strings in its own way."""
    imports = f"import sys; sys.path = {sys.path!r}; from test_module_fingerprint import prefix_of_kind"
    script = f"{imports}; print(prefix_of_kind('glued'), prefix_of_kind('gpt'))"
    seed = str(1 + os.getpid() % 1000)
    assert seed != os.environ.get("PYTHONHASHSEED")
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": seed},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout.split()


@pytest.mark.parametrize("kind", ["glued", "gpt"])
def test_a_prefix_is_the_same_in_each_process_and_on_each_device(kind: str) -> None:
    own = prefix_of_kind(kind)
    assert len(own) == 32 and prefixes_of_another_process()[kind == "gpt"] == own


SOURCE = """
import torch
from torch import nn
FACTOR = {factor}
def shift(x):
    return x + {shift}
class Edited(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 2)
    def scale(self, x):
        return x * FACTOR
    def forward(self, x):
        {comment}
        return self.b(self.a(shift(self.scale(x))))
def unused(x):
    return x + {unused}
"""


def test_edited_code_is_another_prefix() -> None:
    """A training that is resumed finds what was stored before, though not with code that has been changed since."""

    def of(factor: float = 1.0, shift: float = 1.0, unused: float = 1.0, comment: str = "") -> bytes:
        module = types.ModuleType("edited")
        exec(SOURCE.format(factor=factor, shift=shift, unused=unused, comment=comment), vars(module))
        torch.manual_seed(0)
        return prefix_of(module.Edited(), ["a", "b"], 1)

    assert of() == of(unused=2.0) == of(comment="# says nothing")
    assert len({of(), of(factor=2.0), of(shift=2.0), of(comment="x = x.abs()")}) == 4


# With a session.


class Training:
    """A training of a Glued on one process, whose first two layers freeze."""

    def __init__(self, address: str, state: dict[str, Any] | None = None):
        Glued.offset = 0.0
        torch.manual_seed(0)
        self.model = Glued()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)
        config = egeria.Config(plans=[(4, 2)], cache=address, cache_use="always")
        self.session = egeria.attach(self.model, self.optimizer, modules=layers_of, config=config)
        if state is not None:
            self.session.load_state_dict(state)
        self.losses: list[float] = []

    def train(self, steps: int, change: Callable[[int, nn.Module], Any] = lambda number, model: None) -> None:
        for number in range(steps):
            change(number, self.model)
            self.losses.append(cached_step(number, self.model, self.optimizer, self.session))

    def close(self, **options: Any) -> tuple[list[float], list[Tensor]]:
        self.session.close(**options)
        return self.losses, [value.detach().clone() for value in self.model.state_dict().values()]


def same(one: tuple[list[float], list[Tensor]], other: tuple[list[float], list[Tensor]]) -> bool:
    return one[0] == other[0] and all(map(torch.equal, one[1], other[1]))


def train_with_and_without(address: str, change: Callable[[int, nn.Module], Any]) -> egeria.Session:
    """Returns the session with the cache, after a comparison."""
    results = []
    for cache in ("none", address):
        training = Training(cache)
        training.train(60, change)
        counters = training.session.cache_counters()
        results.append(training.close())
    assert same(*results)
    assert counters.get("failures", 0) == 0
    return training.session


@pytest.mark.parametrize("every", [1, 12])
def test_a_change_is_said_once(every: int, patient_cache: Daemon, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", "egeria")

    def change(number: int, model: nn.Module) -> None:
        model.passes = number // every

    session = train_with_and_without(patient_cache.address, change)
    counters = session.cache_counters()
    assert counters["proofs"] == (1 if every == 1 else 2) and (counters["passes_skipped"] > 0) == (every > 1)
    assert caplog.text.count("SETTING_CHANGED") == 1 and "passes of a Glued" in caplog.text
    assert session.cache_estimates()["state"] == "refused"
