"""The rate sweep of a task (`--sweep`): whether its plain run is tuned, and what rate suits a run of another length."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness.runs import PEAK, Kind, Run
from bench.harness.task import Quality


def sweep_runs(peaks: Sequence[float], shares: Sequence[float]) -> list[Run]:
    """The plain run at multiples of the task's rates, in shares of its steps."""
    return [
        Run(f"sweep {peak:g}" + ("" if share == 1.0 else f" in {share:g}"), Kind.SWEEP, "none", {PEAK: peak}, share)
        for share in shares
        for peak in peaks
        if (peak, share) != (1.0, 1.0)  # that is the plain run
    ]


def qualities(records: Sequence[Mapping[str, Any]]) -> dict[float, dict[float, dict[int, float]]]:
    """Final qualities of the sweep and the plain runs, by share of the steps, peak rate over the task's, and seed: of
    the seeds for which all rates were tried. Shares at which a single rate was tried are left out."""
    found: dict[float, dict[float, dict[int, float]]] = {}
    for record in records:
        if record["kind"] in (Kind.PLAIN, Kind.SWEEP):
            peak = record["options"].get(PEAK, 1.0)
            found.setdefault(record.get("share", 1.0), {}).setdefault(peak, {})[record["seed"]] = record["final"]
    swept = {}
    for share, peaks in found.items():
        seeds = set.intersection(*(set(finals) for finals in peaks.values()))
        if seeds and len(peaks) > 1:
            swept[share] = {peak: {seed: finals[seed] for seed in sorted(seeds)} for peak, finals in peaks.items()}
    return swept


def best_peak(records: Sequence[Mapping[str, Any]], quality: Quality, share: float) -> float | None:
    """Returns the best multiple of the task's rates for this share of its steps, by the sweep of the nearest length.
    Means are over its seeds. Returns None without such a sweep.

    Args:
      records: of one task, profile, settings and number of ranks.
    """
    swept = qualities(records)
    if not swept:
        return None
    return best_of(swept[min(swept, key=lambda known: abs(math.log(known / share)))], quality)


def best_of(peaks: Mapping[float, Mapping[int, float]], quality: Quality) -> float:
    """Returns the rate with the best mean over the seeds. `peaks`: final qualities by rate and seed."""

    def gain(peak: float) -> float:
        mean = statistics.fmean(quality.gain(final, 0.0) for final in peaks[peak].values())
        return mean if math.isfinite(mean) else -math.inf  # it diverged

    return max(peaks, key=gain)
