"""This file reads the code by which modules compute: to put it into words, and for the values that it names."""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from egeria.cache.stable_text import captured, code_words, name_of, plain_words

# At most this many functions and classes are read. A model has some dozens of its own, and its library hundreds.
_MAX_READ = 4096
# These are not looked into: what becomes of Python's own shows in bytecode, and torch's version is told by itself.
_FOREIGN = sys.stdlib_module_names | {"egeria", "numpy", "torch"}
# Attributes of a class of these types are values, not code.
_DATA = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, Tensor)


@dataclasses.dataclass
class Program:
    """The forward functions of modules, with all functions and classes that they name, and those that these name.

    Attributes:
      words: the code, the same in every process.
      names: what it uses and does not hold: (owner, table, name) of globals, and of attributes of modules and classes.
        A name of an installed package counts where its value is plain: these change other values for themselves.
      functions: those that hold values that may change: defaults, and what they use of functions around them.
    """

    words: list[str]
    names: list[tuple[str, Mapping[str, Any], str]]
    functions: list[types.FunctionType]


def program_of(kinds: Iterable[type], function: Callable[..., Any] | None = None) -> Program:
    """Reads the code of these classes of modules, and of the function, that is neither torch's nor Python's own. A
    training that goes on with other code has other words."""
    walk = _Walk()
    walk.use("function", function, None)
    for kind in kinds:
        walk.use("forward", inspect.getattr_static(kind, "forward", None), kind)
    walk.run()
    return Program(walk.words, list(walk.names.values()), walk.functions)


class _Walk:
    """Walks over functions, each with the class whose method it is."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.names: dict[tuple[int, str], tuple[str, Mapping[str, Any], str]] = {}
        self.functions: list[types.FunctionType] = []
        self._met: dict[tuple[int, type | None], Any] = {}  # kept, so that nothing else gets its id
        self._ahead: list[tuple[Any, type | None]] = []
        self._looked_up: set[tuple[int, str, frozenset[str]]] = set()

    def use(self, name: str, value: Any, owner: type | None) -> None:
        """Notes a value that some function names; None is a name that stands for nothing."""
        if value is None:
            return
        if (plain := plain_words(value)) is not None:
            self.words.append(f"{name} = {plain}")
        elif (id(value), owner) not in self._met:
            self._met[id(value), owner] = value
            self._ahead.append((value, owner))

    def run(self) -> None:
        while self._ahead and len(self._met) < _MAX_READ:
            value, owner = self._ahead.pop()
            if isinstance(value, (staticmethod, classmethod, types.MethodType)):
                self.use("", value.__func__, owner)
            elif isinstance(value, property):
                self.use("", value.fget, owner)
            elif isinstance(value, functools.partial):
                for part in (value.func, *value.args, *value.keywords.values()):
                    self.use("", part, owner)
            elif isinstance(value, types.FunctionType) and not _is_foreign(value):
                self._read(value, owner)
            elif isinstance(value, type) and not _is_foreign(value):
                for name, part in vars(value).items():
                    if isinstance(part, (types.FunctionType, staticmethod, classmethod, property)):
                        self.use(name, part, value)

    def _read(self, function: types.FunctionType, owner: type | None) -> None:
        self.words.append(f"{name_of(function)}: {code_words(function.__code__)}")
        may_change = function.__closure__ or not all(plain_words(value) for value in captured(function))
        if may_change and not _is_installed(function.__module__):
            self.functions.append(function)
        for value in captured(function):
            self.use("", value, owner)
        if owner is not None:
            self._look_into(owner, _attributes_in(function.__code__), owner)
        for name, attributes in _globals_in(function.__code__).items():
            self._look_up(function.__module__, function.__globals__, name, attributes)

    def _look_up(self, owner: str, table: Mapping[str, Any], name: str, attributes: set[str]) -> None:
        """Notes what a name stands for in a table, and the attributes that the code may take of that."""
        if name not in table or (asked := (id(table), name, frozenset(attributes))) in self._looked_up:
            return
        self._looked_up.add(asked)
        value = table[name]
        if isinstance(value, types.ModuleType):
            inside = vars(value) if not _is_foreign(value) else {}
            for part in sorted(attributes & inside.keys()):
                self._look_up(value.__name__, inside, part, attributes)
            return
        self._name(owner, table, name, id(table))
        if isinstance(value, (type, types.FunctionType, functools.partial, types.MethodType)):
            self.use(name, value, None)
        self._look_into(value if isinstance(value, type) else type(value), attributes, None)

    def _look_into(self, kind: type, attributes: Iterable[str], owner: type | None) -> None:
        """Notes the attributes of a class: methods to be read, as of `owner`, and values."""
        for name in sorted(attributes):
            base = next((base for base in kind.__mro__ if name in vars(base)), object)
            if name not in vars(base) or _is_foreign(base):
                continue
            if isinstance(value := vars(base)[name], _DATA) or plain_words(value) is not None:
                self._name(str(base.__module__), vars(base), name, id(base))
            else:
                self.use(name, value, owner or kind)

    def _name(self, module: str, table: Mapping[str, Any], name: str, key: int) -> None:
        if plain_words(table[name]) is not None or not _is_installed(module):
            self.names[key, name] = module, table, name


def _attributes_in(code: types.CodeType) -> list[str]:
    """Returns the names that the code has, and those that functions inside it have."""
    inner = [name for value in code.co_consts if isinstance(value, types.CodeType) for name in _attributes_in(value)]
    return list(dict.fromkeys((*code.co_names, *inner)))


def _globals_in(code: types.CodeType) -> dict[str, set[str]]:
    """Returns the globals that the code names, each with the attributes that it takes of it, one after the other."""
    found: dict[str, set[str]] = {}
    current: set[str] | None = None
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            current = found.setdefault(step.argval, set())
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and current is not None:
            current.add(step.argval)
        else:
            current = None
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            for name, attributes in _globals_in(value).items():
                found.setdefault(name, set()).update(attributes)
    return found


def _is_installed(module: str) -> bool:
    """Returns whether the module is of a package that was installed, rather than of the script."""
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" in path or "dist-packages" in path


def _is_foreign(value: Any) -> bool:
    module = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    return str(module).partition(".")[0] in _FOREIGN
