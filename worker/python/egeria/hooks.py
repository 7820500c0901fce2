"""The hooks by which a session follows a training: before and after the model's forward pass, before and after the
optimizer's step.

None keeps its session alive, and copies of a hooked model or optimizer (an average of the weights, a pickle,
what a forked or spawned process inherits) carry hooks that do nothing.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from egeria.modules import unwrap

if TYPE_CHECKING:
    from egeria.session import Session

# What copies become: whatever it is called with, it does nothing and returns None. A pickle with it can be read
# where this package is not installed.
_NO_HOOK = contextlib.nullcontext().__exit__


class _Inert:
    """Copies of it do nothing."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _NO_HOOK

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")  # which is _NO_HOOK


class _Hook(_Inert):
    """Refers to a session of this process, if it is still there."""

    def __init__(self, session: Session):
        self._session = weakref.ref(session)
        self._pid = os.getpid()

    def session(self) -> Session | None:
        return self._session() if os.getpid() == self._pid else None


class ForwardHook(_Hook):
    """Forward pre-hook (with keywords) of the outermost module that is known."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or not module.training or not torch.is_grad_enabled():
            return
        session = self.session()
        if session is not None:
            session._on_forward(args, kwargs)


class OutputHook(_Hook):
    """Forward hook of the same module."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if torch.compiler.is_compiling() or not module.training or not torch.is_grad_enabled():
            return
        session = self.session()
        if session is not None:
            session._on_output(output)


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
            session._on_step()


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
            session._before_step()
            return None

        @functools.wraps(closure)
        def followed(*inner: Any, **named: Any) -> Any:
            result = closure(*inner, **named)
            session._before_step()
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": followed}
        return (args[0], followed, *args[2:]), kwargs


class PassHook(_Inert):
    """Forward hook, before or after, that calls a method of an object of this process, if it is still there."""

    def __init__(self, method: Callable[..., None]):
        self._method = weakref.WeakMethod(method)
        self._pid = os.getpid()

    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        if torch.compiler.is_compiling():
            return
        method = self._method() if os.getpid() == self._pid else None
        if method is not None:
            method(*arguments)


def has_own_forward(module: nn.Module) -> bool:
    return getattr(module.forward, "__func__", None) is type(module).forward


def wrappers_of(model: nn.Module) -> list[nn.Module]:
    """DistributedDataParallel and torch.compile around `model`, wherever they were made; found among all
    objects."""
    dynamo = sys.modules.get("torch._dynamo")
    kinds = (DistributedDataParallel,) if dynamo is None else (DistributedDataParallel, dynamo.OptimizedModule)
    return [
        found
        for found in gc.get_objects()
        if issubclass(type(found), kinds) and "_modules" in found.__dict__ and unwrap(found) is model
    ]
