"""LearningRates reads the learning rates in force, and which layer modules they leave alone."""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer

from egeria import _native
from egeria.model.modules import LayerModule


class LearningRates(_native.LearningRates):
    """The learning rates of all parameter groups of the optimizers, in their order. The rules are those of the native
    trainer: see worker/planning/learning_rates.h, which says also what is summed.

    Attributes:
      sum: over all steps so far; None: that of a checkpoint is not known.
    """

    def __init__(self, optimizers: Sequence[Optimizer], total: float | None = 0.0) -> None:
        """`total` is the `sum` of a checkpoint."""
        super().__init__(total)
        self._optimizers = optimizers
        self._modules: Sequence[LayerModule] = ()
        self._known: list[int] = []  # ids of the optimizers

    def now(self) -> list[float]:
        return [float(group["lr"]) for optimizer in self._optimizers for group in optimizer.param_groups]

    def zero_lr_prefix(self, rates: Sequence[float], modules: Sequence[LayerModule]) -> int:
        """How many of the first layer modules no optimizer changes, because their learning rates are 0; less than the
        number of modules.

        Args:
          rates: as now() gave them.
        """
        optimizers = [id(optimizer) for optimizer in self._optimizers]
        if modules is not self._modules or optimizers != self._known:
            self._modules, self._known = modules, optimizers
            self.forget_modules()
        return super().zero_lr_prefix(rates, self._module_groups)

    def _module_groups(self) -> list[list[int]]:
        """For each layer module, the number of the parameter group of each parameter that is in one."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        number_of = {id(parameter): number for number, group in enumerate(groups) for parameter in group["params"]}
        return [
            [number_of[id(parameter)] for _, parameter in module.parameters() if id(parameter) in number_of]
            for module in self._modules
        ]
