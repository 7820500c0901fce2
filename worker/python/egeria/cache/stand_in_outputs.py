"""This file describes the outputs of submodules, and makes values that stand in for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from egeria.cache.tensor_layout import strides_like
from egeria.model.inputs import SIMPLE


class NotATensor(Exception):
    """What a submodule returns cannot be kept; the text is for people."""


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Everything about a tensor but its contents."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        return cls(tuple(tensor.shape), strides_like(tensor.shape, tensor), tensor.dtype, tensor.device)

    def fits(self, tensor: Tensor) -> bool:
        """Whether `tensor` may stand for this one, wherever and however it lies."""
        return tensor.dtype == self.dtype and tuple(tensor.shape) == self.shape

    def placed(self, tensor: Tensor) -> Tensor:
        """One that fits, on this one's device and with its strides; itself where it is so already."""
        if tensor.device == self.device and tensor.stride() == self.strides:
            return tensor
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device).copy_(tensor)

    def stand_in(self, dense: bool) -> Tensor:
        """Not a number everywhere, so that whoever uses it shows; zeros where a type has no such value.

        Args:
          dense: in memory of its own, which may be written to; else one element stands for all.
        """
        value = float("nan") if self.dtype.is_floating_point or self.dtype.is_complex else 0
        if not dense:
            return torch.full((), value, dtype=self.dtype, device=self.device).expand(self.shape)
        tensor = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)
        return tensor.fill_(value)


class Output:
    """What a submodule returns: tensors, constants, and how they are nested."""

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
        """The value with these tensors in it."""
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(leaf, TensorSpec) else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._structure)

    def stand_in(self, dense: bool) -> Any:
        return self.build([spec.stand_in(dense) for spec in self.tensors])


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a value that an Output describes."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
