"""A StepClock tells which calls of optimizers make one training step, and where it ends."""

from __future__ import annotations

import torch
from torch.optim import Optimizer


class StepClock:
    """Several optimizers may step in one training step, and only those with gradients, one made later, or one inside
    another. A step ends with the optimizer that was the last one in the step before; the first one attached, in the
    first. Where that one does not come, the step has ended once another of its optimizers steps again.

    Optimizers that step inside the backward pass, each when its gradient is there, have ended their step when the next
    forward pass begins. Before the first forward pass is seen, every optimizer is taken to be in the same step until
    one of them steps again. Owned by the training thread.
    """

    def __init__(self, last: Optimizer):
        self._last = last
        self._members: list[Optimizer] = []  # they made the step that is under way, or has ended last
        self._open = False  # a step is under way
        self._in_backward = False  # optimizers have stepped inside the backward pass
        self._news = False  # training has gone on since a step ended

    @property
    def under_way(self) -> int:
        """Steps that are made and have not ended, since the next forward pass has not begun: 0 or 1."""
        return int(self._in_backward)

    def progress(self) -> None:
        """A loss is reported, or a forward pass has begun: what steps from here on belongs to another step than one
        that has ended."""
        self._news = True

    def begin_pass(self) -> int:
        """A training forward pass begins. Returns the steps that have ended before it: 0 or 1."""
        self.progress()
        return self._end() if self._in_backward else 0

    def stepped(self, optimizer: Optimizer) -> int:
        """An optimizer has stepped. Returns the steps that have ended with it: 0, 1, or 2 where the optimizer that
        would have ended the one before has not come."""
        if torch._C._current_graph_task_id() != -1:
            self._in_backward = True
            return 0
        again = any(member is optimizer for member in self._members)
        if self._members and not self._open and not again and not self._news:
            self._members.append(optimizer)  # behind the one that ended this step: from the next on it is the last
            self._last = optimizer
            return 0
        ended = 0
        if self._open and again:
            ended = self._end()
            self._last = optimizer
        if not self._open:
            self._open = True
            self._members = []
        self._members.append(optimizer)
        return ended + (self._end() if optimizer is self._last else 0)

    def _end(self) -> int:
        self._open = self._in_backward = self._news = False
        return 1
