"""LearningRates reads the learning rates in force, and which layer modules they leave alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from egeria import _native
from egeria.model.modules import LayerModule


class LearningRates(_native.LearningRates):
    """The learning rates of all parameter groups of the optimizers, in their order. The rules are those of the native
    trainer: see worker/planning/learning_rates.h, which says also what is summed.

    Attributes:
      sum: over all steps so far; None: that of a checkpoint is not known.
      of_their_own: an optimizer makes its own rates, as Adafactor may; they count as 1.
    """

    def __init__(self, optimizers: Sequence[Optimizer], total: float | None = 0.0) -> None:
        """`total` is the `sum` of a checkpoint."""
        super().__init__(total)
        self.of_their_own = False
        self._optimizers = optimizers
        self._modules: Sequence[LayerModule] = ()
        self._known: list[int] = []  # ids of the optimizers
        self._on_device: dict[int, _RateOnDevice] = {}  # by the group's number

    def now(self) -> list[float]:
        """One that is on a device is that of an earlier step, since the present one would have to be waited for."""
        groups = (group for optimizer in self._optimizers for group in optimizer.param_groups)
        return [self._value(number, group["lr"]) for number, group in enumerate(groups)]

    def _value(self, number: int, rate: Tensor | float | None) -> float:
        if rate is None:
            self.of_their_own = True
            return 1.0
        if not isinstance(rate, Tensor) or rate.device.type == "cpu":
            return float(rate)
        return self._on_device.setdefault(number, _RateOnDevice()).read(rate)

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


class _RateOnDevice:
    """Reads a learning rate that a device holds, by copies that nobody waits for but the first."""

    def __init__(self) -> None:
        self._value: float | None = None
        self._copy: Tensor | None = None
        self._arrived: torch.Event | None = None

    def read(self, rate: Tensor) -> float:
        """The newest value that has arrived."""
        if self._value is None:
            self._value = float(rate)
        if self._arrived is not None and self._arrived.query():
            self._value, self._arrived = float(self._copy), None
        if self._arrived is None:
            self._copy = torch.empty((), dtype=rate.dtype, pin_memory=True)
            self._copy.copy_(rate.detach().reshape(()), non_blocking=True)
            self._arrived = torch.Event(device=rate.device)
            self._arrived.record()
        return self._value
