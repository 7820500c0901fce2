"""This file measures what a rounded form of activations does to a model, on one real batch, before it is used."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch.utils._pytree as pytree
from torch import Tensor, nn

from egeria.cache.forward_patches import ForwardPatches
from egeria.cache.model_call import Call
from egeria.cache.prefix_cut import Cut, shadow_of, side_pass


@dataclasses.dataclass
class RoundingEffect:
    """Says how far rounding moves what crosses the cut, and what the model makes of it.

    Attributes:
      activations: the root mean square of the differences over that of the values.
      results: the same for the floating-point tensors that the model returns.
      loss: the model's own loss, where it returns a number; None elsewhere.
      loss_change: what rounding adds to it.
    """

    activations: float
    results: float
    loss: float | None = None
    loss_change: float | None = None

    def __str__(self) -> str:
        text = f"by {self.activations:.1e} of their root mean square, and the model's results by {self.results:.1e}"
        if self.loss is not None:
            text += f"; its loss is {self.loss:.6g}, and {self.loss_change:+.1e} with that"
        return text


def measure(
    model: nn.Module,
    cut: Cut,
    call: Call,
    crossing: Sequence[Tensor],
    as_kept: Callable[[Sequence[Tensor]], Sequence[Tensor]],
) -> RoundingEffect:
    """Runs two shadows of the model behind the cut, with what crosses it and with what is kept of that. Both draw the
    same random numbers.

    Args:
      crossing: what crosses the cut in this call.
      as_kept: rounds it, a row for each sample.

    Raises:
      Exception: what the model raises.
    """
    rounded = as_kept(crossing)
    exact_results, rounded_results = (_results(model, cut, call, tensors) for tensors in (crossing, rounded))
    effect = RoundingEffect(_difference(crossing, rounded), _difference(exact_results, rounded_results))
    for exact, other in zip(exact_results, rounded_results):
        if exact.numel() == 1 and exact.dim() == 0:
            effect.loss, effect.loss_change = exact.item(), other.item() - exact.item()
            break
    return effect


def _results(model: nn.Module, cut: Cut, call: Call, crossing: Sequence[Tensor]) -> list[Tensor]:
    """Returns the floating-point tensors that the model returns."""
    shadow = shadow_of(model)
    with side_pass(shadow) as twin, ForwardPatches() as patches:
        cut.skip(patches, cut.placed(crossing), shadow=shadow)
        value = call.run(twin.forward)
    leaves = pytree.tree_leaves(value)
    return [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _difference(exact: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    squares = differences = 0.0
    for one, another in zip(exact, other):
        if one.is_floating_point():
            squares += one.double().square().sum().item()
            differences += (one.double() - another.double()).square().sum().item()
    return 0.0 if differences == 0 else (differences / squares) ** 0.5 if squares > 0 else float("inf")
