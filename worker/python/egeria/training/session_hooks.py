"""A session follows a training by these hooks: before and after the model's forward pass, before and after the
optimizer's step.

None keeps its session alive, and copies of a hooked model or optimizer (an average of the weights, a pickle,
what a forked or spawned process inherits) carry hooks that do nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from egeria.model.pass_hooks import MethodHook, PassHook, has_own_forward


class TrainingPassHook(PassHook):
    """Forward hook, before or after, of the outermost module that is known: it calls the method for passes of training.

    In a network inside a training framework's module it also leaves out the framework's detours through its wrapper.
    Where both are one, the network's forward() is replaced for them: a call of something else, with other arguments.
    """

    def __init__(self, method: Callable[..., None], own_forward_only: bool):
        super().__init__(method)
        self._own_forward_only = own_forward_only

    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        if torch.compiler.is_compiling() or not module.training or not torch.is_grad_enabled():
            return
        if not self._own_forward_only or has_own_forward(module):
            super().__call__(module, *arguments)


class StepHook(MethodHook):
    """Post-hook of an optimizer's step()."""

    def __call__(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (method := self.method()) is not None:
            method()


class BeforeStepHook(MethodHook):
    """Pre-hook of an optimizer's step(). Where the passes are in its closure, as in Lightning, it acts behind them."""

    def __call__(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        method = self.method()
        if method is None:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
        if not callable(closure):  # there is none, or it is an argument of another kind
            method()
            return None

        @functools.wraps(closure)
        def followed(*inner: Any, **named: Any) -> Any:
            result = closure(*inner, **named)
            method()
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": followed}
        return (args[0], followed, *args[2:]), kwargs
