"""This file has what passes beside the training need: modes, random states, and a model as it was before."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_OF_TORCH = frozenset(vars(nn.Module()))
_TABLES = {name for name, value in vars(nn.Module()).items() if isinstance(value, dict)}
_CONTAINERS = (dict, list, set, collections.deque)
# Longer ones are put back, but not looked into.
_MOST_ENTRIES = 1024

_own_passes = 0  # that are under way, one inside another


_shadow_passes = 0  # that are under way


@contextlib.contextmanager
def shadow_pass() -> Iterator[None]:
    """A pass of a shadow is under way meanwhile."""
    global _shadow_passes  # pylint: disable=global-statement
    _shadow_passes += 1
    try:
        yield
    finally:
        _shadow_passes -= 1


def in_shadow_pass() -> bool:
    """Whether the pass under way is a shadow's."""
    return _shadow_passes > 0


def in_own_pass() -> bool:
    """Whether the pass under way is one of Egeria's, inside restored()."""
    return _own_passes > 0


@contextlib.contextmanager
def plain_evaluation(device: torch.device) -> Iterator[None]:
    """No gradients, no autocast: how probes run a graph of operators."""
    with torch.no_grad(), contextlib.ExitStack() as stack:
        for kind in {"cpu", device.type}:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a training model's own forward, without gradients and autocast. Where a model can have a
    shadow (egeria.model.shadow), that makes the pass instead.

    Afterwards everything is as it was, as restored() says, and so are the modes of all submodules. The fused attention
    kernels of nn.TransformerEncoder, which no graph shows, are off meanwhile.
    """
    with restored(model), plain_evaluation(device_of(model)), without_fused_attention():
        for module in model.modules():
            module.__dict__["training"] = False
        yield


@contextlib.contextmanager
def without_fused_attention() -> Iterator[None]:
    """nn.TransformerEncoder runs no fused kernels meanwhile, which no graph shows."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


@contextlib.contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """A forward pass of a training model on the side, in the modes that it is in.

    Put back, to the bit: all random states (torch's on the CPU and on the model's device, Python's, numpy's), whatever
    submodules assign to their attributes or put into containers there, their hooks, the contents of buffers and
    of other tensors that are attributes, the default dtype. Compiled code is not entered, compiled or
    invalidated.
    """
    containers, tensors = held_by(model)
    containers = [entry for module in model.modules() for entry in _dictionaries_of(module)] + containers
    contents = [(entry, dict(entry) if isinstance(entry, dict) else list(entry)) for entry in containers]
    tensors = [*model.buffers(), *(tensor for tensor in tensors if tensor.grad_fn is None)]
    copies = [(tensor, tensor.detach().clone()) for tensor in tensors]
    default_dtype = torch.get_default_dtype()
    global _own_passes  # pylint: disable=global-statement
    with RandomStates(device_of(model)), uncompiled():
        _own_passes += 1
        try:
            yield
        finally:
            _own_passes -= 1
            torch.set_default_dtype(default_dtype)
            for container, saved in contents:
                _put_back_contents(container, saved)
            with torch.no_grad():
                for tensor, value in copies:
                    if not torch.equal(tensor, value):
                        tensor.copy_(value)


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter is; the CPU for a model without any."""
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _dictionaries_of(module: nn.Module) -> list[dict[str, Any]]:
    """The objects that a module refers to, one level deep, and its hooks: some libraries register them in a first pass,
    and note in an attribute that they have."""
    return [vars(module), *(value for name, value in vars(module).items() if name in _TABLES)]


def _put_back(current: dict[str, Any], saved: dict[str, Any]) -> None:
    if len(current) == len(saved) and all(current.get(name) is value for name, value in saved.items()):
        return
    for name in [name for name in current if name not in saved]:
        del current[name]
    for name, value in saved.items():
        if current.get(name, saved) is not value:
            current[name] = value


def _put_back_contents(current: Any, saved: Any) -> None:
    if isinstance(current, dict):
        _put_back(current, saved)
    elif len(current) != len(saved) or any(one is not other for one, other in zip(current, saved)):
        current.clear()
        (current.update if isinstance(current, set) else current.extend)(saved)


def held_by(model: nn.Module) -> tuple[list[Any], list[Tensor]]:
    """Containers, and tensors that are no parameters, that are attributes of modules or in such a container. Tensors
    that require a gradient are left out, unless a pass has computed them."""
    found: dict[int, Any] = {}
    ahead = [value for module in model.modules() for name, value in vars(module).items() if name not in _OF_TORCH]
    while ahead:
        value = ahead.pop()
        if isinstance(value, types.SimpleNamespace) or (dataclasses.is_dataclass(value) and hasattr(value, "__dict__")):
            value = vars(value)
        if id(value) in found or not isinstance(value, (Tensor, tuple, *_CONTAINERS)):
            continue
        found[id(value)] = value
        if not isinstance(value, Tensor) and len(value) <= _MOST_ENTRIES:
            ahead += value.values() if isinstance(value, dict) else value
    return (
        [value for value in found.values() if isinstance(value, _CONTAINERS)],
        [
            value
            for value in found.values()
            if type(value) is Tensor
            and (value.grad_fn is not None or not value.requires_grad)
            and value.layout is torch.strided
            and not (value.is_quantized or value.is_meta or value.is_inference())
        ],
    )


class RandomStates:
    """The states of every generator that a forward pass may draw from; as a context, puts them back."""

    def __init__(self, device: torch.device):
        module = getattr(torch, device.type, None) if device.type != "cpu" else None
        self._module = module if hasattr(module, "get_rng_state") else None
        self._device = device

    def __enter__(self) -> None:
        self._python = random.getstate()
        numpy = sys.modules.get("numpy.random")
        self._numpy = (numpy, numpy.get_state()) if numpy is not None else None
        self._torch = torch.get_rng_state()
        self._accelerator: Tensor | None = None
        if self._module is not None:
            self._accelerator = self._module.get_rng_state(self._device)

    def __exit__(self, *_: object) -> None:
        random.setstate(self._python)
        if self._numpy is not None:
            self._numpy[0].set_state(self._numpy[1])
        torch.set_rng_state(self._torch)
        if self._accelerator is not None:
            self._module.set_rng_state(self._accelerator, self._device)

    def text(self) -> str:
        """The states of now, to compare."""
        parts: list[Any] = [random.getstate(), torch.get_rng_state().tolist()]
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            kind, keys, *rest = numpy.get_state()
            parts += [kind, keys.tolist(), rest]
        if self._module is not None:
            parts.append(self._module.get_rng_state(self._device).tolist())
        return repr(parts)


def has_compiled(model: nn.Module) -> bool:
    """Whether the model or a part of it is compiled in place, or wrapped by torch.compile inside."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Submodules that the user has compiled run as they are written; no compiled code is touched."""
    compiler = "torch._dynamo" in sys.modules  # without it nothing has been compiled
    return torch.compiler.set_stance("force_eager") if compiler else contextlib.nullcontext()
