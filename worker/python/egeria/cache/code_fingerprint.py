"""This file puts the code by which modules compute into words, so that changed code is noticed."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterable
from typing import Any

from egeria.cache.stable_text import captured, code_words, name_of, plain_words

# At most this many functions and classes are read. A model has some dozens of its own, and its library hundreds.
_MAX_READ = 4096
# These are not looked into: what becomes of Python's own shows in bytecode, and torch's version is told by itself.
_FOREIGN = sys.stdlib_module_names | {"egeria", "numpy", "torch"}


def program_of(kinds: Iterable[type]) -> str:
    """Puts into words the forward functions of these classes of modules, and what they name that is neither torch's nor
    Python's own: methods, functions, classes, and global values that are plain; and what those name in turn. A training
    that goes on with other code has another text."""
    walk = _Walk()
    for kind in kinds:
        walk.use("forward", inspect.getattr_static(kind, "forward", None), kind)
    walk.run()
    return "\n".join(walk.words)


class _Walk:
    """Walks over functions, each with the class whose method it is."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._met: dict[tuple[int, type | None], Any] = {}  # kept, so that nothing else gets its id
        self._ahead: list[tuple[Any, type | None]] = []

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
        for value in captured(function):
            self.use("", value, owner)
        names = _names_in(function.__code__)
        for name in names:
            if owner is not None:
                self.use(name, inspect.getattr_static(owner, name, None), owner)
            value = function.__globals__.get(name)
            if not isinstance(value, types.ModuleType):
                self.use(name, value, None)
            elif not _is_foreign(value):
                for part in names:
                    self.use(part, vars(value).get(part), None)


def _names_in(code: types.CodeType) -> list[str]:
    """Returns the attributes and the globals that the code names, and those that functions inside it name."""
    inner = [name for value in code.co_consts if isinstance(value, types.CodeType) for name in _names_in(value)]
    return list(dict.fromkeys((*code.co_names, *inner)))


def _is_foreign(value: Any) -> bool:
    module = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    return str(module).partition(".")[0] in _FOREIGN
