"""A CallOrder notes in which order training's own forward pass calls the submodules of a model."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from egeria.model.isolation import has_compiled


class CallOrder:
    """Watches one pass, by a hook for all modules that is there for that time only. Owned by the training thread.

    Attributes:
      calls: the submodules in the order of their calls, one entry per call; None: not known.
    """

    def __init__(self, model: nn.Module, outermost: nn.Module):
        """`outermost` is the model with the wrappers that it has now."""
        self.calls: list[nn.Module] | None = None
        self._model = model
        self._outermost = outermost
        self._found: list[nn.Module] = []
        self._handle: RemovableHandle | None = None

    def begin(self) -> None:
        """Before a forward pass of training. Compiled code shows no calls, and is left alone."""
        self.stop()
        if self.calls is not None or has_compiled(self._outermost):
            return
        inside = set(self._model.modules())
        self._found = found = []

        def note(module: nn.Module, _: Any) -> None:
            if module in inside:
                found.append(module)

        self._handle = nn.modules.module.register_module_forward_pre_hook(note)

    def end(self) -> None:
        """The pass has returned."""
        if self._handle is not None:
            self.stop()
            self.calls = self._found

    def stop(self) -> None:
        """Leaves no hook behind. Idempotent."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
