"""These stand in for the package egeria where a script is to run without it: plainly, or frozen by hand.

A script finds them under the package's name. By hand, they do what a careful person writes: gradients off,
the layers in evaluation mode, and nothing else of the script changed.
"""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

# A freeze is the step after which it comes, the names of parameters, and those of submodules.
Freeze = tuple[int, list[str], list[str]]


class Session:
    """Stands in for a session. It freezes at the given steps, and never where there are none."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Any], freezes: Sequence[Freeze]):
        self._model = model
        self._freezes = freezes
        self._steps = 0
        self._parameters: list[nn.Parameter] = []
        self._is_replicated = any(isinstance(inner, nn.parallel.DistributedDataParallel) for inner in model.modules())
        if self._is_replicated:
            for optimizer in optimizers:
                inner = getattr(optimizer, "optimizer", optimizer)  # accelerate's has torch's inside
                inner.register_step_pre_hook(lambda *_: self._drop_gradients())

    def step(self, loss: Any = None) -> None:
        self._steps += 1
        self._freeze([freeze for freeze in self._freezes if freeze[0] == self._steps])

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state["step"]
        self._freeze([freeze for freeze in self._freezes if freeze[0] <= self._steps][-1:])

    def progress(self) -> str:
        return ""

    def close(self, finished: bool = True) -> None:
        pass

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _freeze(self, freezes: Iterable[Freeze]) -> None:
        for _, names, layers in freezes:
            torch.backends.mha.set_fastpath_enabled(False)  # it hands nested tensors to layers that train
            root = _root_of(self._model, names)
            parameters = dict(root.named_parameters(remove_duplicate=False))
            self._parameters = [parameters[name] for name in names]
            for parameter in self._parameters:
                # The reducer of DistributedDataParallel waits for each gradient that it knows of.
                parameter.requires_grad_(self._is_replicated)
                parameter.grad = None
            for name in layers:
                layer = root.get_submodule(name)
                layer.training = False
                layer.train = types.MethodType(_stay, layer)

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


def _stay(layer: nn.Module, mode: bool = True) -> nn.Module:
    """Takes the place of train(): the layer and what is inside stay in evaluation mode."""
    return layer


def _root_of(model: nn.Module, names: Iterable[str]) -> nn.Module:
    """The module that has parameters of all these names: the model without its wrappers."""
    wanted = set(names)
    return next(
        module
        for module in model.modules()
        if wanted <= {name for name, _ in module.named_parameters(remove_duplicate=False)}
    )


def _thaw(copied: Any) -> Any:
    """A copy of a frozen model is there to be trained as a whole, or to be looked at."""
    for layer in copied.modules() if isinstance(copied, nn.Module) else ():
        if vars(layer).pop("train", None) is not None:
            layer.train(copied.training)
            layer.requires_grad_(True)
    return copied


def install(freezes: Sequence[Sequence[Freeze]]) -> None:
    """Puts the stand-ins where a script imports egeria from. `freezes` are those of each session, in the order in which
    the script makes them."""
    ahead = list(freezes)

    def attach(model: nn.Module, optimizer: Any, **_: Any) -> Session:
        optimizers = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
        return Session(model, optimizers, ahead.pop(0) if ahead else [])

    def huggingface(name: str) -> Any:
        if name != "EgeriaCallback":
            raise AttributeError(name)
        return _huggingface_callback(attach)

    def lightning(name: str) -> Any:
        if name != "EgeriaCallback":
            raise AttributeError(name)
        return _lightning_callback(attach)

    deepcopy = copy.deepcopy
    copy.deepcopy = lambda thing, memo=None: _thaw(deepcopy(thing)) if memo is None else deepcopy(thing, memo)
    _module("egeria", attach=attach, __path__=[])
    _module("egeria.integrations", __path__=[])
    _module("egeria.integrations.huggingface", __getattr__=huggingface)
    _module("egeria.integrations.lightning", __getattr__=lightning)


def _module(name: str, **contents: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


def _huggingface_callback(attach: Any) -> type:
    from transformers import TrainerCallback

    class EgeriaCallback(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            self.session = attach(model, ())

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.session.step()

    return EgeriaCallback


def _lightning_callback(attach: Any) -> type:
    from lightning.pytorch import Callback

    class EgeriaCallback(Callback):
        def __init__(self, network: str | None = None):
            self.steps = 0

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.session = attach(pl_module, ())

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step > self.steps:
                self.steps = trainer.global_step
                self.session.step()

    return EgeriaCallback
