"""The modes of modules are what the modules say, in their order."""

from __future__ import annotations

import torch
from torch import nn

from egeria.model.module_modes import ModuleModes


def test_modes_are_those_of_the_moment() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2))
    modes = ModuleModes(model.modules())
    assert modes.now() == b"\1\1\1\1"
    model[1].eval()
    assert modes.now() == b"\1\1\0\1"
    model.eval()
    model[2].training = True
    assert modes.now() == b"\0\0\0\1"


def test_a_scripted_module_is_asked() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    modes = ModuleModes([nn.Dropout(), scripted])
    assert modes.now() == b"\1\1"
    scripted.eval()
    assert modes.now() == b"\1\0"
