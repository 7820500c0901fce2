"""The trainings that both front ends play for the conformance list: the same toy model, data and plans.

The driver of a front end trains each scenario on two ranks and writes FOLDER/rank<r>.json, which has a record under
each scenario's name:

  loss: the loss of each step.
  prefix: the number of frozen layer modules after each step, whoever has frozen them.
  parameters, buffers: after each step, a hash for each layer module.
  switches: [step, frozen prefix, unfreeze, ranks identical] of each switch.
  undone: how many switches a rank could not make.
  gram: by step, the Gram matrix that this rank sent, row by row.
  gradients: by step, {mean_of_squares, square_of_mean, progress, parts, samples} as this rank sent them.
"""

from __future__ import annotations

import dataclasses

STEPS = 24
# The readings that scenarios with `readings` are asked for, at each step.
SAMPLED_MODULE = 1
SAMPLES = 8


@dataclasses.dataclass(frozen=True)
class Scenario:
    """
    Attributes:
      plans: (step, frozen prefix) pairs.
      fails_on: the rank that cannot make the first switch; -1: none.
      resumes_at: after this step everything is saved, taken apart, made anew and restored; 0: never.
      freeze_first: so many layer modules are frozen before the first step, by an option or by the script.
      readings: a controller asks for samples and for gradients at each step; nothing freezes.
    """

    name: str
    plans: tuple[tuple[int, int], ...] = ()
    fails_on: int = -1
    resumes_at: int = 0
    freeze_first: int = 0
    readings: bool = False


BEGUN = 2
PLANS = ((4, 2), (10, 1), (14, 3), (19, 0))

SCENARIOS = (
    Scenario("plain"),
    Scenario("switches", plans=PLANS),
    Scenario("failing", plans=PLANS, fails_on=1),
    Scenario("resumed", plans=PLANS, resumes_at=7),
    Scenario("read", readings=True),
    Scenario("begun", plans=PLANS, freeze_first=BEGUN),
)
