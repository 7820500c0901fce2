"""A stopwatch adds up time."""

from __future__ import annotations

import time


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
