"""Times of steps, and what freezing has saved by them."""

from __future__ import annotations

import statistics
import time

# Times kept for each frozen prefix; beyond it, every second one is forgotten and fewer are taken.
_CAPACITY = 1024


class Stopwatch:
    """Adds up the time spent in `with` blocks, of which none contains another.

    Attributes:
      seconds: so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begin = 0.0

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._begin


class _Times:
    """A bounded, evenly spread sample of step times, and their number."""

    def __init__(self) -> None:
        self.count = 0
        self._stride = 1
        self._kept: list[float] = []

    def add(self, seconds: float) -> None:
        if self.count % self._stride == 0:
            self._kept.append(seconds)
            if len(self._kept) >= _CAPACITY:
                self._kept = self._kept[::2]
                self._stride *= 2
        self.count += 1

    def median(self) -> float:
        return statistics.median(self._kept)


class StepClock:
    """Measures steps from boundary to boundary. Owned by the training thread."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._times: dict[int, _Times] = {}
        self._share_steps = 0.0
        self._steps = 0

    def tick(self, prefix: int, share: float) -> None:
        """At the end of each step. `prefix`, `share`: what was frozen during it."""
        now = time.perf_counter()
        if self._last is not None:
            self._times.setdefault(prefix, _Times()).add(now - self._last)
        self._last = now
        self._share_steps += share
        self._steps += 1

    def skip(self) -> None:
        """The step under way is not to be counted: something happens in it that others do not have."""
        self._last = None

    def resume(self) -> None:
        """What happened at this boundary is over: the next step begins now."""
        self._last = time.perf_counter()

    @property
    def frozen_share(self) -> float:
        """Mean over the steps of the share of the parameters that was frozen, 0..1."""
        return self._share_steps / self._steps if self._steps else 0.0

    def saved_share(self) -> float | None:
        """Time saved as a share of what the same steps would have taken without freezing, by the medians of the
        steps at each frozen prefix. None where nothing was frozen or no step was measured without it."""
        free = self._times.get(0)
        if free is None or len(self._times) < 2:
            return None
        unfrozen = sum(times.count for times in self._times.values()) * free.median()
        taken = sum(times.count * times.median() for times in self._times.values())
        return 1 - taken / unfrozen if unfrozen > 0 else None

    def medians(self) -> dict[int, float]:
        """Median step time in seconds at each frozen prefix."""
        return {prefix: times.median() for prefix, times in sorted(self._times.items())}
