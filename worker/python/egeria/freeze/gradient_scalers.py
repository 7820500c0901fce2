"""This file lets a GradScaler work with optimizers whose parameters are all frozen.

torch.amp.GradScaler.step() raises where an optimizer has no gradient at all. While layers are frozen it passes over
such an optimizer, which would change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

_ORIGINAL = torch.amp.GradScaler.step
_is_ours: Callable[[nn.Parameter], bool] | None = None


def pass_over_frozen(is_ours: Callable[[nn.Parameter], bool]) -> None:
    """Changes the scalers' step(). `is_ours` tells whether a parameter belongs to a model that has frozen layers."""
    global _is_ours  # pylint: disable=global-statement  # what a scaler is asked is asked of the process
    _is_ours = is_ours
    if torch.amp.GradScaler.step is _ORIGINAL:
        torch.amp.GradScaler.step = _step


def leave_alone() -> None:
    """Undoes pass_over_frozen()."""
    if torch.amp.GradScaler.step is _step:
        torch.amp.GradScaler.step = _ORIGINAL


def _step(self: torch.amp.GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
    return None if self.is_enabled() and _is_frozen(optimizer) else _ORIGINAL(self, optimizer, *args, **kwargs)


def _is_frozen(optimizer: Optimizer) -> bool:
    """Whether no parameter of the optimizer has a gradient, and layers of ours are the reason."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return all(parameter.grad is None for parameter in parameters) and any(
        not parameter.requires_grad and _is_ours is not None and _is_ours(parameter) for parameter in parameters
    )
