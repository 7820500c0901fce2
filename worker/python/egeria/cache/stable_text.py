"""This file puts plain values and code into words that are the same in every process and on every rank."""

from __future__ import annotations

import decimal
import enum
import fractions
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
    decimal.Decimal,
    fractions.Fraction,
    pathlib.PurePath,
    re.Pattern,
    torch.dtype,
    torch.layout,
    torch.memory_format,
)
# What a training is run with: it counts steps, holds locks and files, and says nothing about what a model computes.
_BYSTANDERS = frozenset(
    (
        "_abc",
        "_contextvars",
        "_io",
        "_queue",
        "_thread",
        "_weakref",
        "asyncio",
        "concurrent",
        "io",
        "logging",
        "multiprocessing",
        "queue",
        "socket",
        "subprocess",
        "tempfile",
        "threading",
        "typing",
        "weakref",
        "accelerate",
        "deepspeed",
        "egeria",
        "lightning",
        "lightning_fabric",
        "pytorch_lightning",
        "torchmetrics",
        "wandb",
    )
)
_BYSTANDERS_OF_TORCH = re.compile(r"torch\.(_|amp|autograd|cuda|distributed\.|fx|jit|optim|profiler|utils)")
_DEVICE = re.compile(r"(cuda|hip|xpu|mps|npu|hpu|xla):\d+")


def name_of(thing: Any) -> str:
    """Of a class or a function."""
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def is_bystander(kind: Any) -> bool:
    """Whether objects of this class, or what this function has of its own, are not looked into."""
    module = str(kind.__module__)
    return module.partition(".")[0] in _BYSTANDERS or bool(_BYSTANDERS_OF_TORCH.match(module))


def plain_words(value: Any) -> str | None:
    """Of numbers, text, constants, and tuples of those; None for anything else. All devices are the same."""
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
    """What it does, wherever it lies."""
    constants = [
        code_words(value)
        if isinstance(value, types.CodeType)
        else str(sorted(map(repr, value)))
        if isinstance(value, frozenset)
        else repr(value)
        for value in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars} ({', '.join(constants)})"


def captured(function: types.FunctionType) -> list[Any]:
    """The values that a function has of its own: defaults, and those of the functions around it."""
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            values.append(None)
    return values
