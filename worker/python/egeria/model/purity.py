"""This file looks through the code of a model for what its forward pass may change beyond the model itself."""

from __future__ import annotations

import builtins
import collections
import dis
import enum
import functools
import pathlib
import re
import sys
import sysconfig
import types
import typing
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

# Code in these folders is a library's: it keeps to the modules and tensors that it is given.
_LIBRARIES = tuple(
    str(pathlib.Path(folder).resolve())
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
        str(pathlib.Path(torch.__file__).parent),
        *(str(file.parents[1]) for file in (pathlib.Path(__file__), pathlib.Path(__file__).resolve())),
    }
)
_OUTWARD = {
    "print",
    "open",
    "input",
    "exec",
    "eval",
    "globals",
    "vars",
    "setattr",
    "delattr",
    "__import__",
    "breakpoint",
}
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type(...), type(NotImplemented), torch.dtype,
    torch.device, torch.layout, torch.memory_format, enum.Enum, re.Pattern, types.ModuleType, types.GenericAlias,
    types.UnionType, typing.TypeVar, property, types.MemberDescriptorType, types.GetSetDescriptorType, BaseException,
)  # fmt: skip
# A copy of these leads to the original.
_POINTERS = (nn.Module, weakref.ReferenceType, weakref.CallableProxyType)
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_CONTAINERS = (dict, list, set, collections.deque)
_WRITES_TO_ITEMS = {"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"}
_OF_TORCH = frozenset(vars(nn.Module()))
_NAMING = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"}
_MUTATORS = set(
    "append appendleft extend extendleft insert pop popleft popitem remove discard clear update setdefault add sort "
    "reverse rotate move_to_end difference_update intersection_update symmetric_difference_update".split()
)
_ENTRIES = ("forward", "__call__")


class Beyond(Exception):
    """Says what a forward pass touches that is no part of the model; the text is for people."""


def check_code(modules: Iterable[tuple[str, nn.Module, nn.Module]], own: Iterable[Any]) -> list[Any]:
    """Looks at all code that a forward pass of the modules may come to.

    Functions of libraries are trusted, and so is what no Python code shows. In doubt code is refused.

    Args:
      modules: their names, copies of them, and themselves.
      own: all objects that belong to the model.

    Returns:
      The containers outside of the model that are read: they are to be the same afterwards.

    Raises:
      Beyond: it may touch a global, or a variable of an enclosing function.
    """
    own, modules = list(own), list(modules)
    search = _Search({id(value) for value in own}, {id(original) for _, _, original in modules})
    for name, module, original in modules:
        search.where = f"'{name}' ({type(module).__name__})" if name else type(module).__name__
        search.enter(type(module), _ENTRIES)
        search.judge_all(
            value
            for name, value in vars(module).items()
            if name not in _OF_TORCH
            and (isinstance(value, _FUNCTIONS) or vars(original).get(name) is value)  # others were made for the copy
        )
    for value in own:
        search.where = f"a {type(value).__name__} of the model"
        if isinstance(value, _CONTAINERS):
            search.judge_all(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, functools.partial):
            search.judge("a partial", value.func)
        elif not isinstance(value, (nn.Module, Tensor)) and not is_of_library(type(value)):
            search.enter(
                type(value), [name for name in dir(type(value)) if name.startswith("__") and name != "__init__"]
            )
            search.judge_all(getattr(value, "__dict__", {}).values())
    search.run()
    return search.read


class _Search:
    """Goes from function to function. Methods are followed by their names: whatever class has one of a name that some
    code asks for."""

    def __init__(self, own: set[int], originals: set[int]) -> None:
        self.where = ""
        self._own = own
        self._originals = originals
        self.read: list[Any] = []
        self._functions: dict[types.CodeType, tuple[types.FunctionType, str]] = {}
        self._ahead: list[types.CodeType] = []
        self._classes: dict[type, str] = {}
        self._names: set[str] = set()

    def enter(self, kind: type, names: Iterable[str]) -> None:
        """The class's methods of these names may be called, and those that some code names."""
        if kind in self._classes:
            return
        self._classes[kind] = self.where
        for name in {*names, *self._names, "__getattr__", "__getattribute__", "__setattr__"}:
            self._follow(kind, name)

    def run(self) -> None:
        while self._ahead:
            function, self.where = self._functions[code := self._ahead.pop()]
            for inner in codes_in(code):
                self._look_at(inner, function)

    def judge_all(self, values: Iterable[Any]) -> None:
        """For what the model holds: all but functions has been copied with it, unless copying gives the same object."""
        for value in list(values):
            self.judge("an attribute", value)

    def judge(self, what: str, value: Any) -> None:
        """Raises Beyond unless code may use this value without changing anything."""
        if id(value) in self._own or isinstance(
            value, (*_PLAIN, Tensor)
        ):  # who writes to a tensor is seen then (egeria.model.shadow)
            return
        if isinstance(value, (tuple, frozenset)):
            for entry in value:
                self.judge(what, entry)
        elif isinstance(value, types.FunctionType):
            self._add(value)
        elif isinstance(value, (staticmethod, classmethod, functools._lru_cache_wrapper)):
            self.judge(what, value.__wrapped__)
        elif isinstance(value, types.MethodType):
            self.judge(what, value.__self__)
            self.judge(what, value.__func__)
        elif isinstance(value, functools.partial):
            for entry in (value.func, *value.args, *value.keywords.values()):
                self.judge(what, entry)
        elif isinstance(value, type):
            if not is_of_library(value):
                self.enter(value, dir(value))
        elif isinstance(value, types.BuiltinFunctionType):
            if value.__self__ is not None and not isinstance(value.__self__, (types.ModuleType, type)):
                if type(value.__self__).__module__ not in (
                    "random",
                    "numpy.random.mtrand",
                ):  # their states are put back
                    self.judge(what, value.__self__)
        elif isinstance(value, _POINTERS) or not (
            type(value).__module__ == "numpy.dtypes" or (callable(value) and is_of_library(type(value)))
        ):
            beyond = "of which it has no copy" if id(value) in self._originals else "that is no part of the model"
            raise Beyond(f"{self.where} uses {what}, a {type(value).__name__} {beyond}")

    def _add(self, function: types.FunctionType) -> None:
        """A function may be called. The variables of its enclosing function count wherever it is from: the code of one
        that is no library's shows what it does with them."""
        code = function.__code__
        if code in self._functions:
            return
        self._functions[code] = function, self.where
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            value = _in_cell(cell)
            if name != "__class__" and is_library_code(code) and not isinstance(value, (*_CONTAINERS, type)):
                self.judge(f"the variable '{name}' of an enclosing function", value)
        if not is_library_code(code):
            self._ahead.append(code)

    def _follow(self, kind: type, name: str) -> None:
        for base in kind.__mro__:
            found = vars(base).get(name)
            if found is None or is_of_library(base):
                continue
            where, self.where = self.where, self._classes[kind]
            for function in (found.fget, found.fset) if isinstance(found, property) else (found,):
                if isinstance(function, (types.FunctionType, staticmethod, classmethod, functools._lru_cache_wrapper)):
                    self.judge(name, function)
            self.where = where

    def _look_at(self, code: types.CodeType, function: types.FunctionType) -> None:
        instructions = list(dis.get_instructions(code))
        names = {i.argval for i in instructions if i.opname in _NAMING}
        self._ask_for(names)
        stored = {i.argval for i in instructions if i.opname in ("STORE_ATTR", "DELETE_ATTR")}
        writes = bool(names & _MUTATORS) or any(i.opname in _WRITES_TO_ITEMS for i in instructions)
        outer = dict(zip(function.__code__.co_freevars, map(_in_cell, function.__closure__ or ())))
        kinds = list(self._classes) if "__class__" in names else []
        for place, instruction in enumerate(instructions):
            name, operation = instruction.argval, instruction.opname
            if operation in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                raise Beyond(f"{self.where} writes the global '{name}'")
            if operation in ("STORE_DEREF", "DELETE_DEREF") and name in outer:
                raise Beyond(f"{self.where} writes the variable '{name}' of an enclosing function")
            if operation == "LOAD_GLOBAL":
                value, what = self._global(name, function), f"the global '{name}'"
            elif operation in ("LOAD_DEREF", "LOAD_CLASSDEREF") and name in outer:
                value, what = outer[name], f"the variable '{name}' of an enclosing function"
            elif operation == "IMPORT_NAME":
                value, what = sys.modules.get(name), f"the module '{name}'"
            else:
                continue
            if value is type:
                kinds += self._classes
            if isinstance(value, (type, types.ModuleType)) and not is_of_library(value):
                kinds.append(value)
            self._use(what, value, writes and not _is_subscript(instructions[place + 1 :]))
        for kind in kinds:
            if shared := stored.intersection(vars(kind)):
                raise Beyond(f"{self.where} writes '{min(shared)}' of {kind.__name__}, which all have in common")
            for name in names.intersection(vars(kind)):
                self._use(f"'{name}' of {kind.__name__}", vars(kind)[name], writes)

    def _use(self, what: str, value: Any, writes: bool) -> None:
        if isinstance(value, _CONTAINERS) and not writes and id(value) not in self._own:
            self.read.append(value)
        else:
            self.judge(what, value)

    def _global(self, name: str, function: types.FunctionType) -> Any:
        scope = function.__globals__
        if name in scope:
            return scope[name]
        if name in _OUTWARD:
            raise Beyond(f"{self.where} calls {name}()")
        return getattr(builtins, name, None)

    def _ask_for(self, names: set[str]) -> None:
        fresh = names - self._names
        self._names |= fresh
        for kind in list(self._classes):
            for name in fresh:
                self._follow(kind, name)


def _is_subscript(following: list[dis.Instruction]) -> bool:
    """Whether what was loaded last is read at a constant or a local variable, and no more."""
    if len(following) < 2 or following[0].opname not in ("LOAD_CONST", "LOAD_FAST"):
        return False
    return following[1].opname == "BINARY_SUBSCR" or following[1].argrepr == "[]"


def is_of_user(kind: type) -> bool:
    """Whether a class is no library's."""
    return not is_of_library(kind)


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def _in_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


@functools.lru_cache(4096)
def is_of_library(kind: Any) -> bool:
    """For a class or a module."""
    module = kind if isinstance(kind, types.ModuleType) else sys.modules.get(getattr(kind, "__module__", "") or "")
    file = getattr(module, "__file__", None)
    if file is None:
        return module is not None and module.__name__ in sys.builtin_module_names
    return module.__name__ != "__main__" and str(pathlib.Path(file).resolve()).startswith(_LIBRARIES)


@functools.cache
def is_library_code(code: types.CodeType) -> bool:
    return code.co_filename.startswith("<frozen") or str(pathlib.Path(code.co_filename).resolve()).startswith(
        _LIBRARIES
    )
