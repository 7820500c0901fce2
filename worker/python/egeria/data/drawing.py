"""This file finds out whether samples are made with random numbers, from the states of the generators that everybody
draws from. A sample that draws none most probably comes again as it was."""

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
    """Compares the states before and after the first batches are loaded. It draws nothing, and calls nothing of the
    user's. A look takes some 30 microseconds.

    Attributes:
      drew: whether the batch in the last watching() was made with random numbers; None: that is not known.
    """

    def __init__(self, *sources: Any):
        """
        Args:
          sources: what makes samples, a dataset and a function; where one of them holds a generator of its own, nobody
            sees whether it draws.
        """
        self.drew: bool | None = None
        self._looks = _LOOKS
        self._sees_all = not _holds_generator(sources)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """A context in which a batch is loaded."""
        self.drew = None
        if self._looks == 0:
            yield
            return
        self._looks -= 1
        before = generator_states()
        yield
        drew = not same_states(before, generator_states())
        self.drew = drew if drew or self._sees_all else None


class LoopDrawing:
    """Compares the states when a batch is handed to the loop and when the model is called with it: augmentation of
    whole batches draws in between.

    Attributes:
      drew: whether the loop drew before the newest call that was looked at.
    """

    def __init__(self) -> None:
        self.drew = False
        self._looks = _LOOKS
        self._before: Any = None

    def look_again(self) -> None:
        """An epoch has ended. The first batches of each epoch are looked at."""
        self._looks = _LOOKS

    def delivered(self) -> None:
        """The loop is handed a batch."""
        if self._looks > 0:
            self._looks -= 1
            self._before = _states_with_devices()

    def used(self) -> None:
        """The model is called with it."""
        if self._before is not None:
            before, self._before = self._before, None
            self.drew = not same_states(before, _states_with_devices())


def either(one: bool | None, other: bool | None) -> bool | None:
    """Returns whether one of both drew; None: not known."""
    if one or other:
        return True
    return None if one is None or other is None else False


def generator_states() -> Any:
    """Returns the states of the generators that everybody draws from."""
    return random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()


def _states_with_devices() -> Any:
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ()
    return *generator_states(), *devices


def same_states(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return all(same_states(one[name], other[name]) for name in one)
    if isinstance(one, tuple) and any(isinstance(part, dict) for part in one):
        return all(map(same_states, one, other))
    return bool(np.all(one == other)) if isinstance(one, np.ndarray) else one == other


def _holds_generator(sources: Any) -> bool:
    """Whether a generator of its own is found in an attribute, or in a container there, however deep."""
    seen: set[int] = set()
    ahead = [sources]
    while ahead and len(seen) < _MOST_OBJECTS:
        value = ahead.pop()
        if id(value) in seen or isinstance(value, _OTHERS):
            continue
        seen.add(id(value))
        if isinstance(value, _GENERATORS):
            return True
        if isinstance(value, dict):
            ahead += list(value.values())[:_MOST_ENTRIES]
        elif isinstance(value, (list, tuple, set)):
            ahead += list(value)[:_MOST_ENTRIES]
        elif type(value).__dictoffset__ != 0:
            ahead += list(object.__getattribute__(value, "__dict__").values())
    return False
