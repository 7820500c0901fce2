"""Tests of copies of modules: they are what copy.deepcopy() makes."""

from __future__ import annotations

import copy

import torch
from torch import nn

from egeria.model.module_copies import copy_modules


class Holder(nn.Module):
    """Has attributes of most kinds, and some that lead back to the module or to the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.second = self.first
        self.norm = nn.BatchNorm1d(3)
        table = torch.arange(12.0).view(3, 4)
        self.register_buffer("table", table)
        self.register_buffer("row", table[1])
        self.register_buffer("turned", table.t())
        self.view_of_table = table[:, 1:]
        self.listed = [self.first, {"me": self}, (1, "two")]
        self.parameter_too = self.first.weight
        self.nothing = None
        self.first.parent = [self]


class Unusual(nn.Linear):
    def __getstate__(self) -> dict:
        return {**super().__getstate__(), "was_copied": True}


def test_a_copy_is_structured_as_deepcopys() -> None:
    model = Holder()
    copied, expected = copy_modules(model, {}), copy.deepcopy(model)
    assert vars(copied).keys() == vars(expected).keys()
    assert copied.state_dict().keys() == expected.state_dict().keys()
    for (name, one), (_, other) in zip(copied.state_dict().items(), expected.state_dict().items()):
        assert torch.equal(one, other) and one.stride() == other.stride(), name
    assert copied.second is copied.first and copied.listed[0] is copied.first
    assert copied.listed[1]["me"] is copied and copied.first.parent == [copied]
    assert copied.parameter_too is copied.first.weight and copied.first.weight is not model.first.weight


def test_views_share_memory_as_before_and_none_with_the_original() -> None:
    model = Holder()
    copied = copy_modules(model, {})
    copied.table[1, 1] = 50
    assert copied.row[1] == copied.turned[1, 1] == copied.view_of_table[1, 0] == 50
    assert model.table[1, 1] == 5


def test_what_the_memo_has_is_not_copied() -> None:
    model = Holder()
    copied = copy_modules(model, {id(model.first.weight): model.first.weight, id(model.norm): "instead"})
    assert copied.first.weight is model.first.weight and vars(copied)["_modules"]["norm"] == "instead"


def test_a_class_that_is_copied_its_own_way_is_copied_so() -> None:
    assert copy_modules(nn.Sequential(Unusual(1, 1)), {})[0].was_copied


def test_hooks_are_copied() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].register_forward_hook(lambda module, args, output: output + 1)
    x = torch.ones(1, 1)
    assert torch.equal(copy_modules(model, {})(x), model(x))
