"""LearningRates reads the learning rates in force, and which layer modules they leave alone."""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer

from egeria import _native
from egeria.model.modules import LayerModule


class LearningRates:
    """The learning rates of all parameter groups of the optimizers, in their order. The rules are those of the native
    trainer: see worker/planning/learning_rates.h."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._native = _native.LearningRates()
        self._modules: Sequence[LayerModule] = ()

    @property
    def sum(self) -> float | None:
        """The sum over all steps so far of the rate that policies follow: that of the first group that has learned, as
        long as it does. None where that of a checkpoint is not known."""
        return self._native.sum

    def restore(self, total: float | None) -> None:
        """Takes up the `sum` of a checkpoint, before the first step."""
        self._native = _native.LearningRates(total)

    def now(self) -> list[float]:
        return [float(group["lr"]) for optimizer in self._optimizers for group in optimizer.param_groups]

    def end_step(self, rates: Sequence[float]) -> None:
        """The optimizers have stepped, with the rates that now() gave."""
        self._native.end_step(rates)

    def mean_over(self, steps: int) -> float:
        """The mean of the summed rate over all steps so far, which are `steps`; 0: unknown."""
        return self._native.mean_over(steps)

    def zero_lr_prefix(self, rates: Sequence[float], modules: Sequence[LayerModule]) -> int:
        """How many of the first layer modules no optimizer changes, because their learning rates are 0; less than the
        number of modules.

        Args:
          rates: as now() gave them.
        """
        if modules is not self._modules:
            self._modules = modules
            self._native.forget_modules()
        return self._native.zero_lr_prefix(rates, self._module_groups)

    def _module_groups(self) -> list[list[int]]:
        """For each layer module, the number of the parameter group of each parameter that is in one."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        number_of = {id(parameter): number for number, group in enumerate(groups) for parameter in group["params"]}
        return [
            [number_of[id(parameter)] for _, parameter in module.parameters() if id(parameter) in number_of]
            for module in self._modules
        ]
