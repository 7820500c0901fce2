"""Tests of parameters in no optimizer that other tests' code would disturb; test_untrained.py runs them."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn

import egeria
from egeria.freeze.wishes import has_gradient as is_on


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))


def test_an_end_leaves_torch_as_it_was():
    model = Part()
    optimizer = torch.optim.SGD(model.last.parameters(), 0.1)
    before = [dict(vars(kind)) for kind in (nn.Parameter, torch.optim.Optimizer)]
    with egeria.attach(model, optimizer, modules=["first", "last"], config=egeria.Config(controller="none")) as session:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        assert session.progress().startswith("frozen 1/2, by the script")
        assert not is_on(model.first.weight) and model.first.weight.requires_grad
    assert all(map(is_on, model.parameters()))
    assert [dict(vars(kind)) for kind in (nn.Parameter, torch.optim.Optimizer)] == before


def test_a_look_that_no_code_shows_switches_them_on(caplog: pytest.LogCaptureFixture):
    model = Part()
    optimizer = torch.optim.SGD(model.last.parameters(), 0.1)
    hidden_look = operator.attrgetter("".join(("gr", "ad")))
    with egeria.attach(model, optimizer, modules=["first", "last"], config=egeria.Config(controller="none")):
        for step in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            if step == 3:
                assert not is_on(model.first.weight)
                hidden_look(model.first.weight)
        assert is_on(model.first.weight)
    assert "has read gradients of parameters that are in no optimizer" in caplog.text
