"""This file makes tensors with another number of rows in the same memory format, since kernels may round otherwise for
another one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def like(tensor: Tensor, rows: int) -> Tensor:
    """Uninitialised memory for `rows` rows, its dimensions in memory in the order of those of `tensor`."""
    shape = (rows, *tensor.shape[1:])
    return torch.empty_strided(shape, strides_like(shape, tensor), dtype=tensor.dtype, device=tensor.device)


def strides_like(shape: Sequence[int], tensor: Tensor) -> tuple[int, ...]:
    """Strides without gaps for `shape`; those of `tensor` itself where it has this shape and no gaps."""
    if tuple(shape) == tuple(tensor.shape) and torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return tensor.stride()
    # Outermost first; of two dimensions with the same stride (one has a single element) the earlier is outside.
    order = sorted(range(len(shape)), key=lambda dimension: (-tensor.stride(dimension), dimension))
    if 0 in tensor.stride():  # an expanded tensor says nothing
        order = list(range(len(shape)))
    strides, extent = [0] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = extent
        extent *= max(1, shape[dimension])
    return tuple(strides)
