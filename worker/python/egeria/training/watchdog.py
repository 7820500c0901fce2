"""A Watchdog notices that training goes on although no step of it is counted."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

# So many passes, or losses, without a step are looked into; at half of them it is noted what the weights are.
_PATIENCE = 16
# A sample has so many parameters, and so many entries of each: an optimizer that trains the model changes some of them.
_PARAMETERS = 4
_ENTRIES = 64


class Seen(enum.Enum):
    MOVED = enum.auto()  # the weights have changed
    IDLE = enum.auto()  # they have not, and nothing says that they are going to


class Watchdog:
    """Passes without steps may be the micro-batches of a long step, or none of training's: then the weights stay as
    they are. Where they move, an optimizer is at work that nobody sees: one that is none of torch.optim's, code that
    writes the weights itself, a compiled step. Where they stay, and losses are reported while no gradient is kept from
    one pass to the next, the training is another model's, or a scaler skips all of its steps.

    Looking costs nothing while steps are counted. Owned by the training thread.
    """

    def __init__(self, parameters: Callable[[], Iterable[nn.Parameter]]):
        """`parameters` gives some that train for as long as the model does."""
        self._parameters = parameters
        self.stepped()

    def stepped(self) -> None:
        """A step has been counted."""
        self._passes = 0  # since then
        self._losses = 0
        self._look_at = _PATIENCE // 2
        self._sample: list[Tensor] | None = None

    def begin_pass(self) -> Seen | None:
        """A training forward pass begins. Returns what was seen where it was time to look, at the same passes on all
        ranks; None: nothing to speak of."""
        self._passes += 1
        return self._look(self._passes - 1)

    def add_loss(self) -> Seen | None:
        """A loss is reported. As begin_pass(), where no passes are seen."""
        self._losses += 1
        return self._look(self._losses) if self._passes == 0 else None

    def _look(self, events: int) -> Seen | None:
        if events < self._look_at:
            return None
        trained = [parameter for parameter in self._parameters() if parameter.requires_grad][-_PARAMETERS:]
        keeps_gradients = any(parameter.grad is not None for parameter in trained)
        self._look_at = events + _PATIENCE // 2
        before, self._sample = self._sample, [_entries(parameter) for parameter in trained]
        if before is None:
            return None
        if len(before) != len(self._sample) or not all(map(torch.equal, before, self._sample)):
            return Seen.MOVED
        return Seen.IDLE if self._losses >= _PATIENCE and not keeps_gradients else None


def _entries(parameter: nn.Parameter) -> Tensor:
    """The bytes of some entries, spread over the parameter; of this rank's part of one that is sharded."""
    value = parameter.detach()
    value = (value.to_local() if hasattr(value, "to_local") else value).reshape(-1)
    return value[:: max(1, value.numel() // _ENTRIES)].clone().view(torch.uint8)
