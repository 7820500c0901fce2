"""An oracle: it knows from another seed when the activations of each layer module have become what they stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TOLERANCE = 0.02  # the CKA by which a curve that counts as flat still moves


def flat_since(steps: Sequence[int], values: Sequence[float], begin: int, end: int, tolerance: float) -> int:
    """The first checkpoint after step `begin` from which to `end` all values are within `tolerance` of the last."""
    inside = [(step, value) for step, value in zip(steps, values) if begin < step <= end]
    since, last = inside[-1]
    for step, value in reversed(inside):
        if abs(value - last) > tolerance:
            break
        since = step
    return since


def schedule(measured: Mapping[str, Any], phases: Sequence[tuple[int, int]], tolerance: float) -> list[dict[str, Any]]:
    """Entries for the policy `schedule`: in each phase of the learning rate a layer module freezes once its CKA to the
    final model and those of all in front of it are flat; at the next drop all thaw. The last module never freezes."""
    steps, total = measured["steps"], measured["steps"][-1]
    curves = list(zip(*measured["cka"]))[:-1]
    entries: list[dict[str, Any]] = []
    for begin, end in phases:
        since = [flat_since(steps, curve, begin, end, tolerance) for curve in curves]
        if entries and entries[-1]["frozen_prefix"] > 0:
            entries.append({"fraction": round(begin / total, 6), "frozen_prefix": 0})
        prefix = 0
        for step in (step for step in steps if begin < step < end):
            flat = next((index for index, first in enumerate(since) if first > step), len(since))
            if flat > prefix:
                prefix = flat
                entries.append({"fraction": round(step / total, 6), "frozen_prefix": prefix})
    return entries
