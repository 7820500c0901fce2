"""This file describes the outputs of submodules, and makes values that stand in for them. Where tensors get another
number of rows, they keep their memory format, since kernels may round otherwise for another one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from egeria.model.inputs import SIMPLE


class NotATensor(Exception):
    """Says why what a submodule returns cannot be kept; the text is for people."""


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Describes everything about a tensor but its contents."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        return cls(tuple(tensor.shape), strides_like(tensor.shape, tensor), tensor.dtype, tensor.device)

    def fits(self, tensor: Tensor) -> bool:
        """Returns whether `tensor` may stand for this one, wherever and however it lies."""
        return tensor.dtype == self.dtype and tuple(tensor.shape) == self.shape

    def placed(self, tensor: Tensor) -> Tensor:
        """Returns a tensor that fits on this one's device and with its strides; itself where it is so already."""
        if tensor.device == self.device and tensor.stride() == self.strides:
            return tensor
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device).copy_(tensor)

    def stand_in(self, dense: bool) -> Tensor:
        """Returns not-a-number everywhere, so that whoever uses it shows; zeros where a type has no such value.

        Args:
          dense: in memory of its own, which may be written to; else one element stands for all.
        """
        value = float("nan") if self.dtype.is_floating_point or self.dtype.is_complex else 0
        if not dense:
            return torch.full((), value, dtype=self.dtype, device=self.device).expand(self.shape)
        tensor = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)
        return tensor.fill_(value)


class Output:
    """Describes what a submodule returns: tensors, constants, and how they are nested."""

    def __init__(self, value: Any):
        """
        Raises:
          NotATensor: there is something else in it.
        """
        leaves, self._structure = pytree.tree_flatten(value)
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                if type(leaf) is not Tensor or leaf.layout is not torch.strided or leaf.is_quantized:
                    raise NotATensor(f"returns a {type(leaf).__name__} of layout {leaf.layout}")
            elif not isinstance(leaf, SIMPLE):
                raise NotATensor(f"returns a {type(leaf).__name__}")
        self._leaves = [TensorSpec.of(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    @property
    def tensors(self) -> list[TensorSpec]:
        return [leaf for leaf in self._leaves if isinstance(leaf, TensorSpec)]

    def build(self, tensors: Sequence[Tensor]) -> Any:
        """Returns the value with these tensors in it."""
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(leaf, TensorSpec) else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._structure)

    def stand_in(self, dense: bool) -> Any:
        return self.build([spec.stand_in(dense) for spec in self.tensors])


def like(tensor: Tensor, rows: int) -> Tensor:
    """Returns uninitialised memory for `rows` rows, its dimensions in memory in the order of those of `tensor`."""
    shape = (rows, *tensor.shape[1:])
    return torch.empty_strided(shape, strides_like(shape, tensor), dtype=tensor.dtype, device=tensor.device)


def strides_like(shape: Sequence[int], tensor: Tensor) -> tuple[int, ...]:
    """Returns strides without gaps for `shape`; those of `tensor` itself where it has this shape and no gaps."""
    if tuple(shape) == tuple(tensor.shape) and torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return tensor.stride()
    # The outermost comes first; where two have the same stride (one has a single element) the earlier is outside.
    order = sorted(range(len(shape)), key=lambda dimension: (-tensor.stride(dimension), dimension))
    if 0 in tensor.stride():  # an expanded tensor says nothing
        order = list(range(len(shape)))
    strides, extent = [0] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = extent
        extent *= max(1, shape[dimension])
    return tuple(strides)
