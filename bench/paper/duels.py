"""Runs against doing less in the same processor time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bench.harness.comparisons import Group, Record, Spread
from bench.harness.runs import Kind
from bench.harness.task import Quality


@dataclasses.dataclass(frozen=True)
class Duel:
    """One run against stopping the plain run, and against the whole schedule in fewer steps.

    Attributes:
      ratio: its processor time over the plain run's.
      gain: quality over the plain run's at its end, in the quality's unit.
      over_stop: over the plain run stopped at the same time.
      over_short: over the `short` run that is nearest in time; None where none was trained.
      short_ratio: that run's processor time over the plain run's.
    """

    label: str
    seed: int
    ratio: float
    gain: float
    over_stop: float
    over_short: float | None
    short_ratio: float | None


def duels(runs: Group, quality: Quality) -> list[Duel]:
    """All runs of policies that say their processor time, by label and seed."""
    found = []
    for label, seeds in runs.others.items():
        for seed, record in sorted(seeds.items()):
            plain = runs.plain.get(seed)
            if plain is not None and record["kind"] == Kind.POLICY and "processor_seconds" in record:
                found.append(_duel(label, seed, record, plain, shorts(runs, seed), quality))
    return found


def shorts(runs: Group, seed: int) -> dict[float, Record]:
    """The `short` runs of a seed, by their processor time over the plain run's."""
    found = (seeds.get(seed) for seeds in runs.others.values())
    return {ratio_of(record, runs.plain[seed]): record for record in found if record and record["kind"] == Kind.SHORT}


def ratio_of(record: Record, plain: Record) -> float:
    """Processor time over the plain run's."""
    return record["processor_seconds"] / plain["processor_seconds"]


def stopped_curve(plain: Record, quality: Quality) -> list[tuple[float, float]]:
    """(time over the whole run's, gain over its end) at each evaluation: what stopping there would have given."""
    return [
        (point["step"] / plain["steps"], quality.gain(point[quality.name], plain["final"])) for point in plain["curve"]
    ]


def stopped_at(curve: list[tuple[float, float]], ratio: float) -> float:
    """Linear between evaluations; the last value from the end on."""
    before = curve[0]
    for at, gain in curve:
        if at >= ratio:
            return gain if at == before[0] else before[1] + (ratio - before[0]) / (at - before[0]) * (gain - before[1])
        before = (at, gain)
    return curve[-1][1]


def spread_of(found: list[Duel], value: str) -> Spread | None:
    """The spread of a value over the seeds that have it."""
    return Spread.of([number for duel in found if (number := getattr(duel, value)) is not None])


def _duel(
    label: str, seed: int, record: Record, plain: Record, short: Mapping[float, Record], quality: Quality
) -> Duel:
    ratio = ratio_of(record, plain)
    nearest: Any = min(short, key=lambda at: abs(at - ratio), default=None)
    return Duel(
        label,
        seed,
        ratio,
        quality.gain(record["final"], plain["final"]),
        quality.gain(record["final"], plain["final"]) - stopped_at(stopped_curve(plain, quality), ratio),
        None if nearest is None else quality.gain(record["final"], short[nearest]["final"]),
        nearest,
    )
