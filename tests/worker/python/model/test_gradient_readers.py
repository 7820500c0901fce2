"""Code that may still run and that reads gradients is found, and code that cannot run is not taken for it."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_ as shorten

from egeria.model.gradient_readers import makes_optimizers_later
from egeria.model.gradient_readers import reader_of_gradients as look

KEPT: list[Any] = []
CLIPS = False
CLIPS_LATER = False


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def seen(self) -> Any:
        return self.layer.weight.grad


class Options:
    def __init__(self) -> None:
        self.clip = None
        self.log = None

    def set_log(self) -> None:
        self.log = 3


MODEL, OPTIONS, ARGUMENTS = Net(), Options(), argparse.Namespace(grad_clip=None, way="plain")


def is_read() -> bool:
    return look(MODEL) is not None


def set_later() -> None:
    global CLIPS_LATER
    CLIPS_LATER = True


# Each of these is one loop. The first ones read no gradient, whatever they name.


def plain(clip: float | None = None) -> bool:
    for _ in range(1):
        found = is_read()
        with torch.no_grad():
            MODEL.zero_grad()
    return found


def constant(clip: float | None = None, mode: str = "plain") -> bool:
    for _ in range(1):
        if clip is not None:
            shorten(MODEL.parameters(), clip)
        if mode == "log" and len(KEPT) > 3:
            KEPT.append(MODEL.layer.weight.grad)
        if ARGUMENTS.grad_clip or ARGUMENTS.way in ("clip", "both") or CLIPS:
            nn.utils.clip_grad_norm_(MODEL.parameters(), 1.0)
        if not OPTIONS.clip:
            found = is_read()
        else:
            nn.utils.clip_grad_value_(MODEL.parameters(), 1.0)
    return found


# These may.


def kept_from_before() -> bool:
    kept = MODEL.layer.weight.grad
    for _ in range(1):
        found = is_read()
        KEPT.append(kept)
    return found


def by_a_name_from_before() -> bool:
    clip = nn.utils.clip_grad_norm_
    for step in range(1):
        found = is_read()
        if step > 3:
            clip(MODEL.parameters(), 1.0)
    return found


def by_a_partial() -> bool:
    found = is_read()
    CLIP(MODEL.parameters())
    return found


CLIP = functools.partial(shorten, max_norm=1.0)


def later() -> bool:
    for step in range(1):
        if step > 3:
            KEPT.append(MODEL.layer.weight.grad)
        found = is_read()
    return found


def by_another_name() -> bool:
    for step in range(1):
        found = is_read()
        if step > 3:
            shorten(MODEL.parameters(), 1.0)
    return found


def set_in_the_loop(mode: str = "plain") -> bool:
    for step in range(1):
        if mode == "log":
            KEPT.append(MODEL.layer.weight.grad)
        mode = "log" if step == 9 else mode
        found = is_read()
    return found


def set_elsewhere() -> bool:
    for _ in range(1):
        if CLIPS_LATER or OPTIONS.log:
            shorten(MODEL.parameters(), 1.0)
        found = is_read()
    return found


def in_a_handler() -> bool:
    try:
        found = is_read()
    except ValueError:
        KEPT.append(MODEL.layer.weight.grad)
    return found


def by_a_method() -> bool:
    found = is_read()
    MODEL.seen()
    return found


def registered() -> bool:
    KEPT.append(reading)
    return is_read()


def reading(model: Net) -> Any:
    return getattr(model.layer.weight, "grad")  # noqa: B009


def decorated() -> bool:
    @KEPT.append
    def inner(model: Net) -> Any:
        return model.layer.weight.grad

    return is_read()


def from_what_a_dictionary_holds() -> bool:
    found = is_read()
    WAYS["one"](MODEL)
    return found


WAYS = {"one": reading}


def by_a_text() -> bool:
    found = is_read()
    exec("KEPT.clear()")  # noqa: S102
    return found


def after_a_second_call(clip: float | None = None) -> bool:
    found = called_twice(clip)
    if found is None:
        called_twice(1.0)
    return found


def called_twice(clip: float | None) -> bool:
    if clip is not None:
        shorten(MODEL.parameters(), clip)
    return is_read()


QUIET = ("plain", "constant")
READING = (
    *(
        "kept_from_before",
        "by_a_name_from_before",
        "by_a_partial",
        "later",
        "by_another_name",
        "set_in_the_loop",
        "set_elsewhere",
        "in_a_handler",
        "by_a_method",
        "registered",
    ),
    *("decorated", "from_what_a_dictionary_holds", "by_a_text", "after_a_second_call"),
)


@pytest.mark.parametrize("way", [*QUIET, *READING])
def test_what_may_read_gradients_is_found(way: str):
    run: Callable[[], bool] = globals()[way]
    assert run() == (way in READING)
    KEPT.clear()


def made_before() -> bool:
    torch.optim.SGD(MODEL.parameters(), 0.1)
    return makes_optimizers_later()


def never_made(fine_tunes: bool = False) -> bool:
    for _ in range(1):
        if fine_tunes:
            KEPT[0].add_param_group({})
        found = makes_optimizers_later()
    return found


def made_in_the_loop() -> bool:
    for step in range(2):
        if step == 1:
            torch.optim.SGD(MODEL.parameters(), 0.1)
        found = step == 1 or makes_optimizers_later()
    return found


@pytest.mark.parametrize("way, expected", [("made_before", False), ("never_made", False), ("made_in_the_loop", True)])
def test_optimizers_that_are_made_later_are_found(way: str, expected: bool):
    assert globals()[way]() == expected
