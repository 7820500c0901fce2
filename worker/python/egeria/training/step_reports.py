"""Reports tells the controller about each step: its loss and its learning rates."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from egeria.training.trial import Trial


@dataclasses.dataclass
class _Report:
    step: int
    learning_rates: list[float]
    zero_lr_prefix: int
    losses: list[Tensor]


class Reports:
    """Puts losses to the steps that they belong to. A loss may come before its optimizer.step(), or after it and
    before the next forward pass, or never; several of one step (micro-batches) are averaged.

    A report goes out as soon as it is complete. `link` may be None: then nothing is sent. A `trial` learns all losses.
    """

    def __init__(self, trial: Trial | None = None) -> None:
        self._trial = trial
        self.steps = 0  # since attach()
        self.any_loss = False
        self._losses: list[Tensor] = []  # losses of the step under way
        self._pending: _Report | None = None  # report of the step that has ended last
        self._forward = False  # the step under way has begun
        self._late = False  # losses come after optimizer.step()

    def forward(self) -> None:
        self._forward = True

    def add_loss(self, loss: Tensor | float | None, link: Any, prefix: int) -> None:
        """The user reports a loss: a scalar, or a tensor whose mean is taken.

        Raises:
          TypeError: it has no value that is a real number.
        """
        if loss is None:
            return
        if isinstance(loss, Tensor) and not _has_value(loss):
            raise TypeError(f"a {type(loss).__name__} of type {loss.dtype} on '{loss.device}' has no value to report")
        value = loss.detach() if isinstance(loss, Tensor) else torch.tensor(float(loss))
        value = value.mean() if value.dim() > 0 else value
        self.any_loss = True
        if self._forward or self.steps == 0:
            self._losses.append(value)
            return
        self._late = True
        if self._pending is not None:
            self._pending.losses.append(value)
            self.flush(link, prefix)

    def end_step(self, step: int, learning_rates: list[float], zero_lr_prefix: int, link: Any, prefix: int) -> None:
        """Notes that the optimizer has stepped; the first `zero_lr_prefix` layer modules have learning rates of 0.
        Losses of the step before that have not come will not come."""
        self.flush(link, prefix)
        self.steps += 1
        self._pending = _Report(step, learning_rates, zero_lr_prefix, self._losses)
        self._losses = []
        self._forward = False

    def correct_zero_lr_prefix(self, zero_lr_prefix: int) -> None:
        """Corrects the step that has ended last, now that the order of the layer modules is known."""
        if self._pending is not None:
            self._pending.zero_lr_prefix = zero_lr_prefix

    def boundary(self, link: Any, prefix: int) -> None:
        """Notes that the work between two steps is done: `prefix` layer modules are frozen now."""
        if not self._late:
            self.flush(link, prefix)

    def flush(self, link: Any, prefix: int) -> None:
        """Sends what is pending as it is."""
        report, self._pending = self._pending, None
        if report is None or (link is None and self._trial is None):
            return
        losses = report.losses
        loss = None
        if losses:
            loss = losses[0] if len(losses) == 1 else torch.stack([entry.float() for entry in losses]).mean()
        if self._trial is not None and loss is not None:
            self._trial.add_loss(report.step, loss)
        if link is not None:
            link.native.report(report.step, loss, report.learning_rates, prefix, report.zero_lr_prefix)


def _has_value(loss: Tensor) -> bool:
    """False for fake tensors and other wrappers, the meta device, complex numbers."""
    wrapper = type(loss).__torch_dispatch__ is not Tensor.__torch_dispatch__
    return not (wrapper or loss.is_meta or loss.is_complex() or loss.numel() == 0)
