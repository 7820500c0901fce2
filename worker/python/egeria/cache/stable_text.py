"""This file puts plain values and code into words that are the same in every process and on every rank."""

from __future__ import annotations

import enum
import pathlib
import re
import sys
import types
from typing import Any

import torch

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    range,
    slice,
    pathlib.PurePath,
    re.Pattern,
    torch.dtype,
    torch.layout,
    torch.memory_format,
)
# A training is run with these: they count steps, hold locks and files, and say nothing about what a model computes.
_BYSTANDERS = frozenset(
    """
    _abc _contextvars _io _queue _thread _weakref asyncio concurrent io logging multiprocessing queue socket subprocess
    tempfile threading typing weakref
    accelerate deepspeed egeria lightning lightning_fabric pytorch_lightning torchmetrics wandb
    """.split()
)
_BYSTANDERS_OF_TORCH = re.compile(r"torch\.(_|amp|autograd|cuda|distributed\.|fx|jit|optim|profiler|utils)")
_DEVICE = re.compile(r"(cuda|hip|xpu|mps|npu|hpu|xla):\d+")


def name_of(thing: Any) -> str:
    """Returns the name of a class or a function, with its module's."""
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def is_bystander(kind: Any) -> bool:
    """Returns whether objects of this class, or what this function holds itself, are not looked into."""
    module = str(kind.__module__)
    return module.partition(".")[0] in _BYSTANDERS or bool(_BYSTANDERS_OF_TORCH.match(module))


def plain_words(value: Any) -> str | None:
    """Puts numbers, text, constants, and tuples of those into words, the same for all devices; None stands for anything
    else."""
    if isinstance(value, enum.Enum):
        return f"{name_of(type(value))} {value.value!r}"
    if isinstance(value, torch.device) or (isinstance(value, str) and _DEVICE.fullmatch(value)):
        return "a device"
    if isinstance(value, _PLAIN) or isinstance(value, getattr(sys.modules.get("numpy"), "generic", ())):
        return repr(value)
    if isinstance(value, tuple):
        parts = [plain_words(part) for part in value]
        return None if None in parts else f"{name_of(type(value))}({', '.join(map(str, parts))})"
    return None


def code_words(code: types.CodeType) -> str:
    """Says what the code does, wherever it lies."""
    constants = map(_constant_words, code.co_consts)
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars} ({', '.join(constants)})"


def _constant_words(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return code_words(value)
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def captured(function: types.FunctionType) -> list[Any]:
    """Returns the values that a function holds itself: its defaults, and what it uses of the functions around it."""
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # nothing is assigned yet
            values.append(None)
    return values
