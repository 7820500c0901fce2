"""The steps of the plain schedule that a run takes: all of them, or those that the same-time controls leave.

A run is a list of positions: position p at step s says that s trains with the learning rate of step p of the plain
schedule. Batches are taken in their order, whichever positions they are trained at.
"""

from __future__ import annotations

from collections.abc import Callable

# The low-rate phase is the tail of the schedule with rates of at most this share of the peak.
_LOW_RATE = 0.25
# Rates fall smoothly where none falls by more than this part of the peak within a hundredth of the steps.
_SUDDEN = 0.1


def plain(steps: int) -> list[float]:
    """The schedule as it is."""
    return [float(step) for step in range(steps)]


def resized(steps: int, share: float) -> list[float]:
    """The whole schedule in round(share * steps) steps: shorter for the control, longer to reinvest."""
    count = max(1, round(share * steps))
    return [step * steps / count for step in range(count)]


def low_rate_phase(steps: int, rate: Callable[[float], float]) -> int:
    """The first step of the low-rate phase; `steps` where there is none."""
    rates = [rate(step / steps) for step in range(steps)]
    first = steps
    while first > 0 and rates[first - 1] <= _LOW_RATE * max(rates):
        first -= 1
    return first


def falls_smoothly(rate: Callable[[float], float]) -> bool:
    """Whether no step brings a sudden drop."""
    rates = [rate(point / 100) for point in range(100)]
    return all(before - after <= _SUDDEN * max(rates) for before, after in zip(rates, rates[1:]))


def dropped(steps: int, share: float, rate: Callable[[float], float]) -> list[float]:
    """round(share * steps) steps of the schedule, without some of the low-rate phase, evenly spread over it.

    Where more than half of that phase would go, it begins earlier, at twice the number of dropped steps from the end.
    """
    count = min(steps, max(1, round(share * steps)))
    first = first_dropped(steps, share, rate)
    kept = count - first
    if kept <= 0:
        return plain(count)
    return plain(first) + [first + (step + 0.5) * (steps - first) / kept - 0.5 for step in range(kept)]


def first_dropped(steps: int, share: float, rate: Callable[[float], float]) -> int:
    """The first step of the phase that dropped() takes steps out of."""
    missing = steps - min(steps, max(1, round(share * steps)))
    return max(0, min(low_rate_phase(steps, rate), steps - 2 * missing))


def raised(steps: int, share: float, rate: Callable[[float], float]) -> list[float]:
    """Learning rates at the steps that dropped() keeps, as factors of the peak. In the phase that lost steps
    rates are raised by the number of its steps over those that are kept, but not over the peak."""
    positions, first = dropped(steps, share, rate), first_dropped(steps, share, rate)
    rates = [rate(position / steps) for position in positions]
    factor = (steps - first) / max(1, len(positions) - first)
    peak = max(rate(step / steps) for step in range(steps))
    return rates[:first] + [min(peak, factor * value) for value in rates[first:]]


def shared_with_plain(positions: list[float]) -> int:
    """Steps at the beginning that are those of the plain schedule."""
    same = 0
    while same < len(positions) and positions[same] == same:
        same += 1
    return same


def evaluation_steps(steps: int, evaluations: int) -> list[int]:
    """After how many steps a run is evaluated: as often for every length of it, the last time at its end."""
    count = min(steps, evaluations)
    return [round(steps * (index + 1) / count) for index in range(count)]
