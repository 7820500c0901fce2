"""This file records what a forward and backward pass of a model leaves, and compares two of them bit by bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from egeria import _native
from egeria.cache.refused import Refused
from egeria.model.shadow import Shadow


@dataclasses.dataclass
class Pass:
    """Holds what one forward and backward pass has left.

    Attributes:
      structure, results: what the forward pass returned.
      gradients: those of the parameters that require one, in the model's order; None where a parameter has none.
      buffers: copies, in the model's order.
      random: all random states, as text.
    """

    structure: Any
    results: list[Any]
    gradients: list[Tensor | None]
    buffers: list[Tensor]
    random: str

    @classmethod
    def after(cls, shadow: Shadow, value: Any) -> Pass:
        """Runs the backward pass from all that the forward pass has returned, each element with a weight of its
        own, without a trace on the parameters.

        Raises:
          Refused: [NOT_A_TENSOR] there is nothing to run it from.
        """
        model = shadow.model
        leaves, structure = flatten(value)
        results = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not results or not parameters:
            raise Refused(
                "NOT_A_TENSOR", f"the model returns a {type(value).__name__} without a tensor that has a gradient"
            )
        gradients = torch.autograd.grad(
            results, parameters, [_weights(result) for result in results], allow_unused=True
        )
        copies = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        buffers = [buffer.detach().clone() for buffer in model.buffers()]
        return cls(structure, copies, list(gradients), buffers, shadow.random_states())


def compare(usual: Pass, skipping: Pass, model: nn.Module) -> None:
    """Raises Refused: [OUTPUT_DIFFERS], [RANDOM], [GRADIENT_DIFFERS]."""
    if usual.structure != skipping.structure or not all(map(same, usual.results, skipping.results)):
        raise Refused("OUTPUT_DIFFERS", "the model returns something else when its frozen layers are skipped")
    buffers = [name for name, _ in model.named_buffers()]
    for name, before, after in zip(buffers, usual.buffers, skipping.buffers):
        if not same(before, after):
            raise Refused("OUTPUT_DIFFERS", f"buffer '{name}' differs when the frozen layers are skipped")
    if usual.random != skipping.random:
        raise Refused("RANDOM", "other random numbers are drawn when the frozen layers are skipped")
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name, before, after in zip(names, usual.gradients, skipping.gradients):
        if not same(before, after):
            raise Refused("GRADIENT_DIFFERS", f"the gradient of '{name}' differs when the frozen layers are skipped")


def same(mine: Any, theirs: Any) -> bool:
    """Returns whether both are equal to the bit."""
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        return _native.same_bits(mine, theirs)
    return type(mine) is type(theirs) and bool(mine == theirs)


def flatten(value: Any) -> tuple[list[Any], Any]:
    """Returns the leaves of what a model returns, and how they are nested; like pytree's, but through data classes too.

    Raises:
      Refused: [NOT_A_TENSOR] there is an object in it that cannot be looked into.
    """
    leaves, structure = pytree.tree_flatten(value)
    found: list[Any] = []
    structures = [structure]
    for leaf in leaves:
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            fields = {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)}
            inner, inner_structure = flatten(fields)
            found += inner
            structures += [type(leaf), inner_structure]
        elif leaf is None or isinstance(leaf, (Tensor, bool, int, float, str)):
            found.append(leaf)
        else:
            raise Refused("NOT_A_TENSOR", f"the model returns a {type(leaf).__name__}")
    return found, structures


def _weights(result: Tensor) -> Tensor:
    """Numbers that look random, and are drawn from no generator."""
    weights = torch.arange(1, result.numel() + 1, dtype=torch.float64).mul_(2.399963).sin_().mul_(1.5)
    return weights.view(result.shape).to(device=result.device, dtype=result.dtype)
