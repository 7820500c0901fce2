"""Runs against doing less in the same time.

The time is what the steps cost with what was frozen in them, by the measured parts of a step. On a shared machine it
says more than a clock. It leaves out what being watched costs, which is in favour of the policies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bench.harness.groups import Group, Record
from bench.harness.runs import Kind
from bench.harness.spread import Spread
from bench.harness.task import Quality

_NEAR = 0.05  # by which the times of a run and of its `short` may differ, in the plain run's


@dataclasses.dataclass(frozen=True)
class Duel:
    """One run against stopping the plain run, and against the whole schedule in fewer steps.

    Attributes:
      ratio: the cost of its steps over that of the plain run's.
      measured: its processor seconds over the plain run's; None where they had other processors.
      gain: quality over the plain run's at its end, in the quality's unit.
      over_stop: over the plain run stopped at the same time.
      over_short: over the `short` run of about the same time; None where none was trained.
      short_ratio: that run's `ratio`.
    """

    label: str
    seed: int
    ratio: float
    measured: float | None
    gain: float
    over_stop: float
    over_short: float | None
    short_ratio: float | None


def duels(runs: Group, step: Sequence[Mapping[str, float]], quality: Quality) -> list[Duel]:
    """All runs of policies that say their processor time, by label and seed. `step`: the parts of a step by prefix."""
    found = []
    for label, seeds in runs.others.items():
        for seed, record in sorted(seeds.items()):
            plain = runs.plain.get(seed)
            if plain is not None and record["kind"] == Kind.POLICY and "processor_seconds" in record:
                same = record["machine"]["processor"] == plain["machine"]["processor"]
                measured = record["processor_seconds"] / plain["processor_seconds"] if same else None
                cost = step_cost(record, step) / plain["steps"]
                found.append(_duel(label, seed, record, plain, (cost, measured), shorts(runs, seed), quality))
    return found


def shorts(runs: Group, seed: int) -> dict[float, Record]:
    """The `short` runs of a seed, by their steps over the plain run's."""
    found = (seeds.get(seed) for seeds in runs.others.values())
    steps = runs.plain[seed]["steps"]
    return {record["steps"] / steps: record for record in found if record and record["kind"] == Kind.SHORT}


def step_cost(record: Record, step: Sequence[Mapping[str, float]]) -> float:
    """The cost of a run's steps, in steps with nothing frozen."""
    costs = [row["forward"] + row["backward"] + row["update"] for row in step]
    switches = [{"step": 0, "frozen_prefix": 0}, *record["switches"]]
    ends = [*(switch["step"] for switch in switches[1:]), record["steps"]]
    return sum(
        (end - switch["step"]) * costs[switch["frozen_prefix"]] / costs[0] for switch, end in zip(switches, ends)
    )


def stopped_curve(plain: Record, quality: Quality) -> list[tuple[float, float]]:
    """(time over the whole run's, gain over its end) at each evaluation: what stopping there would have given."""
    return [
        (point["step"] / plain["steps"], quality.gain(point[quality.name], plain["final"])) for point in plain["curve"]
    ]


def stopped_at(curve: list[tuple[float, float]], ratio: float) -> float:
    """Linear between evaluations; the last value from the end on."""
    return float(np.interp(ratio, *zip(*curve)))


def spread_of(found: Sequence[Duel], value: str) -> Spread | None:
    """The spread of a value over the seeds that have it."""
    return Spread.of([number for duel in found if (number := getattr(duel, value)) is not None])


def _duel(
    label: str,
    seed: int,
    record: Record,
    plain: Record,
    times: tuple[float, float | None],
    short: Mapping[float, Record],
    quality: Quality,
) -> Duel:
    ratio, measured = times
    near = [at for at in short if abs(at - ratio) <= _NEAR]
    nearest = min(near, key=lambda at: abs(at - ratio), default=None)
    return Duel(
        label,
        seed,
        ratio,
        measured,
        quality.gain(record["final"], plain["final"]),
        quality.gain(record["final"], plain["final"]) - stopped_at(stopped_curve(plain, quality), ratio),
        None if nearest is None else quality.gain(record["final"], short[nearest]["final"]),
        nearest,
    )
