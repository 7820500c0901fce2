"""This file changes settings of torch as a whole while some model of the process has frozen layers."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import nn

from egeria.freeze import reentrant_checkpoints


class FrozenModel:
    """A model of this process that may have frozen layers. Owned by the training thread.

    While one has, reentrant checkpoints carry gradients past frozen layers (egeria.freeze.reentrant_checkpoints), and
    torch's fast path for attention is off: where the first layer of an nn.TransformerEncoder is frozen, it would hand
    nested tensors to the active ones, which do not take them.
    """

    def __init__(self) -> None:
        self.parameters: frozenset[int] = frozenset()  # id of each, frozen or not
        weakref.finalize(self, _restore).atexit = False  # it may go while layers are frozen

    def set(self, parameters: Iterable[nn.Parameter], frozen: bool) -> None:
        """To be called after each switch, with all parameters of the model and whether some of them are frozen."""
        self.parameters = frozenset(id(parameter) for parameter in parameters)
        (_frozen.add if frozen else _frozen.discard)(self)
        if frozen:
            reentrant_checkpoints.carry_gradients(_is_ours)
            _found.setdefault("fastpath", torch.backends.mha.get_fastpath_enabled())
            torch.backends.mha.set_fastpath_enabled(False)
        else:
            _restore()


_frozen: weakref.WeakSet[FrozenModel] = weakref.WeakSet()
_found: dict[str, bool] = {}  # settings as they were before; empty where nothing was changed


def _restore() -> None:
    if _found and not list(_frozen):
        reentrant_checkpoints.leave_alone()
        torch.backends.mha.set_fastpath_enabled(_found.pop("fastpath"))


def _is_ours(parameter: nn.Parameter) -> bool:
    return any(id(parameter) in model.parameters for model in _frozen)
