"""This file compares the losses of two trainings of the same steps, one of which freezes."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Sequence

from egeria.errors import EgeriaError

# A frozen training whose loss is higher than the plain one's by more than this falls behind. The fine-tuning in
# docs/results that lost much quality was 13 to 18 % above after a fifth of the steps, and another was below.
LIMIT = 0.05
# No fewer steps are compared.
_LEAST = 5
# The normal distribution's, for an interval that holds nine tenths.
_NINE_TENTHS = 1.645


@dataclasses.dataclass(frozen=True)
class Reported:
    """A training's losses and freezes.

    Attributes:
      losses: by step, counted from 1.
      modules: the number of layer modules.
      switches: (step, frozen layer modules since).
    """

    losses: dict[int, float]
    modules: int
    switches: Sequence[tuple[int, int]]

    @classmethod
    def read(cls, file: pathlib.Path) -> Reported:
        """Reads what a Trial has written."""
        found = json.loads(file.read_text(encoding="utf-8"))
        losses = {int(step): loss for step, loss in found["losses"].items()}
        return cls(losses, found["modules"], [tuple(switch) for switch in found["switches"]])


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The mean losses of the last steps of both trainings.

    Attributes:
      first, last: the steps that are compared.
      plain, frozen: the mean losses.
      over: the frozen one over the plain one, less 1.
      least, most: the bounds of a 90 % interval of `over`, by how much it differs from step to step.
      prefix: frozen layer modules at the end, of `modules`.
      since: the step of the first freeze.
    """

    first: int
    last: int
    plain: float
    frozen: float
    over: float
    least: float
    most: float
    prefix: int
    modules: int
    since: int

    @property
    def falls_behind(self) -> bool:
        """Whether the frozen training's loss is clearly higher."""
        return self.over > LIMIT and self.least > 0


def compare(plain: Reported, frozen: Reported) -> Comparison:
    """Compares the later half of the steps, or what of it comes behind the first freeze.

    Raises:
      EgeriaError: [NO_LOSSES], [NOTHING_FROZE], [TOO_FEW_STEPS], [BAD_LOSSES]: nothing can be said.
    """
    if not plain.losses or not frozen.losses:
        raise EgeriaError("NO_LOSSES", "the training reports no losses; call session.step(loss) in each step")
    if not frozen.switches:
        raise EgeriaError(
            "NOTHING_FROZE",
            f"nothing froze within {max(frozen.losses)} steps; give more --steps, or another policy: "
            "Config(pretrained=True) freezes early",
        )
    since = frozen.switches[0][0]
    last = min(max(plain.losses), max(frozen.losses))
    first = max(last // 2, since) + 1
    steps = [step for step in range(first, last + 1) if step in plain.losses and step in frozen.losses]
    if len(steps) < _LEAST:
        raise EgeriaError(
            "TOO_FEW_STEPS", f"only {len(steps)} steps come behind the freeze at step {since}; give more --steps"
        )
    mean, other = (statistics.fmean(losses[step] for step in steps) for losses in (plain.losses, frozen.losses))
    if not (math.isfinite(mean) and math.isfinite(other) and mean > 0):
        raise EgeriaError(
            "BAD_LOSSES", f"the mean losses are {mean:.4g} and {other:.4g}; only losses above 0 can be compared"
        )
    spread = statistics.stdev(frozen.losses[step] - plain.losses[step] for step in steps)
    half = _NINE_TENTHS * spread / math.sqrt(len(steps)) / mean
    over = other / mean - 1
    prefix = frozen.switches[-1][1]
    return Comparison(steps[0], steps[-1], mean, other, over, over - half, over + half, prefix, frozen.modules, since)
