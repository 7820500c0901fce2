"""These hooks on a model keep nothing alive, and copies of the model do not call them."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from egeria.model.plain_copies import Ours, copies_may_differ, keep_copies_plain

# Copies become this: whatever it is called with, it does nothing and returns None. A pickle with it can be read
# where this package is not installed.
NO_HOOK = contextlib.nullcontext().__exit__


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Runs as it is written, also where torch.compile traces who calls it: a compiled optimizer.step() would take in
    what its hooks do to the model and to the optimizer's state."""
    disabled: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not disabled and "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    return run


class Inert(Ours):
    """Copies of a module are without it; copies of it, made in another way, do nothing."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return NO_HOOK

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")  # this gives NO_HOOK


class MethodHook(Inert):
    """Knows a method of an object of this process, and does not keep the object alive."""

    def __init__(self, method: Callable[..., Any]):
        self._method = weakref.WeakMethod(method)
        self._pid = os.getpid()

    def method(self) -> Callable[..., Any] | None:
        """The method; None where its object is gone, and in a forked child."""
        return self._method() if os.getpid() == self._pid else None


class PassHook(MethodHook):
    """Forward hook, before or after, that calls the method."""

    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        if not torch.compiler.is_compiling() and (method := self.method()) is not None:
            method(*arguments)


class EntryHook(MethodHook):
    """Forward pre-hook with keywords that calls the method, which may return other arguments."""

    def __call__(self, module: nn.Module, *arguments: Any) -> Any:
        if not torch.compiler.is_compiling() and (method := self.method()) is not None:
            return method(*arguments)
        return None


class Hooked:
    """A hook of ours on a module's forward pass, which remove() takes away."""

    def __init__(self, module: nn.Module, handle: RemovableHandle):
        """`handle` is what the registration of a hook on `module` gave."""
        keep_copies_plain(module)
        self._module: nn.Module | None = module
        self._handle = handle

    def remove(self) -> None:
        self._handle.remove()
        if self._module is not None:
            copies_may_differ(self._module)
            self._module = None


def is_capturing() -> bool:
    """Whether the current stream records a CUDA graph: what it is given runs later, whenever the graph is replayed."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def has_own_forward(module: nn.Module) -> bool:
    return getattr(module.forward, "__func__", None) is type(module).forward
