"""The ledger tells what freezing has saved of the training's time, and what Egeria has taken of it."""

from __future__ import annotations

import contextlib
import sys

from egeria import _native


class TimeLedger(_native.TimeLedger):
    """Adds up seconds, from step to step and by what they were spent on; worker/accounting/time_ledger.h says how.

    Owned by the training thread.
    """

    def count_compilations(self) -> None:
        """Takes the time that torch.compile has taken in this process for that of a switch, until there is one."""
        utils = sys.modules.get("torch._dynamo.utils")
        if utils is not None:
            self.set_compilation(utils.calculate_time_spent().get("total_wall_time", 0.0))

    def spend(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Counts the block's time as Egeria's own. An inner block's time counts for what the inner one says."""
        return _Spending(self, what)


class _Spending:
    """Is the context of spend(). Steps enter several, and one made of a generator takes three times as long."""

    __slots__ = ("_ledger", "_what")

    def __init__(self, ledger: TimeLedger, what: str):
        self._ledger = ledger
        self._what = what

    def __enter__(self) -> None:
        self._ledger.begin()

    def __exit__(self, *_: object) -> None:
        self._ledger.end(self._what)
