"""This file copies a tree of modules as copy.deepcopy() does, in a fraction of the time, and where that cannot."""

from __future__ import annotations

import copy
import copyreg
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_ATOMIC = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
# Objects say so in these ways; copying a tensor that a pass has computed raises a RuntimeError.
_UNCOPYABLE = (TypeError, ValueError, RuntimeError, NotImplementedError, copy.Error)
_TABLES = [name for name, value in vars(nn.Module()).items() if isinstance(value, dict)]
HOOK_TABLES = [name for name in _TABLES if "hooks" in name]


class CannotCopy(Exception):
    """A copy uses what could not be copied; the text is for people."""


class LeftOut:
    """Stands for an attribute of a module that cannot be copied, such as a lock, an open file or a writer of logs."""

    def __init__(self, why: str):
        self._why = why

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the language asks for these, as deepcopy() does
            raise AttributeError(name)
        self._refuse()

    def _refuse(self, *_: Any) -> Any:
        raise CannotCopy(self._why)

    __bool__ = __call__ = __iter__ = __len__ = __getitem__ = __setitem__ = __enter__ = __exit__ = _refuse


def copy_modules(
    module: nn.Module, memo: dict[Any, Any], keeps_hook: Callable[[Any], bool] = lambda hook: True
) -> nn.Module:
    """Returns what copy.deepcopy(module, memo) returns, but that it holds a LeftOut for each attribute that cannot
    be copied. Tables of torch's own, numbers, texts and dense tensors, which most of a module is made of, are copied
    here; all else by deepcopy().

    Args:
      keeps_hook: False for a hook that the copy goes without, so that what it belongs to is not copied either. Modules
        of classes that are copied their own way keep all hooks.

    Raises what deepcopy() raises otherwise.
    """
    if id(module) in memo:
        return memo[id(module)]
    if not _is_plain(type(module)) or "__deepcopy__" in vars(module):
        return copy.deepcopy(module, memo)
    state = module.__getstate__()
    if type(state) is not dict:
        return copy.deepcopy(module, memo)
    copied = memo[id(module)] = object.__new__(type(module))
    copied_state = {}
    for name, value in state.items():
        if name in HOOK_TABLES:
            value = type(value)((key, hook) for key, hook in value.items() if keeps_hook(hook))
        if name in _TABLES:
            copied_state[name] = _copied_table(value, memo, keeps_hook)
        else:
            copied_state[name] = _copied_or_left_out(f"{type(module).__name__}.{name}", value, memo)
    copied.__setstate__(copied_state)
    return copied


def _copied_or_left_out(name: str, value: Any, memo: dict[Any, Any]) -> Any:
    known = len(memo)
    try:
        return _copied(value, memo)
    except _UNCOPYABLE as error:
        while len(memo) > known:  # these are copied by half
            memo.popitem()
        return LeftOut(f"its attribute {name} cannot be copied: {error}")


def _copied_table(table: Any, memo: dict[Any, Any], keeps_hook: Callable[[Any], bool]) -> Any:
    if type(table) is not dict and table:
        return copy.deepcopy(table, memo)
    copied = type(table)()
    for key, value in table.items():
        is_module = isinstance(value, nn.Module)
        copied[key] = copy_modules(value, memo, keeps_hook) if is_module else _copied(value, memo)
    return copied


def _copied(value: Any, memo: dict[Any, Any]) -> Any:
    if type(value) in _ATOMIC:
        return value
    if id(value) in memo:
        return memo[id(value)]
    if _is_dense(value):
        copied = memo[id(value)] = _copied_dense(value, memo)
        return copied
    return copy.deepcopy(value, memo)


def _is_dense(value: Any) -> bool:
    return (
        type(value) is Tensor
        and value.layout is torch.strided
        and value.device.type in ("cpu", "cuda")
        and not (value.requires_grad or value.is_quantized or value.is_inference() or value.is_conj() or value.is_neg())
        and not vars(value)
    )


def _copied_dense(tensor: Tensor, memo: dict[Any, Any]) -> Tensor:
    """Copies that share memory do so as the originals do: `memo` keeps track of that."""
    storage = copy.deepcopy(tensor.untyped_storage(), memo)
    copied = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return copied.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


@functools.cache
def _is_plain(kind: type) -> bool:
    """Whether modules of this class are copied as torch's own are."""
    own = ("__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__", "__new__")
    return (
        not hasattr(kind, "__deepcopy__")
        and all(getattr(kind, name, None) is getattr(nn.Module, name, None) for name in own)
        and kind not in copyreg.dispatch_table
        and not copyreg._slotnames(kind)
    )
