"""This file describes the outputs of submodules, and makes values that stand in for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from egeria.cache.refused import Refused
from egeria.model.inputs import SIMPLE


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Describes everything about a tensor but its contents. Its strides have no gaps."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        strides = torch.empty_like(tensor, device="meta").stride()
        return cls(tuple(tensor.shape), strides, tensor.dtype, tensor.device)

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

    def __init__(self, value: Any, name: str):
        """
        Args:
          name: the submodule's.

        Raises:
          Refused: [NOT_A_TENSOR] there is something else in it.
        """
        leaves, self._structure = pytree.tree_flatten(value)
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                if type(leaf) is not Tensor or leaf.layout is not torch.strided or leaf.is_quantized:
                    raise Refused(
                        "NOT_A_TENSOR", f"'{name}' returns a {type(leaf).__name__} of layout {leaf.layout}", name
                    )
            elif not isinstance(leaf, SIMPLE):
                raise Refused("NOT_A_TENSOR", f"'{name}' returns a {type(leaf).__name__}", name)
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
