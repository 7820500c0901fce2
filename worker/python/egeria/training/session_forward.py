"""A session's side of frozen layers in inference form."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import nn

from egeria.config import Config
from egeria.freeze.switcher import Switcher
from egeria.tell_once import TellOnce
from egeria.time_ledger import TimeLedger


class SessionForward:
    """Lets what is frozen run as Config.frozen_forward says. Owned by the training thread."""

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        switcher: Switcher,
        cache_uses_pass: Callable[[], bool],
        ledger: TimeLedger,
        tell: TellOnce,
    ):
        """`model` is without its wrappers. The configuration is looked at when something freezes: until then the ranks
        may agree on another one."""
        self._config = config
        self._switcher = switcher
        self._tell = tell
        self._spend = lambda: ledger.spend("switches")
        self._make = lambda kind: kind(model, config.frozen_forward, cache_uses_pass, self._spend, tell)
        self._forward: Any = None

    def end_step(self) -> None:
        """A step has ended, and what is frozen from here on is known."""
        if self._config.frozen_forward == "exact" or not (self._forward or self._switcher.prefix):
            return
        with self._tell.guard("frozen layers run as they are"):
            if self._forward is None:
                module = importlib.import_module("egeria.frozen_forward.frozen_forward")  # it loads torch's compiler
                self._forward = self._make(module.FrozenForward)
            frozen = self._switcher.modules[: self._switcher.prefix]
            self._forward.follow([unit for module in frozen for unit in module.units])
            self._forward.end_step()

    def summary(self) -> dict[str, Any] | None:
        """See FrozenForward.summary(); None where frozen layers run as they are."""
        return None if self._forward is None else self._forward.summary()

    def close(self) -> None:
        if self._forward is not None:
            self._forward.close()
