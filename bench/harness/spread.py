"""Values of several seeds, and what their spread tells."""

from __future__ import annotations

import dataclasses
import enum
import math
import statistics
from collections.abc import Sequence

# 95 % quantiles of Student's t, by degrees of freedom from 1 on. For more than ten the tenth is taken, which makes
# intervals a little too wide.
_STUDENT_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)


class Verdict(str, enum.Enum):
    """How a difference that is positive where better is judged, by the 90 % interval of its mean."""

    BEATS = "beats"
    LOSES = "loses"
    OPEN = "cannot be told apart"
    ONE_SEED = "cannot be told: one seed"
    DIVERGED = "cannot be told: a run diverged"


@dataclasses.dataclass(frozen=True)
class Spread:
    """Values of several seeds; NaN throughout where one of them is.

    Attributes:
      deviation: sample standard deviation; None for a single value.
    """

    mean: float
    deviation: float | None
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None without values."""
        if not values:
            return None
        if not all(math.isfinite(value) for value in values):
            return cls(math.nan, None, math.nan, math.nan, len(values))
        return cls(
            statistics.fmean(values),
            statistics.stdev(values) if len(values) > 1 else None,
            min(values),
            max(values),
            len(values),
        )

    @property
    def diverged(self) -> bool:
        """Whether one of the values is no finite number."""
        return not math.isfinite(self.mean)

    @property
    def half_width(self) -> float | None:
        """Half of the two-sided 90 % interval of the mean, by Student's t; None without a deviation."""
        if self.deviation is None:
            return None
        quantile = _STUDENT_95[min(self.count - 1, len(_STUDENT_95)) - 1]
        return quantile * self.deviation / math.sqrt(self.count)

    @property
    def complement(self) -> Spread:
        """Returns the shares that these leave of the whole."""
        return dataclasses.replace(self, mean=1 - self.mean, least=1 - self.most, most=1 - self.least)

    @property
    def verdict(self) -> Verdict:
        """Where the values are paired differences."""
        if self.diverged:
            return Verdict.DIVERGED
        if self.half_width is None:
            return Verdict.ONE_SEED
        if self.mean > self.half_width:
            return Verdict.BEATS
        return Verdict.LOSES if self.mean < -self.half_width else Verdict.OPEN
