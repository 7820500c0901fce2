"""Numbers of reports in words: percents with their spread over seeds, qualities in their unit, times."""

from __future__ import annotations

import dataclasses
import math

from bench.harness.comparisons import STOP, Row
from bench.harness.groups import Record
from bench.harness.spread import Spread, Verdict
from bench.harness.task import Quality

# These are the controls in words. Others are called by their names alone.
CONTROLS = {
    STOP: "to stop the plain run",
    "short": "a shorter schedule",
    "drop": "to leave out late steps",
    "drop-raised": "to leave out late steps at raised rates",
    "horizon": "a shorter schedule at its own best rate",
    "decay": "to stop a run with layer-wise rate decay",
}

PERCENTS = (
    "Percents are of the plain run's time and of its final score. Above 0 is better. In brackets stands the 90 % "
    "interval of the mean over the seeds."
)


def percents(spread: Spread, digits: int = 0, sign: bool = False) -> str:
    """A mean share and the 90 % interval of the mean over seeds, as "12 % (10 to 14)"."""
    if spread.diverged:
        return "diverged"
    mean = f"{plain_number(100 * spread.mean, digits, sign)} %"
    half = spread.half_width
    if half is None:
        return f"{mean} (one seed)"
    ends = (plain_number(100 * (spread.mean + side * half), digits) for side in (-1, 1))
    return f"{mean} ({' to '.join(ends)})"


def saved(found: Row, digits: int = 0) -> str:
    """The share of the plain run's time that a run saved; below 0 where it took longer."""
    return percents(found.ratio.complement, digits)


def time_in_words(found: Row) -> str:
    """Returns the predicate of a sentence: "saved 12 % (10 to 14) of the time"."""
    if found.ratio.mean <= 1 or found.ratio.diverged:
        return f"saved {saved(found)} of the time"
    more = dataclasses.replace(found.ratio, mean=found.ratio.mean - 1)
    return f"took {percents(more)} more time"


def better_or_worse(spread: Spread) -> str:
    """A difference of quality in a sentence, as "0.9 % worse (-1.9 to 0.1)" or "the same (-0.2 to 0.3)"."""
    if spread.diverged:
        return "not a number in at least one run"
    size, _, ends = percents(spread, 1).partition(" % ")
    if size == "0.0":
        return f"the same {ends}"
    return f"{size.lstrip('-')} % {'worse' if size.startswith('-') else 'better'} {ends}"


def in_unit(spread: Spread, quality: Quality) -> str:
    """A difference of quality in the quality's unit, as "-0.45 (-0.96 to 0.06)"."""
    return interval(spread, unit_digits(quality))


def interval(spread: Spread, digits: int) -> str:
    """A mean difference and the 90 % interval of the mean over seeds, as "-0.45 (-0.96 to 0.06)"."""
    if spread.diverged:
        return "diverged"
    mean = plain_number(spread.mean, digits, sign=True)
    half = spread.half_width
    if half is None:
        return mean
    ends = (plain_number(spread.mean + side * half, digits) for side in (-1, 1))
    return f"{mean} ({' to '.join(ends)})"


def outcome(verdict: Verdict) -> str:
    """Returns the predicate of a sentence about a policy, in which "it" is the control."""
    return {
        Verdict.BEATS: "beats it",
        Verdict.LOSES: "loses to it",
        Verdict.OPEN: "cannot be told apart from it",
        Verdict.ONE_SEED: "cannot be compared with it, since there is one seed",
        Verdict.DIVERGED: "cannot be compared with it, since a run diverged",
    }[verdict]


def switches_in_words(record: Record) -> str:
    """Returns what was frozen from which step on, as "4 from 20, 5 from 316"; "" where nothing was."""
    return ", ".join(f"{switch['frozen_prefix']} from {switch['step']:,}" for switch in record["switches"])


def seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def unit_digits(quality: Quality) -> int:
    return 2 if quality.scale == 100 else 4


def plain_number(value: float, digits: int, sign: bool = False) -> str:
    """Without a minus before what is rounded to 0."""
    if not math.isfinite(value):
        return str(value)
    rounded = round(value, digits) + 0.0
    return f"{rounded:{'+' if sign and rounded > 0 else ''}.{digits}f}"
