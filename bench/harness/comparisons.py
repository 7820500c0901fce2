"""From records to numbers: differences to the plain run of the same seed, times, controls. Pure functions."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bench.harness.groups import Group, Record
from bench.harness.origins import constants_in_words
from bench.harness.runs import Kind, control_share
from bench.harness.spread import Spread, Verdict
from bench.harness.task import Quality

# The control that takes no run: the plain run of the same seed, stopped when the policy's training was over.
STOP = "stop"
# The controls that are runs of their own, in a policy's share of the plain run's steps.
RUN_CONTROLS = tuple(kind for kind in Kind if kind.value in ("short", "horizon", "drop", "drop-raised"))
# A control with so many seeds has an interval, so that further seeds of a policy alone do not make it disappear.
ENOUGH_SEEDS = 3

# In the points of a curve, beside scores.
_NO_SCORES = ("step", "seconds", "processor_seconds")

# Runs of these kinds take as many steps as the plain run, and are stopped at the policy's time.
_STOPPED = ("decay",)
# Where a control of this kind would be one of another kind, it is not run.
_STANDS_FOR = {"horizon": "short"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One label, over the seeds that have both it and the plain run.

    Attributes:
      constants: those that its runs were made with, where they are not all the policy's own; otherwise "".
      gain: quality over the plain run's, in the quality's unit.
      relative: the same as a share of the plain run's quality.
      ratio: training time over the plain run's.
      processor: as `ratio`, of processor time, with the cache's; None where not all records have it.
      plain: final quality of the plain runs of its seeds, in the quality's unit.
      frozen: share of the parameters frozen, averaged over the steps.
      reached: time to the plain run's final quality over that of the plain run itself, where it was reached.
      reached_noise: as `reached`, to that quality less the noise; None where that is not known.
      own: share of the steps that the run took itself; before them it is the plain run.
      watching: an estimate of what being watched would have cost before those, over the plain run's time: as much a
        step as in them. None where the records do not say.
      account: what the session says that it has saved, net of what it spent, over the plain run's time; None where
        it does not say.
    """

    label: str
    kind: Kind
    constants: str
    gain: Spread
    relative: Spread
    ratio: Spread
    processor: Spread | None
    plain: Spread
    frozen: float
    reached: Spread | None
    reached_noise: Spread | None
    own: float
    watching: float | None
    account: float | None

    @property
    def noise(self) -> float | None:
        """Standard deviation of the plain runs of its seeds; None with a single seed, or where one diverged."""
        return self.plain.deviation


@dataclasses.dataclass(frozen=True)
class Duel:
    """A policy against one of the controls of its own time, over the seeds that have both.

    Attributes:
      control: STOP, or the value of the control's kind.
      gain: of the policy over the control, paired by seed, in the quality's unit.
      relative: the same as a share of the plain run's quality.
      policy_ratio, control_ratio: their times over the plain run's.
    """

    label: str
    control: str
    gain: Spread
    relative: Spread
    policy_ratio: Spread
    control_ratio: Spread


def final_quality(records: Iterable[Record], quality: Quality) -> Spread | None:
    """The spread of the final quality, in its unit; None without records."""
    return Spread.of([quality.scale * record["final"] for record in records])


def time_to(record: Record, quality: Quality, target: float) -> float | None:
    """Training seconds until the curve reaches `target`, linear between evaluations; None where it never does."""
    before: Mapping[str, Any] | None = None
    for point in record["curve"]:
        value = point[quality.name]
        if quality.gain(value, target) >= 0:
            if before is None or value == before[quality.name]:
                return point["seconds"]
            part = (target - before[quality.name]) / (value - before[quality.name])
            return before["seconds"] + part * (point["seconds"] - before["seconds"])
        before = point
    return None


def row(runs: Group, label: str, quality: Quality) -> Row | None:
    """None where no seed has both the run and the plain one."""
    pairs = runs.pairs(label)
    if not pairs:
        return None
    plain_runs = final_quality((plain for _, plain in pairs), quality)
    noise = plain_runs.deviation
    gains = [quality.gain(record["final"], plain["final"]) for record, plain in pairs]
    return Row(
        label,
        Kind(pairs[0][0]["kind"]),
        _constants_of_all(pairs),
        Spread.of(gains),
        _relative(gains, pairs, quality),
        Spread.of([record["seconds"] / plain["seconds"] for record, plain in pairs]),
        _processor(pairs),
        plain_runs,
        statistics.fmean(record["frozen_share"] for record, _ in pairs),
        _reached(pairs, quality, 0.0),
        None if noise is None else _reached(pairs, quality, noise),
        statistics.fmean(1 - record["first_step"] / record["steps"] for record, _ in pairs),
        _watching(pairs),
        _account(pairs),
    )


def quality_at(record: Record, quality: Quality, seconds: float) -> float:
    """The score of a run that is stopped after so many seconds of training, linear between two evaluations. Ahead of
    the first evaluation it is that evaluation's, which favours stopping."""
    times, scores = zip(*((point["seconds"], point[quality.name]) for point in record["curve"]))
    return float(np.interp(seconds, times, scores, right=record["final"]))


def duels(runs: Group, label: str, quality: Quality) -> list[Duel]:
    """A policy's run against stopping, and against the other controls. A control that was run for half of the seeds or
    for ENOUGH_SEEDS counts over those that have it."""
    pairs = runs.pairs(label)
    if not pairs:
        return []
    found = [_duel(label, STOP, pairs, [_stopped(plain, record, quality) for record, plain in pairs], quality)]
    for kind in RUN_CONTROLS:
        fought = _having(pairs, [_control_of(runs, kind, record, plain) for record, plain in pairs])
        ends = [(control["final"], control["seconds"]) for _, control in fought]
        if fought:
            found.append(_duel(label, kind.value, [pair for pair, _ in fought], ends, quality))
    for kind in _STOPPED:
        fought = _having(pairs, [_first_of(runs, kind, record["seed"]) for record, _ in pairs])
        ends = [_stopped(control, record, quality) for (record, _), control in fought]
        if fought:
            found.append(_duel(label, kind, [pair for pair, _ in fought], ends, quality))
    return found


def _having(
    pairs: Sequence[tuple[Record, Record]], controls: Sequence[Record | None]
) -> list[tuple[tuple[Record, Record], Record]]:
    """Returns the pairs that have a control, each with it; none where it was run for less than half and too few seeds.

    A plain run that stands for a control is no run of it. It counts where all pairs have one or the other.
    """
    found = [(pair, control) for pair, control in zip(pairs, controls) if control is not None]
    run = sum(control is not plain for (_, plain), control in found)
    return found if len(found) == len(pairs) or run >= min(ENOUGH_SEEDS, len(pairs) / 2) else []


def strongest(fought: Sequence[Duel]) -> Duel:
    """The duel with the control whose mean quality is the best; a control that diverged is none."""
    return min(fought, key=lambda duel: math.inf if duel.gain.diverged else duel.gain.mean)


def stopping_is_as_good(policy: Row, fought: Sequence[Duel]) -> bool:
    """Whether the policy neither beats stopping at its own time nor is ahead of it by the noise of plain runs. One
    seed tells nothing."""
    (duel,) = (duel for duel in fought if duel.control == STOP)
    if policy.noise is None or duel.gain.diverged or duel.gain.verdict is Verdict.BEATS:
        return False
    return duel.gain.mean < policy.noise


def between_evaluations(runs: Group) -> float:
    """How far apart the plain runs' evaluations are, as a share of the run."""
    return statistics.fmean(1 / len(record["curve"]) for record in runs.plain.values())


def _control_of(runs: Group, kind: Kind, record: Record, plain: Record) -> Record | None:
    """The plain run where the policy's run saved nothing; None where the control was not run."""
    share = control_share(record["seconds"] / plain["seconds"])
    if share >= 1:
        return plain
    names = [kind.value]
    if any(_first_of(runs, kind.value, seed) for seed in runs.plain):
        names += [_STANDS_FOR.get(kind.value, kind.value)]
    found = (runs.others.get(f"{name} {share:.2f}", {}).get(record["seed"]) for name in names)
    return next((control for control in found if control is not None), None)


def _first_of(runs: Group, kind: str, seed: int) -> Record | None:
    """A run of this kind and seed."""
    return next((seeds[seed] for seeds in runs.others.values() if seed in seeds and seeds[seed]["kind"] == kind), None)


def _stopped(control: Record, record: Record, quality: Quality) -> tuple[float, float]:
    """The score and the seconds of a control that is stopped when the record's training was over."""
    seconds = min(record["seconds"], control["seconds"])
    return quality_at(control, quality, seconds), seconds


def _duel(
    label: str,
    control: str,
    pairs: Sequence[tuple[Record, Record]],
    ends: Sequence[tuple[float, float]],
    quality: Quality,
) -> Duel:
    """`ends`: the control's score and seconds for each of the pairs."""
    gains = [quality.gain(record["final"], score) for (record, _), (score, _) in zip(pairs, ends)]
    own = [record["seconds"] / plain["seconds"] for record, plain in pairs]
    controls = [seconds / plain["seconds"] for (_, plain), (_, seconds) in zip(pairs, ends)]
    relative = _relative(gains, pairs, quality)
    return Duel(label, control, Spread.of(gains), relative, Spread.of(own), Spread.of(controls))


def _relative(gains: Sequence[float], pairs: Sequence[tuple[Record, Record]], quality: Quality) -> Spread | None:
    """Gains as shares of the plain runs' quality; None without any."""
    return Spread.of([gain / abs(quality.scale * plain["final"]) for gain, (_, plain) in zip(gains, pairs)])


def difference(runs: Group, label: str, other: str, quality: Quality) -> Spread | None:
    """Quality of one label over another's as a share of the plain run's, over the seeds that have both; None without
    any."""
    others = runs.others.get(other, {})
    pairs = [(record, plain) for record, plain in runs.pairs(label) if record["seed"] in others]
    gains = [quality.gain(record["final"], others[record["seed"]]["final"]) for record, _ in pairs]
    return _relative(gains, pairs, quality)


def other_scores(runs: Group, label: str, quality: Quality) -> dict[str, tuple[float, Spread]]:
    """The scores at the end beside the quality, by name: the mean over the seeds that have the plain run, too, and the
    differences to it, in the score's own unit. Those that not all of the records have are left out."""
    ends = [(record["curve"][-1], plain["curve"][-1]) for record, plain in runs.pairs(label)]
    names = [name for name in ends[0][0] if name not in (*_NO_SCORES, quality.name)] if ends else []
    return {
        name: (
            statistics.fmean(end[name] for end, _ in ends),
            Spread.of([end[name] - plain[name] for end, plain in ends]),
        )
        for name in names
        if all(name in end for pair in ends for end in pair)
    }


def _constants_of_all(pairs: Sequence[tuple[Record, Record]]) -> str:
    found = list(dict.fromkeys(constants_in_words(record) for record, _ in pairs))
    return ", ".join(text or "its own" for text in found) if any(found) else ""


def _account(pairs: Sequence[tuple[Record, Record]]) -> float | None:
    shares = []
    for record, plain in pairs:
        summary = record["summary"] or {}
        if summary.get("saved_seconds") is None or not isinstance(summary.get("spent_seconds"), Mapping):
            return None
        shares.append((summary["saved_seconds"] - sum(summary["spent_seconds"].values())) / plain["seconds"])
    return statistics.fmean(shares)


def _processor(pairs: Sequence[tuple[Record, Record]]) -> Spread | None:
    """Processor time of a rank, with its share of the cache's, over that of the plain run."""
    if not all("processor_seconds" in record for pair in pairs for record in pair):
        return None

    def cost(record: Record) -> float:
        return record["processor_seconds"] + (record.get("cache") or {}).get("processor_seconds", 0.0) / record["ranks"]

    return Spread.of([cost(record) / cost(plain) for record, plain in pairs])


def _watching(pairs: Sequence[tuple[Record, Record]]) -> float | None:
    shares = []
    for record, plain in pairs:
        spent = (record["summary"] or {}).get("spent_seconds")
        own_steps = record["steps"] - record["first_step"]
        if not isinstance(spent, Mapping) or "hooks" not in spent or own_steps <= 0:
            return None
        a_step = (spent["hooks"] + spent.get("agreement", 0.0)) / own_steps
        shares.append(a_step * record["first_step"] / plain["seconds"])
    return statistics.fmean(shares)


def _reached(pairs: Sequence[tuple[Record, Record]], quality: Quality, allowance: float) -> Spread | None:
    """Time to the plain run's final quality, less `allowance` in its unit, over the plain run's own."""
    ratios = []
    for record, plain in pairs:
        worse = allowance / quality.scale * (-1 if quality.higher_is_better else 1)
        target = plain["final"] + worse
        own, of_plain = time_to(record, quality, target), time_to(plain, quality, target)
        if own is not None and of_plain:
            ratios.append(own / of_plain)
    return Spread.of(ratios)
