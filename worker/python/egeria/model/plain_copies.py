"""Copies and pickles of a module are without what Egeria has put into it.

A pickle names nothing of this package, so that torch.load() reads it with weights_only=True as it would without Egeria.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from egeria.errors import EgeriaError

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_ABOUT_HOOKS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")


class _NoTorchScript(EgeriaError, AttributeError):
    """Who asks by getattr() with a default, or hasattr(), is told that there is no such attribute."""


class Ours:
    """Egeria has put this into a module: it is a hook, or stands in the place of a method."""

    def replaced(self) -> Any:
        """Returns what somebody else had set on the instance in its place; None: nothing."""
        return None

    @property
    def __name__(self) -> str:
        """torch.jit.script compiles hooks, and asks for their names first."""
        raise _NoTorchScript(
            "SCRIPTED_MODULE",
            "TorchScript cannot compile a model while a session is attached to it; give torch.jit.script() a copy, "
            "copy.deepcopy(model), or call session.close() first",
        )


class _PlainState(Ours):
    """In the place of a module's __getstate__, by which copies and pickles are made."""

    def __init__(self, module: nn.Module):
        self.module = module
        self.holders = 0

    def __call__(self) -> Any:
        state = type(self.module).__getstate__(self.module)
        return _without_ours(state) if isinstance(state, dict) else state


def keep_copies_plain(module: nn.Module) -> None:
    """To be called before Egeria puts something into `module`; copies_may_differ() undoes it, once for each call."""
    module.__dict__.setdefault("__getstate__", _PlainState(module))
    if isinstance(state := module.__dict__["__getstate__"], _PlainState):
        state.holders += 1


def copies_may_differ(module: nn.Module) -> None:
    """Nothing of what a keep_copies_plain() was called for is in `module` any more."""
    if isinstance(state := module.__dict__.get("__getstate__"), _PlainState):
        state.holders -= 1
        if state.holders == 0:
            del module.__dict__["__getstate__"]


def _without_ours(state: dict[str, Any]) -> dict[str, Any]:
    hidden = {key for table in _HOOKS for key, hook in state.get(table, {}).items() if isinstance(hook, Ours)}
    plain: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, Ours):
            if (value := value.replaced()) is None:
                continue
        elif hidden and name in (*_HOOKS, *_ABOUT_HOOKS):
            value = type(value)((key, entry) for key, entry in value.items() if key not in hidden)
        plain[name] = value
    return plain
