"""This file computes what is compared of activations, and measures plasticity where the controller cannot."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from egeria.freeze.replicas import is_fully_sharded
from egeria.model.inputs import GraphError, RootInputs
from egeria.model.isolation import undisturbed
from egeria.model.modules import LayerModule, has_parameters
from egeria.reference.recording import tensor_named

# Far under what a module's activations give, so that scale invariance holds for small ones too.
_SMALLEST_NORM = 1e-30


def gram(output: Tensor) -> Tensor:
    """A A^T in float32 (b x b) of an activation A of any shape b x ...: one row per sample."""
    rows = output.detach().reshape(output.size(0), -1).to(torch.float32)
    return torch.mm(rows, rows.t())


def sp_loss(training: Tensor, reference: Tensor) -> float:
    """Similarity-preserving loss of two Gram matrices (b x b), in double: plasticity as the controller computes
    it.

    1/b^2 times the squared Frobenius norm of their difference, after each row is divided by its L2 norm; 0..4/b.

    Raises:
      ValueError: a matrix is not square or not finite, b is under 2, or the two differ in shape.
    """
    if training.shape != reference.shape or training.dim() != 2 or training.size(0) != training.size(1):
        raise ValueError(f"Gram matrices of {list(training.shape)} and {list(reference.shape)}")
    if training.size(0) < 2 or not bool(torch.isfinite(training).all() and torch.isfinite(reference).all()):
        raise ValueError("a Gram matrix has under two rows, or an element that is infinite or not a number")
    rows = [matrix.detach().to("cpu", torch.float64) for matrix in (training, reference)]
    normalised = [matrix / matrix.norm(dim=1, keepdim=True).clamp_min(_SMALLEST_NORM) for matrix in rows]
    return float((normalised[0] - normalised[1]).square().mean())


def compared(output: Tensor, metric: str) -> Tensor:
    """What a metric compares of an activation of shape b x ..., in float32: the Gram matrix ("sp", b x b), or the
    activation itself ("norm", b x d)."""
    return gram(output) if metric == "sp" else output.detach().reshape(output.size(0), -1).to(torch.float32)


def distance(training: Tensor, reference: Tensor, metric: str) -> float:
    """How far what compared() gave of two models is apart: sp_loss(), or ||A - R|| / ||R|| in double.

    Raises:
      ValueError: as sp_loss().
    """
    if metric == "sp":
        return sp_loss(training, reference)
    ours, theirs = (rows.to("cpu", torch.float64) for rows in (training, reference))
    if ours.shape != theirs.shape or not bool(torch.isfinite(ours).all() and torch.isfinite(theirs).all()):
        raise ValueError("outputs that differ in shape, or have an element that is infinite or not a number")
    return float((ours - theirs).norm() / theirs.norm().clamp_min(_SMALLEST_NORM))


def record_calls(model: nn.Module, inputs: RootInputs) -> list[nn.Module]:
    """The submodules that a forward pass calls, in order, one entry per call. The model is left undisturbed."""
    inside = set(model.modules())
    calls: list[nn.Module] = []

    def note(module: nn.Module, _: Any) -> None:
        if module in inside:
            calls.append(module)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        with undisturbed(model):
            inputs.call(model)
            _reshard(model)
    finally:
        handle.remove()
    return calls


class LocalReference:
    """The reference run by the training process: for models that have no graph.

    Keeps a copy of one layer module's weights, taken when the controller asks for a snapshot. A reading runs the
    user's own forward twice on the same samples, with the weights of now and with the copy, and compares the layer
    module's output. Both runs stop behind the layer module (not where parameters are sharded).

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
          dtype: of the copy's floating-point parameters; None: their own. Buffers keep theirs.
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
        for name, parameter in module.parameters():
            local = _local(parameter).detach()
            narrow = self._dtype if parameter.is_floating_point() and self._dtype is not None else local.dtype
            self._copy[name] = local.to(narrow, copy=True)
        for name, buffer in module.buffers():
            self._copy[name] = _local(buffer).detach().clone()

    def has(self, index: int) -> bool:
        """Whether there is a copy of this layer module's weights."""
        return self._index == index

    def reading(self, index: int, inputs: RootInputs, metric: str = "sp") -> float:
        """Plasticity of layer module `index` on these inputs of the model, in a metric of compared().

        Raises:
          GraphError: its output is not known or has no batch dimension.
        """
        if not self.has(index):
            raise GraphError("there is no copy of its weights yet")
        now = compared(self._output(index, inputs), metric)
        with self._copied_weights():
            then = compared(self._output(index, inputs), metric)
        return distance(now, then, metric)

    def _output(self, index: int, inputs: RootInputs) -> Tensor:
        unit = self._last_unit[index]
        if unit is None:
            raise GraphError("none of its layers is called in evaluation mode")
        outputs: list[Tensor] = []

        def keep(_: nn.Module, __: Any, output: Any) -> None:
            outputs.append(_first_activation(output, inputs.samples))
            if not self._sharded and len(outputs) == self._calls[unit]:
                raise _Enough

        handle = unit.register_forward_hook(keep)
        try:
            with undisturbed(self._model):
                with contextlib.suppress(_Enough):
                    inputs.call(self._model)
                _reshard(self._model)
        finally:
            handle.remove()
        if not outputs:
            raise GraphError("its last layer was not called")
        return outputs[-1]

    @contextlib.contextmanager
    def _copied_weights(self) -> Iterator[None]:
        """The copy's values in the model's own tensors, for a moment: whoever holds them, sees them."""
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
    """The layer module's unit with weights whose call begins last."""
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
    """Under FSDP2 a root keeps what it has gathered after a forward pass; the next one must gather anew."""
    for module in model.modules():
        if is_fully_sharded(module):
            module.reshard()
