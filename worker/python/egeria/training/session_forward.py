"""A session's side of frozen layers in inference form."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from typing import Any

from torch import nn

from egeria import _native
from egeria.cache.forward_patches import ForwardPatches
from egeria.cache.frozen_part import resting
from egeria.config import Config
from egeria.model.shadow import Shadow
from egeria.tell_once import TellOnce
from egeria.time_ledger import TimeLedger

# The model's parameters are listed anew after so many steps.
_LOOK_EVERY = 64


class SessionForward:
    """Lets what is frozen run as Config.frozen_forward says. Owned by the training thread."""

    def __init__(
        self, config: Config, model: nn.Module, cache_uses_pass: Callable[[], bool], ledger: TimeLedger, tell: TellOnce
    ):
        """`model` is without its wrappers. The configuration is looked at when something freezes: until then the ranks
        may agree on another one."""
        self._config = config
        self._model = model
        self._tell = tell
        self._spend = lambda: ledger.spend("switches")
        self._make = lambda kind: kind(model, config.frozen_forward, cache_uses_pass, self._spend, tell)
        self._forward: Any = None
        self._steps = 0
        self._gradients = _native.GradientFlags([])  # they are read from the model's parameters
        self._trains: bytes | None = None  # for each of them, when frozen submodules were looked for

    def end_step(self) -> None:
        """A step has ended, and what is frozen from here on is known."""
        if self._config.frozen_forward == "exact" or self._config.observe:
            return
        with self._tell.guard("frozen layers run as they are"):
            if self._steps % _LOOK_EVERY == 0:
                self._gradients = _native.GradientFlags(list(self._model.parameters()))
            self._steps += 1
            if (trains := self._gradients.now()) != self._trains:
                self._trains = trains
                self._follow(resting(self._model))
            if self._forward is not None:
                self._forward.end_step()

    def _follow(self, units: list[nn.Module]) -> None:
        if self._forward is None and units:
            module = importlib.import_module("egeria.frozen_forward.frozen_forward")  # it loads torch's compiler
            self._forward = self._make(module.FrozenForward)
        if self._forward is not None:
            self._forward.follow(units)

    # These are the cache's, see egeria.cache.other_forms.Forms.

    def settled(self) -> bool:
        if self._config.frozen_forward == "exact" or self._config.observe:
            return True
        return self._steps >= _LOOK_EVERY if self._forward is None else self._forward.settled()

    def any(self) -> bool:
        return self._forward is not None and self._forward.any()

    def join(self, live: Collection[nn.Module]) -> None:
        if self._forward is not None:
            self._forward.join(live)

    def leave(self) -> None:
        if self._forward is not None:
            self._forward.leave()

    def put_into(self, patches: ForwardPatches, shadow: Shadow, live: Collection[nn.Module]) -> None:
        if self._forward is not None:
            self._forward.put_into(patches, shadow, live)

    def used(self) -> bytes:
        return b"" if self._forward is None else self._forward.used()

    def summary(self) -> dict[str, Any] | None:
        """See FrozenForward.summary(); None where frozen layers run as they are."""
        return None if self._forward is None else self._forward.summary()

    def close(self) -> None:
        if self._forward is not None:
            self._forward.close()
