"""This file looks through the code that a training may run for what reads the gradients of parameters.

Code may run that the frames on the stacks name, or that such code names in turn: methods are followed by their names,
whatever class has one. Code of libraries is not looked through. A name of theirs counts that speaks of
gradients. In doubt code counts as a reader.
"""

from __future__ import annotations

import collections
import dataclasses
import dis
import functools
import importlib.util
import pathlib
import re
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer

from egeria.model.live_code import NoSettings, Settings
from egeria.model.purity import codes_in, is_library_code, is_of_library

# These speak of gradients, and give none to read.
_HARMLESS = {
    "zero_grad", "no_grad", "enable_grad", "set_grad_enabled", "is_grad_enabled", "requires_grad", "requires_grad_",
    "needs_input_grad", "autograd", "gradient_checkpointing", "gradient_checkpointing_enable", "GradScaler",
    "gradient_checkpointing_disable", "gradient_as_bucket_view", "grad_scaler", "max_grad_norm",
}  # fmt: skip
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_OTHER_WORDS = ("grade", "grading", "gradio", "gradual", "graduat")
_HOOKS = {"register_hook", "register_full_backward_hook", "register_full_backward_pre_hook", "register_backward_hook"}
# Nobody can tell what these run.
_OPEN = {"exec", "eval", "breakpoint", "set_trace"}
_NAMING = {
    "LOAD_ATTR", "LOAD_METHOD", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_SUPER_ATTR", "IMPORT_FROM", "LOAD_DEREF",
    "LOAD_CLASSDEREF", "LOAD_FAST", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF",
}  # fmt: skip
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_MOST_IN_CONTAINER = 1000
_MAKING = {"MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE"}
_OF_VARIABLES = {"LOAD_FAST", "LOAD_DEREF"}
_OF_SCOPE = {"LOAD_NAME", "LOAD_GLOBAL"}


def reader_of_gradients(model: nn.Module) -> str | None:
    """Says what may read the gradients of any parameter, for people; None: nothing does."""
    if hasattr(sys, "ps1") or "get_ipython" in vars(sys.modules["builtins"]):
        return "the next lines of this interactive session may read them"
    search = _Search(ahead_only=False)
    for module in model.modules():
        search.enter(type(module))
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            search.follow_all(hooks.values())
    return search.reader()


def makes_optimizers_later() -> bool:
    """Whether code that comes behind where the frames on the stacks are may give parameters to an optimizer."""
    return _Search(ahead_only=True).makes_optimizers()


def makes_optimizers_between(code: types.CodeType, begin: int, end: int) -> bool:
    """Whether the code itself may do so between two of its instructions."""
    names = _optimizer_names()
    between = (i for i in dis.get_instructions(code) if begin < i.offset < end)
    return any(instruction.opname in _NAMING and instruction.argval in names for instruction in between)


def user_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """The innermost frame from here on that is no library's."""
    while frame is not None and is_library_code(frame.f_code):
        frame = frame.f_back
    return frame


def place_of(frame: types.FrameType) -> str:
    """The line of a frame, for people."""
    return f"{pathlib.Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


@dataclasses.dataclass(frozen=True)
class _Code:
    """Some code, and the globals that it has."""

    code: types.CodeType
    scope: dict[str, Any] = dataclasses.field(compare=False, repr=False)


class _Search:
    """Goes from name to name."""

    def __init__(self, ahead_only: bool, prunes: bool = True):
        """
        Args:
          ahead_only: of the frames on the stacks only what comes behind where they are, and the loops around it.
          prunes: leaves out what settings keep from running.
        """
        self._named: dict[str, list[_Code | type]] = collections.defaultdict(list)  # by all their names
        self._seen: set[Any] = set()  # code and classes that are used
        self._noted: set[type] = set()
        self._suspects: set[str] = set()  # names of functions of libraries that speak of gradients
        self._followed: set[str] = set()
        self._ahead: list[tuple[_Code, list[dis.Instruction]]] = []
        self._past: list[tuple[_Code, list[dis.Instruction]]] = []
        for module in list(sys.modules.values()):
            if isinstance(module, types.ModuleType) and not is_of_library(module):
                for name, value in list(vars(module).items()):
                    self._note(name, value)
        self._frames = list(_frames())
        self._settings = Settings(self._frames, self._all_code, _code_ahead) if prunes else NoSettings()
        for frame in self._frames:
            self._add_frame(frame, ahead_only)

    def _all_code(self) -> Iterator[types.CodeType]:
        entries = [entry for entries in self._named.values() for entry in entries if isinstance(entry, _Code)]
        for code in {entry.code for entry in entries} | {frame.f_code for frame in self._frames}:
            yield from codes_in(code)

    def _add_frame(self, frame: types.FrameType, ahead_only: bool) -> None:
        """The code behind where the frame is may run. The code before may have left a gradient, or functions that are
        called later; but it has called those that are on the stacks, which are there for themselves."""
        code, found = frame.f_code, _Code(frame.f_code, frame.f_globals)
        begin = self._settings.live(code, frame.f_globals, frame)
        ahead = self._settings.live(code, frame.f_globals, frame, frame.f_lasti)
        self._ahead.append((found, ahead))
        self._define(found, begin)
        if not ahead_only:
            self._past.append((found, [i for i in begin if i.offset not in {later.offset for later in ahead}]))

    def reader(self) -> str | None:
        for code, instruction in self._instructions():
            name = instruction.argval
            if instruction.opname == "IMPORT_NAME":
                found = f"imports '{name}' later" if _is_unknown(name) else None
            else:
                found = f"names '{name}'" if self._reads(instruction) else None
            if found is not None:
                positions = getattr(instruction, "positions", None)  # from Python 3.11 on
                line = code.co_firstlineno if positions is None else positions.lineno
                return f"{pathlib.Path(code.co_filename).name}:{line} {found}"
        return None

    def makes_optimizers(self) -> bool:
        names = _optimizer_names()
        for _, instruction in self._instructions():
            name = instruction.argval
            kinds = [entry for entry in self._named.get(name, ()) if isinstance(entry, type)]
            if instruction.opname in _NAMING and (name in names or any(issubclass(kind, Optimizer) for kind in kinds)):
                return True
        return False

    def enter(self, kind: type) -> None:
        """Objects of this class are used: what is called of them without being named are special methods, and those
        that a library's class has, too."""
        if kind in self._seen or issubclass(kind, Optimizer):  # it reads the gradients of what it holds
            return
        self._seen.add(kind)
        libraries = [base for base in kind.__mro__ if is_of_library(base)]
        for base in kind.__mro__:
            for name, value in () if base in libraries else list(vars(base).items()):
                if name.startswith("__") or any(name in vars(library) for library in libraries):
                    self.follow_all([value])

    def follow_all(self, values: Iterable[Any]) -> None:
        for value in values:
            for found in _codes_of(value):
                self._follow(found)

    def _follow(self, entry: _Code | type) -> None:
        if isinstance(entry, type):
            if not is_of_library(entry):
                self.enter(entry)
        elif entry not in self._seen and not is_library_code(entry.code):
            self._seen.add(entry)
            instructions = self._settings.live(entry.code, entry.scope)
            self._ahead.append((entry, instructions))
            self._define(entry, instructions)

    def _define(self, entry: _Code, instructions: list[dis.Instruction]) -> None:
        for inner, name in _defined_in(instructions, of_module=entry.code.co_name == "<module>"):
            found = _Code(inner, entry.scope)
            if name is None or name in self._followed:
                self._follow(found)
            else:
                self._named[name].append(found)

    def _note(self, name: str, value: Any, depth: int = 2) -> None:
        """A module of the user's has this value by this name, or in a container or object of this name."""
        if not isinstance(value, type):
            codes = list(_codes_of(value))
            self._named[name] += codes
            function = value
            while isinstance(function, functools.partial):
                function = function.func
            is_foreign = type(function) in _FUNCTIONS and not (function.__module__ or "").startswith("egeria.")
            if is_foreign and not codes and _speaks_of_gradients(function.__name__):
                self._suspects.add(name)
            if not is_of_library(type(value)):
                self._named[name].append(type(value))
            for inner in _inside(value) if depth > 0 else ():
                self._note(name, inner, depth - 1)
            return
        is_optimizer, is_users = issubclass(value, Optimizer), not is_of_library(value)
        if is_optimizer or is_users:
            self._named[name].append(value)
        if is_users and not is_optimizer and value not in self._noted:
            self._noted.add(value)
            for inner, member in list(vars(value).items()):
                if not isinstance(member, type):
                    self._named[inner] += _codes_of(member)
                elif inner != "__class__":
                    self._note(inner, member)

    def _instructions(self) -> Iterator[tuple[types.CodeType, dis.Instruction]]:
        running = frozenset(frame.f_code for frame in self._frames)
        while self._ahead or self._past:
            is_past = not self._ahead
            found, instructions = (self._past if is_past else self._ahead).pop()
            for instruction in instructions:
                name = instruction.argval
                is_constant = instruction.opname == "LOAD_CONST" and isinstance(name, str) and name == "grad"
                if is_constant or instruction.opname == "IMPORT_NAME":
                    yield found.code, instruction
                elif instruction.opname in _NAMING:
                    yield found.code, instruction
                    scope = found.scope if instruction.opname in _OF_SCOPE else {}
                    self._ask_for(name, scope, running if is_past else frozenset())

    def _ask_for(self, name: str, scope: dict[str, Any], without: frozenset[types.CodeType]) -> None:
        """Follows what has this name but code `without`: what the scope has, or else whatever there is."""
        entries: list[_Code | type] = []
        if name in scope:
            value = scope[name]
            entries += [value] if isinstance(value, type) else _codes_of(value)
        if not entries and name not in self._followed and (name, without) not in self._seen:
            (self._seen.add((name, without)) if without else self._followed.add(name))
            entries += self._named.get(name, ())
        for entry in entries:
            if isinstance(entry, type) or entry.code not in without:
                self._follow(entry)

    def _reads(self, instruction: dis.Instruction) -> bool:
        name = instruction.argval
        if instruction.opname == "LOAD_CONST":
            return True
        if name in self._suspects:
            return True
        if instruction.opname in _OF_VARIABLES or (self._named.get(name) and name != "grad"):
            return False  # it comes from somewhere, or is looked into
        if instruction.opname in _OF_SCOPE and name in _OPEN:
            return True
        return name in _HOOKS or _speaks_of_gradients(name)


def _code_ahead() -> set[types.CodeType]:
    """All code that may still run, whatever the settings are."""
    search = _Search(ahead_only=True, prunes=False)
    return {code for code, _ in search._instructions()}


def _speaks_of_gradients(name: str) -> bool:
    if name in _HARMLESS:
        return False
    words = [word.lower() for word in _WORD.findall(name)]
    if any(word.startswith("accum") for word in words):
        return False
    return any(word.startswith("grad") and not word.startswith(_OTHER_WORDS) or word.endswith("grad") for word in words)


def _optimizer_names() -> set[str]:
    found = {"add_param_group"}
    ahead: list[type] = [Optimizer]
    while ahead:
        kinds = ahead.pop().__subclasses__()
        found.update(kind.__name__ for kind in kinds)
        ahead += kinds
    return found


def _frames() -> Iterator[types.FrameType]:
    """Yields the frames of all threads that are no library's, without a launcher's around the program."""
    for frame in sys._current_frames().values():
        while (found := user_frame(frame)) is not None:
            yield found
            is_program = found.f_code.co_name == "<module>" and found.f_globals.get("__name__") == "__main__"
            frame = None if is_program else found.f_back


def _defined_in(instructions: list[dis.Instruction], of_module: bool) -> Iterator[tuple[types.CodeType, str | None]]:
    """The functions that some code defines, by the names that it gives them. None: they are used at once, as a
    decorator uses what it decorates. Methods count so, too, unless the classes are those of a module."""
    for place, instruction in enumerate(instructions):
        code = instruction.argval
        if not isinstance(code, types.CodeType):
            continue
        if "__qualname__" in code.co_names:  # the body of a class
            yield from () if of_module else ((inner, None) for inner in codes_in(code))
            continue
        after = next((i for i in instructions[place + 1 :] if i.opname not in _MAKING), None)
        is_stored = after is not None and after.opname.startswith("STORE_") and isinstance(after.argval, str)
        yield code, after.argval if is_stored else None


def _inside(value: Any) -> list[Any]:
    """Returns what is in a container, or in an object of a class of the user's; a few of many."""
    if isinstance(value, dict):
        found = list(value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        found = list(value)
    else:
        found = [] if is_of_library(type(value)) else list(getattr(value, "__dict__", {}).values())
    return found[:_MOST_IN_CONTAINER]


def _codes_of(value: Any, depth: int = 4) -> Iterator[_Code]:
    """The code of users that a call of `value` may come to by itself: through decorators, partials and methods."""
    if depth == 0:
        return
    inner: list[Any] = []
    if isinstance(value, types.FunctionType):
        if not is_library_code(value.__code__):
            yield _Code(value.__code__, value.__globals__)
        inner = [getattr(value, "__wrapped__", None), *(_content(cell) for cell in value.__closure__ or ())]
    elif isinstance(value, types.MethodType):
        inner = [value.__func__]
    elif isinstance(value, (staticmethod, classmethod, functools._lru_cache_wrapper)):
        inner = [value.__wrapped__]
    elif isinstance(value, functools.cached_property):
        inner = [value.func]
    elif isinstance(value, property):
        inner = [value.fget, value.fset]
    elif isinstance(value, functools.partial):
        inner = [value.func, *value.args, *value.keywords.values()]
    for entry in inner:
        yield from _codes_of(entry, depth - 1)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


def _is_unknown(name: str) -> bool:
    """Whether a module of the user's is imported by code that is still to run."""
    if name in sys.modules or not name:
        return False
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None:
        return False
    stand_in = types.ModuleType(name)
    stand_in.__file__ = spec.origin
    return spec.origin not in ("built-in", "frozen") and not is_of_library(stand_in)
