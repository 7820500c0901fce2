"""A wish says whether a script wants a parameter that Egeria has frozen to have a gradient.

A frozen parameter has `requires_grad` False already, so that a script that sets it to False for good changes nothing
that could be seen later. While layers are frozen, torch.nn.Parameter therefore notes what it is told, and copies of a
frozen parameter (deepcopy, pickle) are as the script asked. Parameters of other classes (DTensor, under FSDP2) are not
followed: they train again after a thaw.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

import torch
from torch import Tensor, nn

_FLAG = torch._C.TensorBase.requires_grad
_NAMES = ("requires_grad", "requires_grad_", "__deepcopy__", "__reduce_ex__")
_OWN = {name: vars(nn.Parameter).get(name) for name in _NAMES}  # torch's; None: inherited
# Reading the flag to restore it later is a habit of scripts; these packages read it for other reasons.
_READERS = ("torch", "egeria")


class Wish:
    """Notes what the script asks of one frozen parameter.

    Attributes:
      asked: it is to have a gradient.
      doubtful: the script has set it to False after it had read False, and may only have restored what it read, as
        Lightning's toggle_optimizer() does; `asked` is not changed by that.
      hidden: its gradient is off because nothing takes it, and the script reads what it has asked for.
    """

    def __init__(self, asked: bool):
        self.asked = asked
        self.doubtful = self.hidden = False
        self._read = False

    def note_read(self, reader: str) -> None:
        self._read |= reader.partition(".")[0] not in _READERS

    def note_set(self, value: bool) -> None:
        if value or not self._read:
            self.asked, self.doubtful = value, False
        elif self.asked:
            self.doubtful = True


_wishes: dict[int, tuple[weakref.ref[nn.Parameter], Wish]] = {}  # by id of the parameter


def set_gradient(parameter: nn.Parameter, value: bool) -> None:
    """Sets `requires_grad`, which is no wish."""
    Tensor.requires_grad_(parameter, value)


def has_gradient(parameter: nn.Parameter) -> bool:
    return _FLAG.__get__(parameter)


def follow(parameter: nn.Parameter) -> Wish:
    """Begins to note what is asked of a parameter that is about to be frozen, or goes on."""
    if (wish := _wish_of(parameter)) is None:
        wish = Wish(has_gradient(parameter))
        _wishes[id(parameter)] = weakref.ref(parameter), wish
        _install()
    return wish


def forget(parameter: nn.Parameter) -> None:
    """The parameter is frozen no longer."""
    if _wish_of(parameter) is not None:
        del _wishes[id(parameter)]


def hide(parameter: nn.Parameter) -> None:
    """Switches a gradient off, unseen by the script, until show()."""
    follow(parameter).hidden = True
    set_gradient(parameter, False)


def show(parameter: nn.Parameter, is_frozen: bool) -> None:
    """Undoes hide(). `is_frozen`: the parameter belongs to a layer that is frozen meanwhile."""
    if (wish := _wish_of(parameter)) is None or not wish.hidden:
        return
    wish.hidden = False
    if not is_frozen:
        forget(parameter)
        set_gradient(parameter, wish.asked)
        if not _wishes:
            leave()


def leave() -> None:
    """No parameter of this process is frozen: torch is as it was found, but for what is hidden."""
    for key in [key for key, (reference, wish) in _wishes.items() if reference() is None or not wish.hidden]:
        del _wishes[key]
    if _wishes:
        return
    for name, own in _OWN.items():
        if own is not None:
            setattr(nn.Parameter, name, own)
        elif name in vars(nn.Parameter):
            delattr(nn.Parameter, name)


def _wish_of(parameter: nn.Parameter) -> Wish | None:
    reference, wish = _wishes.get(id(parameter), (None, None))
    return wish if reference is not None and reference() is parameter else None


# While parameters are frozen, these stand in nn.Parameter.


def _get(parameter: nn.Parameter) -> bool:
    if (wish := _wish_of(parameter)) is not None:
        reader = sys._getframe(1).f_globals.get("__name__", "")
        if wish.hidden and reader.partition(".")[0] not in _READERS:
            return wish.asked
        wish.note_read(reader)
    return _FLAG.__get__(parameter)


def _set(parameter: nn.Parameter, value: bool) -> None:
    wish = _wish_of(parameter)
    if wish is None or not wish.hidden:
        _FLAG.__set__(parameter, value)
    if wish is not None:
        wish.note_set(bool(value))


@functools.wraps(Tensor.requires_grad_)
def _requires_grad_(parameter: nn.Parameter, requires_grad: bool = True) -> Tensor:
    _set(parameter, requires_grad)
    return parameter


@functools.wraps(nn.Parameter.__deepcopy__)
def _deepcopy(parameter: nn.Parameter, memo: dict[int, Any]) -> nn.Parameter:
    copied = _OWN["__deepcopy__"](parameter, memo)
    if (wish := _wish_of(parameter)) is not None:
        set_gradient(copied, wish.asked)
    return copied


@functools.wraps(nn.Parameter.__reduce_ex__)
def _reduce_ex(parameter: nn.Parameter, protocol: int) -> Any:
    rebuild, (data, flag, *rest) = _OWN["__reduce_ex__"](parameter, protocol)
    wish = _wish_of(parameter)
    return rebuild, (data, flag if wish is None else wish.asked, *rest)


def _install() -> None:
    for name, value in zip(_NAMES, (property(_get, _set), _requires_grad_, _deepcopy, _reduce_ex)):
        if vars(nn.Parameter).get(name) is _OWN[name]:
            setattr(nn.Parameter, name, value)
