"""This file takes norms of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from egeria.gradients.optimizer_metric import OptimizerMetric


class Squares(NamedTuple):
    """This rank's part of a gradient reading, by layer module from the first one asked for; see GradientReading in
    controller.proto, with parts of this rank's own samples."""

    mean_of_squares: list[float]
    square_of_mean: list[float]
    parts: int
    samples: int
    progress: Sequence[float] = ()


class Norms:
    """Norms of gradients by parameter, and their squares in the optimizer's metric where that is more than a rate."""

    def __init__(self, metric: OptimizerMetric):
        self._metric = metric
        self._metric_known = True
        self._norms: dict[int, Tensor] = {}
        self._squares: dict[int, Tensor] = {}

    def __contains__(self, parameter: nn.Parameter) -> bool:
        return id(parameter) in self._norms

    def set(self, parameter: nn.Parameter, gradient: Tensor, columns: tuple[int, int] | None = None) -> None:
        """`columns`: the first one and the number of those that `gradient` has; None: all."""
        found = norm(gradient)
        if columns is not None and not gradient.is_sparse:
            found = found * math.sqrt(parameter.shape[1] / columns[1])
        self._norms[id(parameter)] = found
        square = self._metric.square(parameter, gradient, columns)
        if square is not None:
            self._squares[id(parameter)] = square
        elif not self._metric.knows(parameter):
            self._metric_known = False

    def sums(self, modules: Sequence[Sequence[nn.Parameter]]) -> tuple[list[float], list[float]]:
        """Sums of squares by layer module, plain and in the optimizer's metric (empty where that is not known)."""
        plain = {key: norm**2 for key, norm in zip(self._norms, numbers(self._norms.values()))}
        squares = [sum(plain.get(id(parameter), 0.0) for parameter in module) for module in modules]
        if not self._metric_known:
            return squares, []
        scaled = dict(zip(self._squares, numbers(self._squares.values())))
        return squares, [
            sum(
                self._metric.rate(parameter) * scaled.get(id(parameter), plain.get(id(parameter), 0.0))
                for parameter in module
            )
            for module in modules
        ]


def norm(tensor: Tensor) -> Tensor:
    """L2 norm, in single precision at least."""
    tensor = tensor.detach()
    if tensor.dtype == torch.float32 and tensor.layout == torch.strided:  # as nearly always
        return torch.linalg.vector_norm(tensor)
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    return torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))


def numbers(norms: Iterable[Tensor]) -> list[float]:
    """The numbers in 0-dimensional tensors, fetched all at once."""
    norms = list(norms)
    if len({norm.dtype for norm in norms}) > 1:
        norms = [norm.double() for norm in norms]
    return torch.stack(norms).double().tolist() if norms else []
