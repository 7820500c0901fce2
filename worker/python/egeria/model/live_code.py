"""This file leaves out the instructions that code cannot come to, as a condition on settings that stay is false."""

from __future__ import annotations

import argparse
import dis
import functools
import operator
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from egeria.model.purity import is_of_library

_ENDS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
_LOADS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST"}
_COMPARISONS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_SIMPLE = (bool, int, float, str, bytes, type(None))
UNKNOWN = object()
_SETTING = {"STORE_NAME", "DELETE_NAME", "STORE_FAST", "DELETE_FAST", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF"}
_GIVES_VALUE = {*_LOADS, "LOAD_ATTR"}
_LONGEST_CHAIN = 8
_PLAIN = (object, types.ModuleType, types.SimpleNamespace, argparse.Namespace, argparse._AttributeHolder)

_Variables = Callable[[dis.Instruction], Any]  # returns the value that is loaded; UNKNOWN where it may change
_Attributes = Callable[[Any, str], Any]  # returns an attribute's value, or UNKNOWN


class NoSettings:
    """Nothing is known of any setting."""

    def live(
        self, code: types.CodeType, scope: dict[str, Any], frame: types.FrameType | None = None, begin: int = -1
    ) -> list[dis.Instruction]:
        """As Settings.live()."""
        return _live(code, _unknown, _unknown, begin)


class Settings:
    """The values of variables and attributes that nothing sets any more: arguments of a program, options."""

    def __init__(
        self,
        frames: Sequence[types.FrameType],
        code: Callable[[], Iterable[types.CodeType]],
        ahead: Callable[[], Iterable[types.CodeType]],
    ):
        """
        Args:
          frames: of the user's, on the stacks.
          code: gives all code of the user's, which may set globals and attributes.
          ahead: gives the code that may still run; where it sets attributes by names that it makes up, none is known.
        """
        self._modules = {id(frame.f_globals): frame for frame in frames if frame.f_code.co_name == "<module>"}
        self._code = code
        self._ahead = ahead

    def live(
        self, code: types.CodeType, scope: dict[str, Any], frame: types.FrameType | None = None, begin: int = -1
    ) -> list[dis.Instruction]:
        """The instructions of code with these globals that may run once the one at the offset `begin` has; from the
        start on by default. `frame`: of a call of it that is under way. Loads of settings are left out: they give
        nothing but a number, a text or None."""
        variables = lambda load: self._variable(load, scope, frame)  # noqa: E731
        live = _live(code, variables, self._attribute, begin)

        def is_setting(place: int) -> bool:
            chain = live[max(0, place + 1 - _LONGEST_CHAIN) : place + 1]
            return isinstance(_value(chain, variables, self._attribute)[0], _SIMPLE)

        return [i for place, i in enumerate(live) if i.opname not in _GIVES_VALUE or not is_setting(place)]

    def _variable(self, load: dis.Instruction, scope: dict[str, Any], frame: types.FrameType | None) -> Any:
        name = load.argval
        if load.opname == "LOAD_FAST":
            known = frame is not None and name in frame.f_locals and _stays(frame, name)
            return frame.f_locals[name] if known and frame is not None else UNKNOWN
        if name not in scope or name in self._stored[0]:
            return UNKNOWN
        module = self._modules.get(id(scope))
        return scope[name] if module is None or _stays(module, name) else UNKNOWN

    def _attribute(self, value: Any, name: str) -> Any:
        kinds = type(value).__mro__
        if (
            name in self._stored[1]
            or self._sets_any
            or not all(base in _PLAIN or not is_of_library(base) for base in kinds)
        ):
            return UNKNOWN  # code of a library's may set it
        if any(name in vars(base) or "__getattribute__" in vars(base) for base in kinds if base not in _PLAIN):
            return UNKNOWN
        return getattr(value, "__dict__", {}).get(name, UNKNOWN)

    @functools.cached_property
    def _stored(self) -> tuple[set[str], set[str]]:
        """The names of globals that functions set, and of attributes that are set but when an object is made."""
        variables: set[str] = set()
        attributes: set[str] = set()
        for code in self._code():
            for instruction in dis.get_instructions(code):
                if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                    variables.add(instruction.argval)
                elif instruction.opname in ("STORE_ATTR", "DELETE_ATTR") and code.co_name != "__init__":
                    attributes.add(instruction.argval)
        return variables, attributes

    @functools.cached_property
    def _sets_any(self) -> bool:
        return any("setattr" in code.co_names for code in self._ahead())


def _stays(frame: types.FrameType, name: str) -> bool:
    """Whether a variable of a call under way has its only value."""
    setting = _setting(frame.f_code).get(name, ())
    return not setting or (len(setting) == 1 and setting[0] not in _offsets_ahead(frame.f_code, frame.f_lasti))


@functools.lru_cache(64)
def _setting(code: types.CodeType) -> dict[str, list[int]]:
    """The offsets at which each variable is set."""
    found: dict[str, list[int]] = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname in _SETTING:
            found.setdefault(instruction.argval, []).append(instruction.offset)
    return found


@functools.lru_cache(64)
def _offsets_ahead(code: types.CodeType, begin: int) -> frozenset[int]:
    return frozenset(instruction.offset for instruction in _live(code, _unknown, _unknown, begin))


def _unknown(*_: Any) -> Any:
    return UNKNOWN


def _live(code: types.CodeType, variables: _Variables, attributes: _Attributes, begin: int) -> list[dis.Instruction]:
    instructions = list(dis.get_instructions(code))
    places = {instruction.offset: place for place, instruction in enumerate(instructions)}
    targets = {i.argval for i in instructions if _jumps(i)}
    handlers = getattr(dis.Bytecode(code), "exception_entries", ())
    first = sum(instruction.offset <= begin for instruction in instructions)
    ahead = [first] if first < len(instructions) else []
    live: set[int] = set()
    while ahead:
        place = ahead.pop()
        if place in live:
            continue
        live.add(place)
        instruction = instructions[place]
        ahead += [places[entry.target] for entry in handlers if entry.start <= instruction.offset < entry.end]
        if instruction.opname in _ENDS:
            continue
        goes_on, jumps = True, _jumps(instruction)
        if jumps and "_IF_" not in instruction.opname:
            goes_on = not instruction.opname.startswith("JUMP_")
        elif jumps and (taken := _is_taken(instructions, place, targets, variables, attributes)) is not None:
            goes_on, jumps = not taken, taken
        if goes_on and place + 1 < len(instructions):
            ahead.append(place + 1)
        if jumps:
            ahead.append(places[instruction.argval])
    return [instructions[place] for place in sorted(live)]


def _jumps(instruction: dis.Instruction) -> bool:
    return instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs


def _is_taken(
    instructions: list[dis.Instruction], place: int, targets: set[int], variables: _Variables, attributes: _Attributes
) -> bool | None:
    """Whether a conditional jump is taken, each time; None: that is not known."""
    jump = instructions[place].opname
    before = [i for i in instructions[max(0, place - 8) : place] if i.opname != "TO_BOOL"]
    tests: Callable[[Any], Any] = bool
    last = before[-1] if before else None
    if last is not None and last.opname == "UNARY_NOT":
        before, tests = before[:-1], operator.not_
    elif last is not None and last.opname in ("COMPARE_OP", "IS_OP", "CONTAINS_OP"):
        if len(before) < 3 or before[-2].opname != "LOAD_CONST":
            return None
        if (found := _comparison(last, before[-2].argval)) is None:
            return None
        before, tests = before[:-2], found
    value, first = _value(before, variables, attributes)
    inside = [i.offset for i in instructions[: place + 1] if i.offset > first]
    if value is UNKNOWN or not targets.isdisjoint(inside):
        return None
    if jump.endswith("NONE"):
        return (value is None) != jump.endswith("NOT_NONE")
    if not isinstance(value, _SIMPLE) and (last is None or last.opname != "IS_OP"):
        return None
    try:
        return bool(tests(value)) == jump.endswith(("IF_TRUE", "IF_TRUE_OR_POP"))
    except TypeError:  # they cannot be compared
        return None


def _comparison(instruction: dis.Instruction, constant: Any) -> Callable[[Any], Any] | None:
    if instruction.opname == "COMPARE_OP":
        name = str(instruction.argval).removeprefix("bool(").removesuffix(")")
        compare = _COMPARISONS.get(name)
        return None if compare is None else lambda value: compare(value, constant)
    if instruction.opname == "IS_OP":
        return lambda value: (value is constant) != bool(instruction.arg)
    return lambda value: (value in constant) != bool(instruction.arg)


def _value(before: list[dis.Instruction], variables: _Variables, attributes: _Attributes) -> tuple[Any, int]:
    """The value that a chain of attributes gives, which ends here, and the offset where the chain begins."""
    names: list[str] = []
    for instruction in reversed(before):
        if instruction.opname == "LOAD_ATTR":
            names.append(instruction.argval)
            continue
        value = variables(instruction) if instruction.opname in _LOADS else UNKNOWN
        while names and value is not UNKNOWN:
            value = attributes(value, names.pop())
        return value, instruction.offset
    return UNKNOWN, 0
