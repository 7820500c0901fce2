"""This file measures plasticity where the controller cannot."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from egeria._native import compared, distance
from egeria.freeze.replicas import is_fully_sharded
from egeria.model.inputs import GraphError, RootInputs
from egeria.model.isolation import undisturbed
from egeria.model.modules import LayerModule, has_parameters
from egeria.model.parameter_uses import PassUses, Uses
from egeria.model.shadow import Shadow
from egeria.reference.recording import tensor_named


def record_calls(model: nn.Module, inputs: RootInputs) -> list[nn.Module]:
    """Returns the submodules that a forward pass in evaluation mode calls, in order, one entry per call; see
    record_pass()."""
    return record_pass(model, inputs, ())[0]


def record_pass(model: nn.Module, inputs: RootInputs, modules: Sequence[LayerModule]) -> tuple[list[nn.Module], Uses]:
    """Returns the submodules that a forward pass in evaluation mode calls, in order, one entry per call, and where
    `modules` use parameters. A shadow of the model makes it; under FSDP2, where only the model itself can, that is left
    undisturbed, and uses are not known.

    Raises:
      NoShadow: the model has none.
      Exception: what the model raises.
    """
    calls: list[nn.Module] = []
    with _evaluated(model, inputs) as (twin, original_of):
        copy_of = {original: copied for copied, original in original_of.items()}
        uses = PassUses(twin, [copy_of[unit] for module in modules for unit in module.units])

        def enter(module: nn.Module, _: Any) -> None:
            if module in original_of:
                calls.append(original_of[module])
            uses.enter(module)

        everywhere = torch.nn.modules.module
        handles = [
            everywhere.register_module_forward_pre_hook(enter),
            everywhere.register_module_forward_hook(lambda module, *_: uses.leave(module)),
        ]
        try:
            with torch.set_grad_enabled(twin is not model and bool(modules)):  # the uses are read from autograd's graph
                found = uses.read(inputs.call(twin))
            _reshard(twin)
        finally:
            for handle in handles:
                handle.remove()
    return calls, {name: frozenset(original_of[unit] for unit in units) for name, units in found.items()}


@contextlib.contextmanager
def _evaluated(model: nn.Module, inputs: RootInputs) -> Iterator[tuple[nn.Module, dict[nn.Module, nn.Module]]]:
    """Whatever makes passes of the model in evaluation mode, and whose copies its modules are."""
    if any(is_fully_sharded(module) for module in model.modules()):
        with undisturbed(model):
            yield model, {module: module for module in model.modules()}
        return
    shadow = Shadow(model)
    with shadow.evaluated(inputs.tensors()) as twin:
        yield twin, {shadow.of(module): module for module in model.modules()}


class LocalReference:
    """Runs the reference in the training process, for models that have no graph.

    It keeps a copy of one layer module's weights, taken when the controller asks for a snapshot. A reading runs
    shadows of the model on the same samples, with the weights of now and with the copy, and compares the layer module's
    output. Both runs stop behind the layer module (not where parameters are sharded).

    Owned by the training thread. Under FSDP2 reading() is a collective.
    """

    def __init__(
        self,
        model: nn.Module,
        modules: Sequence[LayerModule],
        calls: Sequence[nn.Module],
        dtype: torch.dtype | None = torch.bfloat16,
    ):
        """
        Args:
          calls: what record_calls() gave.
          dtype: the type of the copy's floating-point parameters; None: their own. Buffers keep theirs.
        """
        self._model = model
        self._modules = modules
        self._dtype = dtype
        self._sharded = any(is_fully_sharded(module) for module in model.modules())
        self._last_unit = [_last_called(module, calls) for module in modules]
        self._calls = {unit: sum(call is unit for call in calls) for unit in self._last_unit if unit is not None}
        self._index: int | None = None
        self._copy: dict[str, Tensor] = {}

    def take(self, index: int) -> None:
        """Copies the weights of layer module `index`; the copy of another one is dropped."""
        module = self._modules[index]
        self._index = index
        self._copy = {}
        for name, tensor in module.tensors():
            local = _local(tensor).detach()
            narrows = isinstance(tensor, nn.Parameter) and tensor.is_floating_point() and self._dtype is not None
            self._copy[name] = local.to(self._dtype if narrows else local.dtype, copy=True)

    def has(self, index: int) -> bool:
        """Returns whether there is a copy of this layer module's weights."""
        return self._index == index

    def reading(self, index: int, inputs: RootInputs, metric: str = "sp") -> float:
        """Measures the plasticity of layer module `index` on these inputs of the model, in a metric of compared().

        Raises:
          GraphError: its output is not known or has no batch dimension.
          NoShadow: the model has none any more.
        """
        if not self.has(index):
            raise GraphError("there is no copy of its weights yet")
        now, then = (self.compared(index, inputs, metric, copied) for copied in (False, True))
        return distance(now, then, metric)

    def compared(self, index: int, inputs: RootInputs, metric: str, copied: bool) -> Tensor:
        """Returns what a metric compares of the layer module's output, with the weights of now or the copied ones."""
        unit = self._last_unit[index]
        if unit is None:
            raise GraphError("none of its layers is called in evaluation mode")
        outputs: list[Tensor] = []

        def keep(_: nn.Module, __: Any, output: Any) -> None:
            outputs.append(_first_activation(output, inputs.samples))
            if not self._sharded and len(outputs) == self._calls[unit]:
                raise _Enough

        with _evaluated(self._model, inputs) as (twin, original_of):
            place = next(copy for copy, original in original_of.items() if original is unit)
            handle = place.register_forward_hook(keep)
            try:
                with self._copied_weights(twin) if copied else contextlib.nullcontext():
                    with contextlib.suppress(_Enough):
                        inputs.call(twin)
                    _reshard(twin)
            finally:
                handle.remove()
        if not outputs:
            raise GraphError("its last layer was not called")
        return compared(outputs[-1], metric)

    @contextlib.contextmanager
    def _copied_weights(self, twin: nn.Module) -> Iterator[None]:
        """Gives a shadow the copy's weights. Under FSDP2 the copy's values are in the model's own tensors for a
        moment."""
        if twin is not self._model:
            for name, value in self._copy.items():
                tensor = tensor_named(twin, name)
                if isinstance(tensor, nn.Parameter):  # its memory is the model's
                    tensor.data = value.to(tensor.dtype, copy=True)
                else:
                    tensor.copy_(value)
            yield
            return
        targets = {name: _local(tensor_named(self._model, name)).detach() for name in self._copy}
        saved = {name: tensor.clone() for name, tensor in targets.items()}
        try:
            with torch.no_grad():
                for name, tensor in targets.items():
                    tensor.copy_(self._copy[name])
            yield
        finally:
            with torch.no_grad():
                for name, tensor in targets.items():
                    tensor.copy_(saved[name])


class _Enough(BaseException):
    """Ends a forward pass that has given what was wanted; no user's `except Exception` catches it."""


def _last_called(module: LayerModule, calls: Sequence[nn.Module]) -> nn.Module | None:
    """Returns the layer module's unit with weights whose call begins last."""
    position = {id(call): index for index, call in enumerate(calls)}
    called = [unit for unit in module.units if has_parameters(unit) and id(unit) in position]
    return max(called, key=lambda unit: position[id(unit)], default=None)


def _first_activation(value: Any, samples: int) -> Tensor:
    for leaf in torch.utils._pytree.tree_leaves(value):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim() >= 2 and leaf.size(0) == samples:
            return leaf
    raise GraphError(f"its output has no tensor with the {samples} samples as its first dimension")


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _reshard(model: nn.Module) -> None:
    """Lets the next forward pass gather anew: under FSDP2 a root keeps what it has gathered."""
    for module in model.modules():
        if is_fully_sharded(module):
            module.reshard()
