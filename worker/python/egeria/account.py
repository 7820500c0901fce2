"""What freezing has saved of the training's time, and what Egeria has taken of it."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator

# Times kept for each frozen prefix; beyond it, every second one is forgotten and fewer are taken.
_CAPACITY = 1024
# A step that took so many times the median had something else in it: an evaluation, a checkpoint.
_OUTLIER = 3.0


class Account:
    """Adds up seconds, from step to step and by what they were spent on. Owned by the training thread.

    With c_k the mean time of a step at frozen prefix k, without Egeria's own, and n_k the number of such steps, freezing
    has saved the sum over k of n_k (c_0 - c_k). Steps in which something unusual happened count with c_k; what they took
    beyond that is spent on "recompiles".
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        """
        Args:
          now: a clock, in seconds.
        """
        self._now = now
        self._last: float | None = None  # the boundary before
        self._own = 0.0  # spent since then
        self._nested = 0.0  # spent in blocks inside the one under way
        self._disturbed = False
        self._spent: dict[str, float] = {}
        self._times: dict[int, _Times] = {}
        self._disturbances: list[tuple[int, float]] = []  # prefix, seconds
        self._share_steps = 0.0
        self._steps = 0

    @contextlib.contextmanager
    def spend(self, what: str) -> Iterator[None]:
        """The block's time is Egeria's own. That of a block inside it is spent on what that one says."""
        outer, self._nested = self._nested, 0.0
        begin = self._now()
        try:
            yield
        finally:
            seconds = self._now() - begin
            self.add_spent(what, seconds - self._nested)
            self._nested = outer + seconds

    def add_spent(self, what: str, seconds: float) -> None:
        """As spend(), where somebody else has measured, outside such a block."""
        self._own += seconds
        self._spent[what] = self._spent.get(what, 0.0) + seconds

    def disturb(self) -> None:
        """The step under way has something in it that others do not have: a compilation, say."""
        self._disturbed = True

    def end_step(self, prefix: int, share: float) -> None:
        """At the end of each step.

        Args:
          prefix: number of layer modules that were frozen during it.
          share: of the parameters, 0..1.
        """
        now = self._now()
        if self._last is not None:
            seconds = max(0.0, now - self._last - self._own)
            times = self._times.setdefault(prefix, _Times())
            if self._disturbed:
                times.count += 1
                self._disturbances.append((prefix, seconds))
            else:
                times.add(seconds)
        self._last, self._own, self._disturbed = now, 0.0, False
        self._share_steps += share
        self._steps += 1

    @property
    def frozen_share(self) -> float:
        """Mean over the steps of the share of the parameters that was frozen, 0..1."""
        return self._share_steps / self._steps if self._steps else 0.0

    def saved_seconds(self) -> float | None:
        """By freezing, so far, without what was spent. None while no step without frozen layers has been measured."""
        means = self._means()
        if 0 not in means:
            return None
        return sum(times.count * (means[0] - means[prefix]) for prefix, times in self._times.items()
                   if prefix in means)

    def spent_seconds(self) -> dict[str, float]:
        """So far, by what it was spent on."""
        means = self._means()
        extra = sum(max(0.0, seconds - means.get(prefix, means.get(0, seconds)))
                    for prefix, seconds in self._disturbances)
        return {**self._spent, "recompiles": extra} if self._disturbances else dict(self._spent)

    def net_share(self) -> float | None:
        """What was saved less what was spent, as a share of what the same steps would have taken without Egeria. None
        where nothing was frozen, or saved_seconds() is not known."""
        saved = self.saved_seconds()
        if saved is None or all(prefix == 0 for prefix in self._times):
            return None
        plain = self._means()[0] * sum(times.count for times in self._times.values())
        return (saved - sum(self.spent_seconds().values())) / plain if plain > 0 else None

    def seconds_per_step(self) -> dict[int, float]:
        """Mean time of a step at each frozen prefix."""
        return dict(sorted(self._means().items()))

    def _means(self) -> dict[int, float]:
        return {prefix: times.mean() for prefix, times in self._times.items() if times.measured}


class _Times:
    """A bounded, evenly spread sample of step times, and their number."""

    def __init__(self) -> None:
        self.count = 0  # of all
        self._seen = 0  # of those that were given
        self._stride = 1
        self._kept: list[float] = []
        self._mean: float | None = None  # of those; None: not known any more

    @property
    def measured(self) -> bool:
        return bool(self._kept)

    def add(self, seconds: float) -> None:
        if self._seen % self._stride == 0:
            self._kept.append(seconds)
            self._mean = None
            if len(self._kept) >= _CAPACITY:
                self._kept = self._kept[::2]
                self._stride *= 2
        self._seen += 1
        self.count += 1

    def mean(self) -> float:
        """Without outliers."""
        if self._mean is None:
            highest = _OUTLIER * statistics.median(self._kept)
            self._mean = statistics.fmean(value for value in self._kept if value <= highest)
        return self._mean
