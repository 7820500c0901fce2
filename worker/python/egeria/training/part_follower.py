"""A PartFollower sees the training passes of a model that is not called as a whole, but by its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from egeria.model.pass_hooks import Hooked, PassHook

# The gradients of so many parameters show whether there has been a backward pass.
_PARAMETERS = 4


class PartFollower:
    """A training_step() may call `self.encoder(x)` and `self.decoder(z)`, or `model.forward(x)`, which runs no hook of
    the model itself. Then a pass begins where the first layer is called, and the next one where that layer is called
    again behind a step or a backward pass. The hooks are there only while the model's own are passed by. Owned by the
    training thread.

    Attributes:
      sees: a pass has been seen.
    """

    def __init__(
        self,
        model: nn.Module,
        trained: Callable[[], Iterable[nn.Parameter]],
        before: Callable[[tuple[Any, ...], dict[str, Any]], None],
    ):
        """
        Args:
          trained: gives some parameters that train for as long as the model does.
          before: called before a pass, with the arguments of the first layer in it.
        """
        self.sees = False
        self._model = model
        self._trained = trained
        self._before = before
        self._first: nn.Module | None = None  # the first layer of the pass under way
        self._gradients: list[tuple[int, int]] = []  # as they were when that pass began
        self._handles: list[Hooked] = []

    def follow(self) -> None:
        """Nobody has called the model in the step that has ended."""
        if self._handles:
            return
        for module in self._model.modules():
            has_parameters = next(module.parameters(recurse=False), None) is not None
            if module is not self._model and (has_parameters or hasattr(module, "_orig_mod")):
                hook = _PartHook(self._enter)
                self._handles.append(Hooked(module, module.register_forward_pre_hook(hook, with_kwargs=True)))

    def end_step(self) -> None:
        self._first = None

    def close(self) -> None:
        """Leaves no hook behind. Idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._first, self.sees = [], None, False

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._first is not None and (module is not self._first or self._gradients == self._gradients_now()):
            return
        self.sees = True
        self._first, self._gradients = module, self._gradients_now()
        self._before(args, kwargs)

    def _gradients_now(self) -> list[tuple[int, int]]:
        gradients = [parameter.grad for parameter in list(self._trained())[-_PARAMETERS:]]
        return [(id(gradient), gradient._version) for gradient in gradients if gradient is not None]


class _PartHook(PassHook):
    """Forward pre-hook of a layer that calls the method in passes of training."""

    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        if not torch.compiler.is_compiling() and module.training and torch.is_grad_enabled():
            super().__call__(module, module, *arguments)
