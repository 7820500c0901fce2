"""GradientReadings takes the readings that a controller asks for, from one training step to the next."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from egeria.freeze.switcher import Switcher
from egeria.gradients.gradient_meter import GradientMeter
from egeria.tell_once import TellOnce
from egeria.time_ledger import TimeLedger


class GradientReadings:
    """Measures the steps that are asked for, and offers what was found. Whatever fails on this rank costs one reading,
    is said once, and the rank goes on with the others. Owned by the training thread.

    Attributes:
      aside: whether a forward pass that is under way is none of training's.
    """

    def __init__(
        self,
        switcher: Switcher,
        model: nn.Module,
        ledger: TimeLedger,
        tell: TellOnce,
        without_cache: Callable[[], contextlib.AbstractContextManager[None]],
    ):
        """`without_cache` gives a context in which passes of the model are not skipped."""
        self.aside = False
        self._switcher = switcher
        self._ledger = ledger
        self._tell = tell
        self._without_cache = without_cache
        self._meter = GradientMeter(switcher.replicas, model, switcher.optimizers, tell)
        self._request: Any = None  # that the step under way answers

    def begin(self, request: Any) -> None:
        """The step that begins is measured if there is a request."""
        self._request = request
        if request is not None:
            first = request.first_module
            self._try(
                lambda: self._meter.begin(
                    self._switcher.modules, first, self._switcher.unfrozen_by(first), self._switcher.ranks
                )
            )

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._request is not None:
            self._try(lambda: self._meter.before_forward(args, kwargs))

    def after_forward(self, output: Any) -> None:
        """After any forward pass, of training or not."""
        if self._request is not None and not self.aside:
            self._try(lambda: self._meter.after_forward(output))

    def before_step(self) -> None:
        if self._request is not None:
            self._ledger.add_spent("gradients", self._meter.take_seconds())
            self._try(lambda: self._meter.before_step(self._going_aside))

    def offer(self, native: Any, step: int) -> None:
        """After the optimizer's step: tells the controller what was found."""
        if self._request is not None:
            self._try(lambda: self._offer(native, step))

    def end(self) -> None:
        """Nothing is measured any more until begin()."""
        self._request = None
        self._meter.end()

    def _offer(self, native: Any, step: int) -> None:
        request, self._request = self._request, None
        self._meter.before_step(self._going_aside, last=True)
        found = self._meter.end()
        if found is not None:
            native.offer_gradients(request, step, *found)

    def _try(self, action: Callable[[], None]) -> None:
        with self._tell.guard("a step tells nothing of its gradients"), self._ledger.spend("gradients"):
            action()

    @contextlib.contextmanager
    def _going_aside(self) -> Iterator[None]:
        self.aside = True
        try:
            with self._without_cache():
                yield
        finally:
            self.aside = False
