"""This file recognises, from an output and its gradient, that a loss is cross entropy, and with which labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# By which a gradient may differ from (softmax - one-hot) / divisor, as a part of the largest such number.
_TOLERANCE = 0.02
# Rows that are predicted this well say nothing of the divisor.
_SURE = 0.999


class CrossEntropy:
    """A sum of cross entropies with hard labels by row, divided by a number; some rows may be ignored.

    That is what F.cross_entropy() with labels gives, with any reduction and ignored labels, scaled or not; not with
    weights, label smoothing or soft labels.

    Attributes:
      labels: B x ..., of the classes in dimension 1 of the output.
      divisor: of the sum, with whatever else scales the loss.
    """

    def __init__(self, labels: Tensor, counted: Tensor, divisor: float):
        self.labels = labels
        self.divisor = divisor
        self._counted = counted

    @staticmethod
    def recognised(output: Tensor, gradient: Tensor) -> CrossEntropy | None:
        """The loss whose gradient by `output` (B x classes x ...) this is, if it is such a one."""
        if output.dim() < 2 or output.size(1) < 2 or not bool(torch.isfinite(gradient).all()):
            return None
        odds = torch.softmax(output.detach().float(), 1)
        gradient = gradient.detach().float()
        counted = gradient.abs().amax(1) > 0
        labels = gradient.argmin(1)
        own = odds.gather(1, labels.unsqueeze(1)).squeeze(1)
        least = gradient.gather(1, labels.unsqueeze(1)).squeeze(1)
        telling = counted & (own < _SURE)
        if not bool(telling.any()):
            return None
        divisor = float(((own - 1) / least)[telling].median())
        if not divisor > 0:
            return None
        expected = (odds - _one_hot(labels, odds)) * counted.unsqueeze(1)
        difference = (gradient * divisor - expected).abs().max()
        if not bool(difference <= _TOLERANCE * expected.abs().max()):
            return None
        return CrossEntropy(labels, counted, divisor)

    def gradient(self, output: Tensor, begin: int, end: int) -> Tensor:
        """The gradient of the loss share of rows begin..end-1 by their outputs, which may differ from those before."""
        odds = torch.softmax(output.detach().float(), 1)
        difference = odds - _one_hot(self.labels[begin:end], odds)
        return (difference * self._counted[begin:end].unsqueeze(1) / self.divisor).to(output.dtype)


def _one_hot(labels: Tensor, like: Tensor) -> Tensor:
    return F.one_hot(labels, like.size(1)).movedim(-1, 1).to(like.dtype)
