"""The code of frozen layers names values outside of them: what changes those ends the skipping, in the same pass."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cache_daemon import Daemon
from skipped_models import square, vectors
from skipping_runs import DictStore, Run, cached_step, epochs, train
from torch import nn

import egeria

STEPS = epochs(16, 8, 10, vectors)
CHANGE_AT = 12

SOURCE = """
import functools
import torch
import settings
from torch import nn
GAIN, LATE, mean, step = 1.0, None, 1.0, 0
TABLE = {"gain": [1.0], "weight": torch.ones(8)}
class Options:
    gain = 1.0
def scaled(x, table=TABLE):
    return x * GAIN * TABLE["gain"][0] * Options.gain * settings.GAIN * settings.inner.GAIN
def around(gain):
    def forward(self, x):
        return nn.Linear.forward(self, x) * gain[0]
    return forward
class First(nn.Linear):
    def forward(self, x):
        x = scaled(super().forward(x)) * TABLE["weight"]
        return x if LATE is None else x * LATE
class Second(nn.Linear):
    own = [1.0]
    forward = around(own)
class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = First(8, 8), Second(8, 8), nn.Linear(8, 2)
        self.step = 1
    def forward(self, x):
        return self.head(self.b(self.a(x - x.mean(1, keepdim=True) * self.step)))
"""

CHANGES: dict[str, Callable[[Any], Any]] = {
    "a number": lambda module: setattr(module, "GAIN", 2.0),
    "a number that was None": lambda module: setattr(module, "LATE", 2.0),
    "in a list in a dict": lambda module: module.TABLE["gain"].__setitem__(0, 2.0),
    "a tensor's data": lambda module: module.TABLE["weight"].data.mul_(2),
    "of a class": lambda module: setattr(module.Options, "gain", 2.0),
    "of another module": lambda module: setattr(module.settings, "GAIN", 2.0),
    "of a module in a module": lambda module: setattr(module.settings.inner, "GAIN", 2.0),
    "a function": lambda module: setattr(module, "scaled", lambda x: x + 1),
    "in what a function has around it": lambda module: module.Second.own.__setitem__(0, 2.0),
}


def fresh() -> Any:
    """The script, as a module of its own."""
    settings = types.ModuleType("settings")
    settings.GAIN, settings.inner = 1.0, types.ModuleType("settings.inner")
    settings.inner.GAIN = 1.0
    sys.modules["settings"] = settings
    module = types.ModuleType("a_script")
    exec(SOURCE, vars(module))
    return module


def run(store: Any, change: Callable[[int, Any, nn.Module], Any]) -> Run:
    module = fresh()
    return train(
        module.Named,
        lambda model: [model.a, model.b, model.head],
        2,
        STEPS,
        square,
        store,
        each_step=lambda number, model, _: change(number, module, model),
    )


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_what_the_code_names_ends_it_in_the_same_pass(what: str) -> None:
    def change(number: int, module: Any, model: nn.Module) -> None:
        if number == CHANGE_AT:
            CHANGES[what](module)

    cached = run(DictStore(), change)
    assert cached.refusal == "SETTING_CHANGED", cached.skipper.refusal
    assert cached.counters["passes_skipped"] > 0 and cached.counters["failures"] == 0
    assert cached.same_as(run(None, change))
    assert not cached.same_as(run(None, lambda *_: None)), "a change that does not matter"


def test_globals_that_only_have_the_name_of_an_attribute_do_not_count() -> None:
    def change(number: int, module: Any, model: nn.Module) -> None:
        module.step, module.mean, module.new = number, float(number), number
        module.GAIN = float("1.0")

    cached = run(DictStore(), change)
    assert cached.refusal is None, cached.skipper.refusal
    assert cached.same_as(run(None, change)) and cached.counters["passes_skipped"] > 10


def test_one_weight_that_is_written_through_data_ends_it_in_the_same_pass() -> None:
    def change(number: int, module: Any, model: nn.Module) -> None:
        if number == CHANGE_AT:
            model.b.weight.data[7, 7] += 1

    cached = run(DictStore(), change)
    assert cached.refusal == "WEIGHTS_CHANGED" and cached.same_as(run(None, change))


# With a session.


class Training:
    def __init__(self, address: str):
        torch.manual_seed(0)
        self.module = fresh()
        self.model = self.module.Named()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)
        config = egeria.Config(plans=[(4, 2)], cache=address, cache_use="always")
        self.session = egeria.attach(self.model, self.optimizer, modules=["a", "b", "head"], config=config)
        self.skipped: list[int] = []  # so far, by step

    def train(self, steps: int, change: Callable[[int, Training], Any]) -> list[float]:
        losses = []
        for number in range(steps):
            change(number, self)
            losses.append(cached_step(number, self.model, self.optimizer, self.session))
            self.skipped.append(self.session.cache_counters().get("passes_skipped", 0))
        self.session.close(finished=False)
        return losses


def train_with_and_without(address: str, change: Callable[[int, Training], Any]) -> Training:
    plain, cached = Training("none"), None
    losses = plain.train(90, change)
    cached = Training(address)
    assert cached.train(90, change) == losses
    assert cached.session.cache_counters().get("failures", 0) == 0
    return cached


def scale_weights(training: Training, factor: float) -> None:
    with torch.no_grad():
        training.model.b.weight.mul_(factor)


def test_weights_that_come_back_are_the_same_prefix(patient_cache: Daemon) -> None:
    """An average is swapped in, passes of training are made with it, and it is swapped out."""
    saved = []

    def change(number: int, training: Training) -> None:
        weight = training.model.b.weight
        with torch.no_grad():
            if number == 40:
                saved[:] = [weight.clone()]
                weight.mul_(2)
            elif number == 43:
                weight.copy_(saved[0])

    cached = train_with_and_without(patient_cache.address, change)
    assert cached.skipped[39] > 20 and cached.skipped[43] == cached.skipped[39]
    assert cached.skipped[-1] > cached.skipped[43] + 30
    assert cached.session.cache_counters()["proofs"] == 2
    assert cached.session.cache_counters()["miss_absent"] <= 2 * 16, "what was stored is found again"


@pytest.mark.parametrize("what", ["a weight", "a setting"])
def test_a_change_that_stays_is_another_prefix(what: str, patient_cache: Daemon) -> None:
    def change(number: int, training: Training) -> None:
        if number == 30 and what == "a weight":
            scale_weights(training, 0.5)
        elif number == 30:
            training.module.GAIN = 2.0

    cached = train_with_and_without(patient_cache.address, change)
    assert cached.skipped[33] == cached.skipped[29] > 0
    assert cached.skipped[-1] > cached.skipped[29] + 30


def test_changes_that_come_again_and_again_are_looked_at_less_and_less(patient_cache: Daemon) -> None:
    cached = train_with_and_without(
        patient_cache.address, lambda number, training: number % 9 or scale_weights(training, 0.99)
    )
    assert cached.session.cache_counters()["proofs"] <= 2
