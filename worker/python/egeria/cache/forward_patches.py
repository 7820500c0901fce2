"""Patches give some submodules of a model another forward function for one forward pass."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from egeria.model.plain_copies import Ours


class ForwardPatch(Ours):
    """A patch stands where a submodule's forward method would be looked up.

    Once released it does what the submodule does, even where somebody has kept a reference to it. Copies of the
    submodule, by deepcopy or pickle, get the submodule's own forward.
    """

    def __init__(self, module: nn.Module, function: Callable[..., Any]):
        self.module = module
        self.own = module.__dict__.get("forward")  # somebody else has set it on the instance
        self.original = module.forward
        self.function: Callable[..., Any] | None = function
        module.__dict__["forward"] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            return self.original(*args, **kwargs)
        return self.function(self.original, *args, **kwargs)

    def replaced(self) -> Any:
        return self.own.replaced() if isinstance(self.own, ForwardPatch) else self.own

    def release(self) -> None:
        self.function = None
        above = self.module.__dict__.get("forward")
        if above is not self:
            while isinstance(above, ForwardPatch) and above.own is not self:
                above = above.own
            if isinstance(above, ForwardPatch):  # somebody's patch was put over this one
                above.own = self.own
            return
        del self.module.__dict__["forward"]
        if self.own is not None:
            self.module.__dict__["forward"] = self.own

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self.own is not None:
            return copy.deepcopy(self.own, memo)
        copied = copy.deepcopy(self.module, memo)  # mostly the copy that is being made
        return types.MethodType(type(copied).forward, copied)

    def __reduce__(self) -> tuple[Any, ...]:
        # The copy is asked for it when it has no __dict__ yet, so that it gives its class's method.
        return getattr, (self.module, "forward")


class ForwardPatches:
    """Holds the forward functions that are replaced now. It is a context, which gives all back at its end."""

    def __init__(self) -> None:
        self._patches: list[ForwardPatch] = []

    def replace(self, module: nn.Module, function: Callable[..., Any]) -> None:
        """Turns calls of the submodule into function(its own forward, *args, **kwargs)."""
        self._patches.append(ForwardPatch(module, function))

    @property
    def added(self) -> int:
        """The number of submodules that have a `forward` on the instance now, and had none."""
        return sum(patch.own is None for patch in self._patches)

    def release(self) -> None:
        for patch in reversed(self._patches):
            patch.release()
        self._patches.clear()

    def __bool__(self) -> bool:
        return bool(self._patches)

    def __enter__(self) -> ForwardPatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
