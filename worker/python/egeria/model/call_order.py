"""A CallOrder notes in which order training's own forward pass calls the submodules of a model, and where it uses
parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from egeria.model.isolation import has_compiled
from egeria.model.modules import LayerModule
from egeria.model.parameter_uses import PassUses, Uses


class CallOrder:
    """Watches one pass, by hooks for all modules that are there for that time only. Owned by the training thread.

    Attributes:
      calls: the submodules in the order of their calls, one entry per call; None: not known.
      uses: of parameters, outside of the units that hold them.
    """

    def __init__(self, model: nn.Module, outermost: nn.Module):
        """`outermost` is the model with the wrappers that it has now."""
        self.calls: list[nn.Module] | None = None
        self.uses: Uses = {}
        self._model = model
        self._outermost = outermost
        self._found: list[nn.Module] = []
        self._pass: PassUses | None = None
        self._handles: list[RemovableHandle] = []

    def begin(self, modules: Sequence[LayerModule]) -> None:
        """Before a forward pass of training. Compiled code shows no calls, and is left alone."""
        self.stop()
        if self.calls is not None or has_compiled(self._outermost):
            return
        inside = set(self._model.modules())
        self._found = found = []
        self._pass = uses = PassUses(self._model, (unit for module in modules for unit in module.units))

        def enter(module: nn.Module, _: Any) -> None:
            if module in inside:
                found.append(module)
                uses.enter(module)

        def leave(module: nn.Module, *_: Any) -> None:
            uses.leave(module)

        everywhere = nn.modules.module
        self._handles = [
            everywhere.register_module_forward_pre_hook(enter),
            everywhere.register_module_forward_hook(leave),
        ]

    def end(self, output: Any) -> None:
        """The pass has returned `output`."""
        if self._pass is None:
            return
        uses = self._pass
        self.stop()
        self.calls = self._found
        self.uses = uses.read(output)

    def end_of_parts(self) -> None:
        """A step has ended in which the parts of the model were called, past the model itself. There is no output that
        would show where parameters are used besides."""
        if self._pass is not None:
            self.stop()
            self.calls = self._found or None

    def stop(self) -> None:
        """Leaves no hook behind. Idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._pass = None
