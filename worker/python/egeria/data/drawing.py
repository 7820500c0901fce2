"""This file finds out whether samples are made with random numbers, from the states of generators. A sample that draws
none most probably comes again as it was."""

from __future__ import annotations

import contextlib
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

_LOOKS = 8  # at the first batches that a loader's process loads
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_OTHERS = (str, bytes, int, float, type, types.ModuleType, np.ndarray, torch.Tensor)  # hold none
# Objects among which generators are looked for, and entries of a container that is looked into.
_MOST_OBJECTS = 1000
_MOST_ENTRIES = 64


class Drawing:
    """Compares the states of generators at the begin and the end of the first stretches of a program, such as the
    loading of a batch. It draws nothing, and calls nothing of the user's. A look takes some 30 microseconds.

    Attributes:
      drew: whether random numbers were drawn in the last stretch; None: that is not known.
    """

    def __init__(self, *sources: Any, devices: bool = False):
        """
        Args:
          sources: what makes samples, such as a dataset and a function. Generators that they hold are looked at, too.
            Where they hold one and it draws nothing, it may be drawn from later, so that nobody knows.
          devices: the generators of accelerators are looked at, too.
        """
        self.drew: bool | None = None
        self._sources = sources
        self._devices = devices
        self._looks = _LOOKS
        self._own: list[Any] | None = None  # generators of the sources, once they were looked for in this process
        self._before: list[Any] | None = None

    def look_again(self) -> None:
        """The next stretches are looked at as the first ones were."""
        self._looks = _LOOKS

    def begin(self) -> None:
        """A stretch begins."""
        self.drew = self._before = None
        if self._looks > 0:
            self._looks -= 1
            self._before = self._states()

    def end(self) -> None:
        """It ends; a second call changes nothing."""
        if self._before is not None:
            before, self._before = self._before, None
            drew = not same_states(before, self._states())
            self.drew = drew if drew or not self._own else None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """A context in which a stretch runs."""
        self.begin()
        yield
        self.end()

    def _states(self) -> list[Any]:
        if self._own is None:
            self._own = _generators_of(self._sources)
        devices = torch.cuda.get_rng_state_all() if self._devices and torch.cuda.is_initialized() else []
        return [generator_states(), devices, *map(_state_of, self._own)]


def either(one: bool | None, other: bool | None) -> bool | None:
    """Returns whether one of both drew; None: not known."""
    if one or other:
        return True
    return None if one is None or other is None else False


def generator_states() -> list[Any]:
    """Returns the states of the generators that everybody draws from."""
    return [random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()]


def _state_of(generator: Any) -> Any:
    """Returns the state of one of _GENERATORS; None where it does not tell it, as a source of somebody's own may."""
    if isinstance(generator, np.random.Generator):
        try:
            return generator.bit_generator.state
        except Exception:  # pylint: disable=broad-exception-caught  # whatever such a source raises
            return None
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return random.Random.getstate(generator)  # a subclass may have another, which costs more or raises


def same_states(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return all(same_states(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return all(map(same_states, one, other))
    return bool(np.all(one == other)) if isinstance(one, np.ndarray) else one == other


def _generators_of(sources: Any) -> list[Any]:
    """Returns the generators that are found in attributes, or in containers there, however deep."""
    found: list[Any] = []
    seen: set[int] = set()
    ahead = [sources]
    while ahead and len(seen) < _MOST_OBJECTS:
        value = ahead.pop()
        if id(value) in seen or isinstance(value, _OTHERS):
            continue
        seen.add(id(value))
        if isinstance(value, _GENERATORS):
            found.append(value)
        elif isinstance(value, dict):
            ahead += list(value.values())[:_MOST_ENTRIES]
        elif isinstance(value, (list, tuple, set)):
            ahead += list(value)[:_MOST_ENTRIES]
        elif type(value).__dictoffset__ != 0:
            ahead += list(object.__getattribute__(value, "__dict__").values())
    return found
