"""Tests of what is looked at in every step: names in dictionaries, flags of tensors, and memory of tensors."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from egeria import _native


class Thing:
    """Can be referred to weakly."""


def test_names_that_stand_for_something_else() -> None:
    table, value = {}, Thing()
    table |= {"one": value, "two": 2, "three": 3}
    watch = _native.TableWatch()
    watch.add(table, ["one", "two"])
    assert watch.unchanged()
    table["three"] = 4  # nobody has asked for it
    assert watch.unchanged()
    table["one"] = Thing()
    assert not watch.unchanged()
    table["one"] = value
    assert watch.unchanged()
    del table["two"]
    assert not watch.unchanged()
    with pytest.raises(KeyError, match="four"):
        watch.add(table, ["four"])


def test_a_watch_that_only_what_it_watches_refers_to_is_collected() -> None:
    thing, watch = Thing(), _native.TableWatch()
    thing.watch = watch
    watch.add({"thing": thing}, ["thing"])
    gone = weakref.ref(thing)
    del thing, watch
    gc.collect()
    assert gone() is None


def test_flags_of_gradients() -> None:
    parameters = list(nn.Linear(2, 2).parameters())
    flags = _native.GradientFlags(parameters)
    assert flags.now() == b"\1\1" and flags.any()
    parameters[0].requires_grad_(False)
    assert flags.now() == b"\0\1" and flags.any()
    parameters[1].requires_grad = False
    assert flags.now() == b"\0\0" and not flags.any()


def test_another_place_in_the_same_memory_is_another_one() -> None:
    memory, tensor = torch.zeros(8), nn.Parameter(torch.zeros(4), requires_grad=False)
    tensor.data = memory[:4]
    watch = _native.ContentWatch([tensor])
    assert watch.in_place()
    tensor.data = memory[4:]
    assert not watch.in_place()
