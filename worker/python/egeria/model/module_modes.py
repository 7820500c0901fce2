"""ModuleModes reads whether modules are in training mode, once a step and more often."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from torch import nn

_mode_in = operator.itemgetter("training")


class ModuleModes:
    """Knows where the modes of some modules are. Modules look up attributes slowly, so this reads their tables."""

    def __init__(self, modules: Iterable[nn.Module]):
        self._tables = [vars(module) if "training" in vars(module) else _Asked(module) for module in modules]

    def now(self) -> bytes:
        """Returns a byte for each module, in their order: 1 in training mode, 0 in evaluation mode."""
        return bytes(map(_mode_in, self._tables))


class _Asked:
    """Stands for the table of a module whose mode is not there, such as a scripted one."""

    def __init__(self, module: nn.Module):
        self._module = module

    def __getitem__(self, name: str) -> bool:
        return bool(getattr(self._module, name))
