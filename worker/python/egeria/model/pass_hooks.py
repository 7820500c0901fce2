"""These hooks on a model keep nothing alive, and copies of the model do not call them."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# Copies become this: whatever it is called with, it does nothing and returns None. A pickle with it can be read
# where this package is not installed.
NO_HOOK = contextlib.nullcontext().__exit__


class Inert:
    """Copies of it do nothing."""

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


def has_own_forward(module: nn.Module) -> bool:
    return getattr(module.forward, "__func__", None) is type(module).forward
