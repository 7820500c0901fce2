"""A session follows a training by these hooks: before and after the model's forward pass, before and after the
optimizer's step.

None keeps its session alive, and copies of a hooked model or optimizer (an average of the weights, a pickle,
what a forked or spawned process inherits) carry hooks that do nothing.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import Any, Protocol

import torch
from torch import nn

from egeria.model.pass_hooks import Inert, has_own_forward


class Follower(Protocol):
    """The part of a FollowedTraining that hooks call."""

    def on_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...

    def on_output(self, output: Any) -> None: ...

    def before_step(self) -> None: ...

    def on_step(self) -> None: ...


class _Hook(Inert):
    """Refers to a session of this process, if it is still there."""

    def __init__(self, session: Follower):
        self._session = weakref.ref(session)
        self._pid = os.getpid()

    def session(self) -> Follower | None:
        return self._session() if os.getpid() == self._pid else None


class ForwardHook(_Hook):
    """Forward pre-hook (with keywords) of the outermost module that is known."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or not module.training or not torch.is_grad_enabled():
            return
        session = self.session()
        if session is not None:
            session.on_forward(args, kwargs)


class OutputHook(_Hook):
    """Forward hook of the same module."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if torch.compiler.is_compiling() or not module.training or not torch.is_grad_enabled():
            return
        session = self.session()
        if session is not None:
            session.on_output(output)


class NetworkHook(ForwardHook):
    """The same for a network inside a training framework's module. Where both are one, its forward() is replaced
    while the framework makes a detour through its wrapper: a call of something else, with other arguments."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if has_own_forward(module):
            super().__call__(module, args, kwargs)


class NetworkOutputHook(OutputHook):
    """The same for a network."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if has_own_forward(module):
            super().__call__(module, args, output)


class StepHook(_Hook):
    """Post-hook of an optimizer's step()."""

    def __call__(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        session = self.session()
        if session is not None:
            session.on_step()


class BeforeStepHook(_Hook):
    """Pre-hook of an optimizer's step(). Where the passes are in its closure, as in Lightning, it acts behind them."""

    def __call__(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        session = self.session()
        if session is None:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
        if not callable(closure):  # there is none, or it is an argument of another kind
            session.before_step()
            return None

        @functools.wraps(closure)
        def followed(*inner: Any, **named: Any) -> Any:
            result = closure(*inner, **named)
            session.before_step()
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": followed}
        return (args[0], followed, *args[2:]), kwargs
