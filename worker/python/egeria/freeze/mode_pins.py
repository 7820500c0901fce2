"""Pins hold frozen submodules in evaluation mode, whatever train() is called meanwhile.

Batch normalisation in eval mode neither uses nor updates batch statistics, and dropout is off: a frozen layer
computes the same function at every step.

Outside of training, modes are as the script asks. While the rest of the model is in eval mode, they all are (dropout
that samples at inference). In a pass without gradients they are where a layer has no buffers, or has statistics that
the script makes anew (update_bn): it has set them to zero, or their momentum to None.

Code of ours that needs eval mode for a moment (a probe, an export) must set and restore the `training` attributes
directly, inside egeria.model.isolation: train() and eval() are taken as what the user asks for.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from egeria.model.isolation import in_own_pass
from egeria.model.pass_hooks import Hooked, Inert, is_capturing
from egeria.model.plain_copies import Ours, copies_may_differ, keep_copies_plain

# Kinds whose children are often called one by one, past the forward of the list.
_LISTS = {nn.Sequential, nn.ModuleList, nn.ModuleDict}
# The forward of these kinds does not look at the mode: no hook is spent on them. Exact types, since a subclass may.
_LAYERS = {nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.LayerNorm, nn.GroupNorm}
_ACTIVATIONS = {nn.Identity, nn.Flatten, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid}
_POOLINGS = {nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d}
_MODELESS = _LISTS | _LAYERS | _ACTIVATIONS | _POOLINGS


class _Pin(Ours):
    """One submodule held in eval mode; stands in for its `train` method and remembers what was asked for.

    Refers to its submodule only. Copies of the submodule, by deepcopy or pickle, get the method of the class: they
    are not pinned, and a pickle does not mention this package.
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self.pinned = False
        self.asked = module.training  # the mode it would be in
        self.asked_before = module.training  # the one before that
        self._shown = False  # the mode that we have put it into
        self._own_train: Callable[..., Any] | None = None  # set on the instance by somebody else
        self._has_statistics = False
        self._momentum: float | None = None  # the momentum of its statistics when it was pinned
        self._mean: tuple[int, int] | None = None  # the running mean that was looked at: which tensor, which version
        self._is_remade = False  # the script makes the statistics anew

    def pin(self) -> None:
        """Puts the submodule into eval mode and keeps it there."""
        self.asked = self.asked_before = self.module.training
        keep_copies_plain(self.module)
        self._has_statistics = self.module._buffers.get("running_mean") is not None
        self._momentum = getattr(self.module, "momentum", None)
        self._is_remade = False
        self._cover()
        self.pinned = True

    def unpin(self, mode: bool) -> None:
        self.pinned = False
        self._uncover(mode)
        copies_may_differ(self.module)

    def replaced(self) -> Any:
        return self._own_train

    def begin_pass(self, model_trains: bool, gradients: bool) -> None:
        """Sets the mode for a forward pass. An assignment to `training` is what the user asks for."""
        if self.module.training != self._shown:
            self.asked = self.module.training
            self.asked_before |= self.asked
        follows = not model_trains or (not gradients and not self.module._buffers)
        self._show(self.asked and (follows or (self._has_statistics and self._makes_statistics(gradients))))

    def hold(self) -> None:
        """Undoes an assignment to `training`, and remembers it."""
        if self.module.training:
            self.asked = self.asked_before = True
            self._show(False)

    def _show(self, mode: bool) -> None:
        self._shown = mode
        if self.module.training != mode:
            self.module.training = mode

    def _makes_statistics(self, gradients: bool) -> bool:
        mean = self.module._buffers.get("running_mean")
        if mean is None:
            return False
        if self.module.momentum is None and self._momentum is not None:
            self._is_remade = True
        elif gradients:
            self._is_remade = False
        elif not self._is_remade and not is_capturing() and (seen := (id(mean), mean._version)) != self._mean:
            self._mean = seen
            self._is_remade = not bool(mean.any())
        return self._is_remade

    def __call__(self, mode: bool = True) -> nn.Module:
        """train(mode): runs the submodule's own as if nothing were pinned, and notes the modes that it leaves."""
        family = [pin for inner in self.module.modules() if (pin := _pin_of(inner)) is not None]
        for pin in family:
            pin._uncover(pin.asked)
        try:
            return self.module.train(mode)
        finally:
            told = any(pin.asked or pin.module.training for pin in family)
            for pin in family:
                if told:  # the second of two eval() in a row says nothing new
                    pin.asked_before = pin.asked
                pin.asked = pin.module.training
                pin._cover()

    def _cover(self) -> None:
        self._own_train = self.module.__dict__.get("train")
        self._shown = self.module.training = False
        self.module.__dict__["train"] = self

    def _uncover(self, mode: bool) -> None:
        del self.module.__dict__["train"]
        if self._own_train is not None:
            self.module.__dict__["train"] = self._own_train
        self.module.training = mode

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = copy.deepcopy(self.module, memo)  # mostly the copy that is being made
        if self._own_train is not None:
            return copy.deepcopy(self._own_train, memo)
        return types.MethodType(type(copied).train, copied)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._own_train is not None:
            return functools.partial, (self._own_train,)
        return getattr, (self.module, "train")  # the copy has no __dict__ yet, so this is the class's method


def _pin_of(module: nn.Module) -> _Pin | None:
    found = module.__dict__.get("train")
    return found if isinstance(found, _Pin) and found.module is module else None


class _HoldHook(Inert):
    """Forward pre-hook of a frozen layer that sets the modes of its submodules again.

    It sees what train() does not: assignments to `training`, unbound calls of nn.Module.train, and passes outside of
    training. Compiled code skips it.
    """

    def __init__(self, pins: list[_Pin], passes: _Passes):
        self._pins = pins
        self._passes = passes

    def __call__(self, module: nn.Module, arguments: Any) -> None:
        if not torch.compiler.is_compiling():
            self._passes.begin(self._pins)


class _Passes:
    """Tells passes of training from others.

    Attributes:
      judges: layers that never freeze, and tell whether the model is in training mode.
      of_training: a training pass of the model is under way. Parts of it may run without gradients: checkpoints, and
        other functions of autograd that call layers.
    """

    def __init__(self) -> None:
        self.judges: list[nn.Module] = []
        self.of_training = False

    def begin(self, pins: Iterable[_Pin]) -> None:
        """A pass begins through the layers that these pins hold."""
        pinned = [pin for pin in pins if pin.pinned]
        if in_own_pass():
            for pin in pinned:
                pin.hold()
            return
        gradients = self.of_training or torch.is_grad_enabled()
        for pin in pinned:
            pin.begin_pass(self.of_training or self.model_trains, gradients)

    @property
    def model_trains(self) -> bool:
        return any(judge.training for judge in self.judges)


class ModePins:
    """The submodules of a model that are held in eval mode. Owned by the training thread."""

    def __init__(self) -> None:
        # Made once per submodule and kept, so that compiled code finds the same objects when it freezes again.
        self._pins: dict[nn.Module, _Pin] = {}
        self._hooks: dict[nn.Module, _HoldHook] = {}
        self._handles: list[Hooked] = []
        self._passes = _Passes()

    def set(
        self,
        units: Iterable[nn.Module],
        active: Iterable[nn.Module],
        judges: Iterable[nn.Module],
        others: Iterable[nn.Module] = (),
    ) -> None:
        """Holds all submodules of `units` in eval mode that are no submodules of `active` too, those of `others`
        wherever they are, and no more.

        Those that are let go come into the mode that was asked for meanwhile. A model can be put back from eval()
        behind our back, by assignments to `training` (some trainers do so after validation): where all frozen
        submodules were last told eval() but the model trains, that eval() is not taken for a wish.

        Args:
          units: layers that are frozen.
          active: layers that are not.
          judges: layers that never freeze, and tell whether the model is in training mode.
          others: modules that do not train, in whichever layers they are.
        """
        units = list(units)
        self._passes.judges[:] = judges
        shared = {inner for unit in active for inner in unit.modules()}
        wanted = {inner: None for unit in units for inner in unit.modules() if inner not in shared}
        others = list(others)
        wanted |= {inner: None for module in others for inner in module.modules()}
        held = [pin for pin in self._pins.values() if pin.pinned]
        undone = self._passes.model_trains and not any(pin.asked for pin in held)
        for pin in held:
            if pin.module not in wanted:
                pin.unpin(pin.asked_before if undone else pin.asked)
        for module in wanted:
            if not (pin := self._pin(module)).pinned:
                pin.pin()
        for handle in self._handles:
            handle.remove()
        self._handles = [
            Hooked(entry, entry.register_forward_pre_hook(self._hook(entry)))
            for unit in (*units, *others)
            for entry in _entries(unit)
        ]

    def begin_pass(self, of_training: bool) -> None:
        """A forward pass of the model begins: sets the modes again, in case they were assigned to."""
        self._passes.of_training = of_training
        self._passes.begin(self._pins.values())

    def end_pass(self) -> None:
        """A forward pass of the model has ended."""
        self._passes.of_training = False

    def _pin(self, module: nn.Module) -> _Pin:
        return self._pins.setdefault(module, _Pin(module))

    def _hook(self, entry: nn.Module) -> _HoldHook:
        if entry not in self._hooks:
            self._hooks[entry] = _HoldHook([self._pin(inner) for inner in entry.modules()], self._passes)
        return self._hooks[entry]


def _entries(unit: nn.Module) -> list[nn.Module]:
    """The submodules through whose forward a layer is entered, as far as a mode matters below them."""
    if type(unit) in _LISTS:
        return [entry for child in unit.children() for entry in _entries(child)]
    return [unit] if any(type(inner) not in _MODELESS for inner in unit.modules()) else []
