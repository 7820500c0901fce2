"""LearningRates reads the learning rates in force, and which layer modules they leave alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch.optim import Optimizer

from egeria.model.modules import LayerModule


class LearningRates:
    """The learning rates of all parameter groups of the optimizers, in their order.

    A module whose rate is 0 is trained for nothing: the policy `auto` freezes it at once.

    Attributes:
      sum: over all steps so far, of the rate that the controller follows: of the first group that has learned, as long
        as it does. None where those of a checkpoint are not known.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.sum: float | None = 0.0
        self._optimizers = optimizers
        self._followed = -1  # the group whose rate is summed
        self._zeros: list[bool] = []  # whether each group's rate was 0 at the last count
        self._modules: Sequence[LayerModule] = ()
        self._still = 0

    def now(self) -> list[float]:
        return [float(group["lr"]) for optimizer in self._optimizers for group in optimizer.param_groups]

    def end_step(self, rates: Sequence[float]) -> None:
        """The optimizers have stepped, with the rates that now() gave."""
        if self.sum is not None:
            self.sum += self._followed_rate(rates)

    def mean_over(self, steps: int) -> float:
        """The mean of the summed rate over all steps so far, which are `steps`; 0: unknown."""
        return self.sum / steps if self.sum is not None and steps > 0 else 0.0

    def zero_lr_prefix(self, rates: Sequence[float], modules: Sequence[LayerModule]) -> int:
        """How many of the first layer modules no optimizer changes, because their learning rates are 0.

        Only those up to the last one that is in a group of rate 0: modules that are in no optimizer are their owner's
        business. Where no rate is over 0, as many as before: 0 at the first step of a warm-up.

        Args:
          rates: as now() gave them.

        Returns:
          Less than the number of modules; the last one never freezes.
        """
        zeros = [rate == 0 for rate in rates]
        if all(zeros):
            return self._still if modules is self._modules else 0
        if zeros != self._zeros or modules is not self._modules:
            self._zeros, self._modules = zeros, modules
            self._still = self._count(zeros, modules)
        return self._still

    def _followed_rate(self, rates: Sequence[float]) -> float:
        """As the controller picks it (controller/job/observation_filter.cc, ScheduledRate()); 0 where none learns."""
        if not 0 <= self._followed < len(rates) or rates[self._followed] == 0:
            self._followed = next((group for group, rate in enumerate(rates) if rate != 0), -1)
        rate = rates[self._followed] if self._followed >= 0 else 0.0
        return rate if math.isfinite(rate) else 0.0

    def _count(self, zeros: Sequence[bool], modules: Sequence[LayerModule]) -> int:
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        is_zero = {id(parameter): zero for group, zero in zip(groups, zeros) for parameter in group["params"]}
        still = 0
        for index, module in enumerate(modules[:-1]):
            own = [is_zero[id(parameter)] for _, parameter in module.parameters() if id(parameter) in is_zero]
            if not all(own):
                break
            if own:
                still = index + 1
        return still
