"""SuccessiveSteps tells signal from noise where a step's samples are not told apart: by steps in a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor, nn

from egeria.gradients.gradient_norms import Norms, Squares
from egeria.gradients.optimizer_metric import OptimizerMetric, columns_of

# A reading is of so many steps.
STEPS = 3


@dataclasses.dataclass
class _Kept:
    """Holds a parameter's part of the sum, and the columns that are looked at; None: all."""

    columns: tuple[int, int] | None
    sum: Tensor | None = None


class SuccessiveSteps:
    """Collects the gradients g1, g2, g3 of three steps in a row, and keeps one copy: g1, then g2 - g1, then g3 - g2 +
    g1. It looks at an eighth of the columns of large matrices.

    The batches are independent, but the weights move from step to step. So the products of neighbours, g1 g2 and g2 g3,
    are too small by what one step changes, g1 g3 by what two do, and g1 g2 + g2 g3 - g1 g3 estimates ||E g||^2 at the
    weights of the first step (docs/adr/0021). It is (||g1||^2 + ||g2||^2 + ||g3||^2 - ||g3 - g2 + g1||^2) / 2.

    Owned by the training thread.
    """

    def __init__(self, modules: Sequence[Sequence[nn.Parameter]], metric: OptimizerMetric, turn: int):
        """`turn` is the number of the reading, which says which columns are looked at."""
        self._modules = modules
        self._metric = metric
        self._kept = {parameter: _Kept(columns_of(parameter, turn)) for module in modules for parameter in module}
        self._batches: list[int] = []
        self._norms: list[Norms] = []

    @property
    def complete(self) -> bool:
        return len(self._batches) == STEPS

    def add(self, batch: int) -> Squares | None:
        """Takes the gradients that the parameters have now, from a step of `batch` samples.

        Returns:
          The reading; None before the last step, or where the steps have different batches.
        """
        own = Norms(self._metric)
        for parameter, kept in self._kept.items():
            gradient = parameter.grad
            if gradient is not None:
                gradient = gradient.detach()
                gradient = gradient if kept.columns is None or gradient.is_sparse else gradient.narrow(1, *kept.columns)
                own.set(parameter, gradient, kept.columns)
            kept.sum = _alternated(kept.sum, gradient)
        self._batches.append(batch)
        self._norms.append(own)
        return self._reading() if self.complete else None

    def _reading(self) -> Squares | None:
        if len(set(self._batches)) > 1:
            return None
        alternating = Norms(self._metric)
        for parameter, kept in self._kept.items():
            if kept.sum is not None:
                alternating.set(parameter, kept.sum, kept.columns)
        own = [
            [sum(values) for values in zip(*kind)]
            for kind in zip(*(norms.sums(self._modules) for norms in self._norms))
        ]
        signal = [
            [(squares - square) / 2 for squares, square in zip(*kind)]
            for kind in zip(own, alternating.sums(self._modules))
        ]
        # The two numbers from which (parts square - squares) / (parts - 1) is the signal.
        squares = [value / STEPS for value in own[0]]
        square = [((STEPS - 1) * a + d) / STEPS for a, d in zip(signal[0], squares)]
        return Squares(squares, square, STEPS, sum(self._batches), signal[1])


def _alternated(before: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    """gradient - before, in the memory of `before` where that can be."""
    if before is None or gradient is None:
        return gradient.clone() if gradient is not None else None if before is None else before.neg_()
    if before.is_sparse or gradient.is_sparse:
        return gradient - before
    return before.neg_().add_(gradient)
