"""The script of a training may freeze layers by itself, and thaw them, at any step."""

from __future__ import annotations

from torch import nn

from egeria import _native
from egeria.cache.frozen_part import resting
from egeria.freeze.switcher import Switcher
from egeria.training.untrained import Untrained


class ScriptFreezes:
    """Follows which of the first layer modules the script lets nothing train of. Owned by the training thread.

    Attributes:
      prefix: their number; less than there are layer modules.
    """

    def __init__(self, model: nn.Module, switcher: Switcher, untrained: Untrained, pins: bool):
        """`pins`: all that does not train is held in evaluation mode."""
        self._model = model
        self._pins = pins
        self._switcher = switcher
        self._untrained = untrained
        self._seen: tuple[object, object, bytes] | None = None
        self._gradients = _native.GradientFlags([])  # they are read from the model's parameters
        self.look()

    def look(self) -> None:
        """Between two steps. Where no gradient was switched on or off it takes some microseconds."""
        ids = self._untrained.ids
        if self._seen == (self._switcher.modules, ids, self._gradients.now()):
            return
        self._gradients = _native.GradientFlags(list(self._model.parameters()))
        self._seen = self._switcher.modules, ids, self._gradients.now()
        frozen_here = set(map(id, self._switcher.unfrozen_by(0)))
        self.prefix = 0
        for module in self._switcher.modules[:-1]:
            trained = (value for _, value in module.tensors() if id(value) not in ids)
            if any(value.requires_grad or id(value) in frozen_here for value in trained):
                break
            self.prefix += 1
        if self._pins:
            self._switcher.pin(resting(self._model))

    def close(self) -> None:
        """Leaves modes as the script asks for them."""
        if self._pins:
            self._switcher.pin([])
