"""This file lets reentrant activation checkpointing work behind frozen layers.

torch.utils.checkpoint with use_reentrant=True gives outputs that require a gradient only where one of the inputs
does. The output of a frozen layer does not, so that the layers behind it would silently get no gradient. While
layers are frozen, the first checkpointed call that may hold active parameters therefore gets an input that
requires one. The gradient of that input is computed and dropped. Other models are checkpointed as ever.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

_UNKNOWN = object()
_DATA = (bool, int, float, str, bytes, Tensor, torch.device, torch.dtype)
_ORIGINAL = torch.utils.checkpoint.CheckpointFunction


def carry_gradients(is_ours: Callable[[nn.Parameter], bool]) -> None:
    """Changes torch.utils.checkpoint's autograd function for one that looks at its inputs. `is_ours` tells whether a
    parameter belongs to a model that has frozen layers."""
    _BoundaryCheckpoint.is_ours = staticmethod(is_ours)
    if torch.utils.checkpoint.CheckpointFunction is _ORIGINAL:
        torch.utils.checkpoint.CheckpointFunction = _BoundaryCheckpoint


def leave_alone() -> None:
    """Undoes carry_gradients()."""
    if torch.utils.checkpoint.CheckpointFunction is _BoundaryCheckpoint:
        torch.utils.checkpoint.CheckpointFunction = _ORIGINAL


class _BoundaryCheckpoint(_ORIGINAL):
    """CheckpointFunction whose calls see to it that gradients reach the active parameters inside."""

    is_ours: Callable[[nn.Parameter], bool]

    @classmethod
    def apply(cls, function: Any, preserve_rng_state: bool, *arguments: Any) -> Any:
        if torch.is_grad_enabled() and not any(_requires_gradient(x) for x in arguments):
            parameters = _parameters_of(function)
            if parameters is None or any(p.requires_grad and cls.is_ours(p) for p in parameters):
                arguments = _requiring_gradient(arguments)
            elif parameters and all(not p.requires_grad and cls.is_ours(p) for p in parameters):
                with torch.no_grad():  # nothing to recompute: as if it were not checkpointed
                    return function(*arguments)
        return _ORIGINAL.apply(function, preserve_rng_state, *arguments)


def _requires_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _requiring_gradient(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """`arguments` with the first floating-point tensor replaced by an alias that requires a gradient."""
    for index, value in enumerate(arguments):
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            return (*arguments[:index], value.detach().requires_grad_(), *arguments[index + 1 :])
    return arguments


def _parameters_of(function: Any) -> list[nn.Parameter] | None:
    """All parameters that `function` can use; None where that is not certain."""
    modules: list[nn.Module] = []
    if not _collect(function, modules, set()):
        return None
    return [parameter for module in modules for parameter in module.parameters()]


def _collect(value: Any, modules: list[nn.Module], seen: set[int]) -> bool:
    """Adds the modules that are reachable from a callable or the data that is bound to it; False: not certain."""
    if isinstance(value, nn.Module):
        modules.append(value)
        return True
    if value is None or isinstance(value, (*_DATA, type, types.ModuleType, types.BuiltinFunctionType)):
        return True
    if id(value) in seen:
        return True
    seen.add(id(value))
    if isinstance(value, functools.partial):
        # An argument that is passed as data counts as data, whatever its type (masks, caches).
        bound = [
            x
            for x in (*value.args, *value.keywords.values())
            if isinstance(x, (nn.Module, types.FunctionType, list, tuple))
        ]
        return _collect(value.func, modules, seen) and all(_collect(x, modules, seen) for x in bound)
    if isinstance(value, types.MethodType):
        return isinstance(value.__self__, nn.Module) and _collect(value.__self__, modules, seen)
    if isinstance(value, types.FunctionType):
        cells = [_content(cell) for cell in value.__closure__ or ()]
        used = [value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__]
        return all(_collect(x, modules, seen) for x in (*cells, *used, *(value.__defaults__ or ())))
    if isinstance(value, (list, tuple)):
        return all(_collect(x, modules, seen) for x in value)
    if isinstance(value, dict):
        return all(_collect(x, modules, seen) for x in value.values())
    return False


def _names(code: types.CodeType) -> set[str]:
    """Global names that a function's code uses, those of functions defined inside it included."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*inner)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return _UNKNOWN
