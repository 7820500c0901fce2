"""A look at a dataset notices that somebody has made another one of it: another length, transform, table or file."""

from __future__ import annotations

import functools
import os
import random
import types
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from egeria.data.sample_stamp import bytes_of, looks_like_a_file, state_of

_MOST_VALUES = 1000
_MOST_DEPTH = 8
# A longer container counts by its length alone, since its entries are the samples'.
_MOST_PARTS = 64
# The contents of smaller arrays are compared.
_MOST_BYTES = 4096
_PLAIN = (bool, int, float, complex, type(None), torch.dtype, torch.device, np.generic, np.dtype, range, slice)
# Nothing inside these says what a sample is; generators differ whenever something is drawn.
_BYSTANDERS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator, types.ModuleType)
_BYSTANDING = frozenset("_io _thread _weakref io logging multiprocessing queue threading weakref".split())


class DatasetLook:
    """Remembers what a dataset is like. A look takes some 0.1 ms. Owned by the training thread."""

    def __init__(self, dataset: Any, version: Any = None):
        """`version` is the user's for it, or a function that returns that."""
        self._dataset = dataset
        self._version = version
        self._known = self._words()

    def settle(self) -> None:
        """Samples were read, which may have changed attributes, such as a counter's."""
        self._known = self._words()

    def change(self) -> str | None:
        """Returns the name of an attribute that is another one than before, "" for the dataset as a whole, and
        remembers what is there now; None: nothing has changed."""
        before, self._known = self._known, self._words()
        if before == self._known:
            return None
        names = [name for name in {**before, **self._known} if before.get(name) != self._known.get(name)]
        return min(names, key=lambda name: (name.count("."), name))

    def _words(self) -> dict[str, str]:
        look = _Look()
        look.add("", self._dataset, _MOST_DEPTH)
        return {**look.words, "version=": repr(self._version() if callable(self._version) else self._version)}


class _Look:
    """Puts values into words, by name."""

    def __init__(self) -> None:
        self.words: dict[str, str] = {}
        self._numbers: dict[int, int] = {}
        self._met: list[Any] = []  # kept so that nothing else gets their ids
        self._samples: set[int] = set()  # containers of these lengths list samples, of which stamp_of() knows

    def add(self, name: str, value: Any, depth: int) -> None:
        if isinstance(value, _PLAIN):
            self.words[name] = repr(value)
        elif isinstance(value, (str, os.PathLike)):
            text = os.fspath(value)
            is_file = isinstance(text, str) and looks_like_a_file(text) and os.path.isfile(text)
            self.words[name] = f"{text!r} {state_of(text) if is_file else ''}"
        elif isinstance(value, (Tensor, np.ndarray, bytes, bytearray)):
            self.words[name] = _memory_words(value)
        elif id(value) in self._numbers:
            self.words[name] = f"value {self._numbers[id(value)]}"
        else:
            self._numbers[id(value)] = len(self._numbers)
            self._met.append(value)
            self._add_object(name, value, depth if len(self._met) < _MOST_VALUES else 0)

    def _add_object(self, name: str, value: Any, depth: int) -> None:
        kind = type(value)
        sized = isinstance(value, (dict, list, tuple, set, frozenset, Dataset)) or name == ""
        length = len(value) if sized and hasattr(kind, "__len__") else ""
        self.words[name] = f"{kind.__module__}.{kind.__qualname__} {length}"
        if isinstance(value, Dataset) or name == "":
            self._samples.add(length)
        bystands = isinstance(value, _BYSTANDERS) or kind.__module__.partition(".")[0] in _BYSTANDING
        is_long = isinstance(value, (dict, list, tuple)) and (length > _MOST_PARTS or length in self._samples)
        if depth <= 0 or bystands or is_long:
            return
        if isinstance(value, type):
            self.words[name] += f" {value.__module__}.{value.__qualname__}"
        elif isinstance(value, types.FunctionType):
            self.words[name] += _code_words(value.__code__)
            cells = [cell.cell_contents for cell in value.__closure__ or () if _is_set(cell)]
            self.add(f"{name}()", [value.__defaults__, value.__kwdefaults__, cells], depth - 1)
        elif isinstance(value, types.MethodType):
            self.add(f"{name}()", [value.__func__, value.__self__], depth - 1)
        elif isinstance(value, functools.partial):
            self.add(f"{name}()", [value.func, value.args, value.keywords], depth - 1)
        elif isinstance(value, dict):
            for key, part in list(value.items()):
                self.add(f"{name}[{key!r}]", part, depth - 1)
        elif isinstance(value, (list, tuple)):
            for key, part in enumerate(value):
                self.add(f"{name}[{key}]", part, depth - 1)
        else:
            self._add_attributes(name, value, depth)

    def _add_attributes(self, name: str, value: Any, depth: int) -> None:
        attributes = getattr(value, "__dict__", None)
        slots = getattr(type(value), "__slots__", ())
        if attributes is None and not slots:
            self.words[name] += f" at {id(value)}"  # nothing of it is to be seen
        named = {slot: getattr(value, slot, None) for slot in ([slots] if isinstance(slots, str) else slots)}
        for attribute, part in {**named, **(attributes or {})}.items():
            self.add(f"{name}.{attribute}" if name else str(attribute), part, depth - 1)


def _memory_words(value: Tensor | np.ndarray | bytes | bytearray) -> str:
    if isinstance(value, (bytes, bytearray)):
        return repr(value) if len(value) <= _MOST_BYTES else f"{len(value)} bytes at {id(value)}"
    if value.nbytes <= _MOST_BYTES:
        return bytes_of(value).hex()
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value._version} {id(value)}"
    return f"{value.dtype} {value.shape} {value.ctypes.data}"


def _code_words(code: types.CodeType) -> str:
    constants = [_code_words(value) if isinstance(value, types.CodeType) else repr(value) for value in code.co_consts]
    return f" {code.co_code.hex()} {code.co_names} {constants}"


def _is_set(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
