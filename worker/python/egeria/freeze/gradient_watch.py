"""A GradientWatch sees who reads the gradients of parameters that no optimizer holds, and optimizers that take them.

While there is one, torch.nn.Parameter notes who reads `grad`, and torch.optim.Optimizer who gets parameters.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from egeria.model.gradient_readers import makes_optimizers_between, place_of, user_frame

_GRAD = torch._C.TensorBase.grad
_ADD = Optimizer.add_param_group
# These read gradients to clear them, or to move them to another device.
_OPTIMIZER_CLEARS = inspect.unwrap(Optimizer.zero_grad).__code__
_MODULE = nn.Module.zero_grad.__code__.co_filename

_Place = tuple[types.CodeType, int]  # code, and the instruction in it


class GradientWatch:
    """Owned by the training thread.

    Attributes:
      reader: who has read a gradient of one of the parameters; None: nobody.
      are_cleared: the model has cleared the gradients of the parameters.
      cleared_at: where an optimizer clears its own, and whether a pass had begun since the step before; None: not seen.
      begun: a training pass has begun since the last step.
      counts_absent: a gradient that is not there counts as read, too.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], optimizers: Iterable[Optimizer], taken: Callable[[set[int]], None]
    ):
        """`taken` is called with the ids of parameters that an optimizer gets, whether they are watched or not."""
        self.reader: str | None = None
        self.are_cleared = False
        self.cleared_at: tuple[_Place | None, bool] | None = None
        self.begun = self.counts_absent = False
        self._taken = taken
        self._watched = {id(parameter): weakref.ref(parameter) for parameter in parameters}
        firsts = [group["params"][0] for optimizer in optimizers for group in optimizer.param_groups if group["params"]]
        self._held = {id(parameter): weakref.ref(parameter) for parameter in firsts}
        _watches.add(self)
        nn.Parameter.grad = property(_get, _set, _delete)
        Optimizer.add_param_group = _add_param_group

    def close(self) -> None:
        _watches.discard(self)
        if not _watches:
            if "grad" in vars(nn.Parameter):
                del nn.Parameter.grad
            if Optimizer.add_param_group is _add_param_group:
                Optimizer.add_param_group = _ADD

    def clears_first(self, step: types.FrameType | None) -> bool:
        """Whether the training clears gradients before it makes new ones, rather than behind a step, which is made in
        the frame `step`."""
        if self.cleared_at is None:
            return False
        place, begun = self.cleared_at
        if place is None or step is None or place[0] is not step.f_code:
            return begun
        return place[1] < step.f_lasti and not makes_optimizers_between(place[0], place[1], step.f_lasti)

    def forget(self, parameters: set[int]) -> None:
        """These are in an optimizer."""
        for parameter in parameters:
            self._watched.pop(parameter, None)

    def note_read(self, parameter: nn.Parameter, frame: types.FrameType) -> None:
        code = frame.f_code
        if code is _OPTIMIZER_CLEARS:
            if _is_one_of(parameter, self._held):
                caller = user_frame(frame)
                self.cleared_at = (caller.f_code, caller.f_lasti) if caller is not None else None, self.begun
            return
        if not _is_one_of(parameter, self._watched) or frame.f_globals.get("__name__", "").startswith("egeria."):
            return
        if code.co_filename == _MODULE:
            self.are_cleared |= code.co_name == "zero_grad"
        elif self.reader is None and (self.counts_absent or _GRAD.__get__(parameter) is not None):
            self.reader = _who_reads(frame)

    def note_group(self, parameters: set[int]) -> None:
        self._taken(parameters)


def _who_reads(frame: types.FrameType) -> str:
    """For people: a line of the user's, or a library and the line that has called it."""
    caller = user_frame(frame)
    if caller is frame:
        return place_of(frame)
    library = frame.f_globals.get("__name__", "a library")
    return library if caller is None else f"{library}, called at {place_of(caller)},"


_watches: weakref.WeakSet[GradientWatch] = weakref.WeakSet()


def _is_one_of(parameter: nn.Parameter, references: dict[int, weakref.ref[nn.Parameter]]) -> bool:
    reference = references.get(id(parameter))
    return reference is not None and reference() is parameter


def _get(parameter: nn.Parameter) -> Any:
    for watch in tuple(_watches):
        watch.note_read(parameter, sys._getframe(1))
    return _GRAD.__get__(parameter)


def _set(parameter: nn.Parameter, value: Any) -> None:
    _GRAD.__set__(parameter, value)


def _delete(parameter: nn.Parameter) -> None:
    _GRAD.__delete__(parameter)


@functools.wraps(_ADD)
def _add_param_group(optimizer: Optimizer, param_group: dict[str, Any]) -> None:
    _ADD(optimizer, param_group)
    parameters = {id(parameter) for parameter in optimizer.param_groups[-1]["params"]}
    for watch in tuple(_watches):
        watch.note_group(parameters)
