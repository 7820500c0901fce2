"""The common part of tasks that start from weights of another training."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from bench.harness.task import Task


class FineTuning(Task):
    """AdamW. The rate of the last layer module is "head_rate" times that of the others. Rates rise during "warm_up" and
    fall to 0 then, as a line or as half a cosine ("decay")."""

    pretrained = True
    layer_rates = True
    too_early = (1.0, 0.0)  # nothing but the head trains

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        network = getattr(model, "module", model)  # DistributedDataParallel
        groups = [{"params": _trained(part), "lr": self.settings["rate"]} for part in self.modules(network)]
        groups[-1]["lr"] *= self.settings["head_rate"]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]], weight_decay=self.settings["weight_decay"]
        )

    def rate(self, progress: float) -> float:
        warm_up = self.settings["warm_up"]
        if progress < warm_up:
            return min(1.0, (progress + 1e-3) / warm_up)
        left = (1 - progress) / (1 - warm_up)
        return left if self.settings["decay"] == "linear" else 0.5 * (1 - math.cos(math.pi * left))


def _trained(part: nn.Module | Iterable[nn.Module]) -> list[nn.Parameter]:
    units = [part] if isinstance(part, nn.Module) else part
    return [parameter for unit in units for parameter in unit.parameters() if parameter.requires_grad]
