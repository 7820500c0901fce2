"""This file computes how many more steps a training can make in the time that freezing saves."""

from __future__ import annotations

from collections.abc import Sequence

from egeria import _native
from egeria.config import Config
from egeria.doctor.report import Report, Saving
from egeria.errors import EgeriaError


def reinvest(
    total_steps: int,
    config: Config,
    report: Report | None = None,
    *,
    saving: float | None = None,
    learning_rates: Sequence[float] | None = None,
) -> int:
    """As many steps as, with `config`, are expected to take as long as `total_steps` without Egeria.

        report = egeria.doctor(model, batch, loss_fn)
        steps = egeria.reinvest(steps, config, report)       # before the scheduler is made
        config = dataclasses.replace(config, total_steps=steps)

    With s the expected saving, that is total_steps / (1 - s), rounded down. A clock (the policies "auto", "staged",
    "schedule" and "finetune") says what it will freeze when; by what the report has measured of each prefix that makes
    s, which is 0 where nothing is going to freeze. Other policies decide by what they measure, and need `saving`.

    Args:
      total_steps: of the training without Egeria.
      config: with the policy, its options and the budget.
      report: of egeria.doctor(), with an example batch.
      saving: expected part of the time, 0..1, such as the "time_saved_share" that Session.summary() had after a
        training like this one. None: from the policy and the report.
      learning_rates: of the schedule, in any unit, at evenly spread steps, the first and the last of the training
        included. For "auto", which waits until little is left of them, and for "staged" with "area".

    Raises:
      EgeriaError: [BAD_TOTAL_STEPS], [BAD_SAVING], [BAD_POLICY]; [NO_PLAN] the policy does not say what it will freeze,
        or the report has no times.
    """
    if isinstance(total_steps, bool) or not isinstance(total_steps, int) or total_steps < 1:
        raise EgeriaError("BAD_TOTAL_STEPS", f"total_steps is {total_steps!r}; give the number of optimizer steps")
    if saving is None:
        rates = list(learning_rates or ())
        if report is None or not report.savings:
            raise EgeriaError(
                "NO_PLAN",
                "the saving of a frozen prefix is not known; give the report of egeria.doctor() on an "
                "example batch, or `saving`",
            )
        if config.policy == "auto" and len(rates) < 2:
            raise EgeriaError(
                "NO_PLAN",
                "the policy 'auto' waits until little is left of the learning rate; give `learning_rates`, or `saving`",
            )
        shares = step_shares(report.savings, len(report.modules))
        saving = _native.planned_saving(
            config.policy_json(), total_steps, shares, config.budget or 0.0, rates, report.embedding_prefix
        )
    if not 0 <= saving < 1:
        raise EgeriaError("BAD_SAVING", f"saving is {saving!r}; give a part of the time, from 0 to under 1")
    return _native.reinvested_steps(total_steps, saving)


def step_shares(savings: Sequence[Saving], modules: int) -> list[float]:
    """The part of a step's time that each layer module saves once all before it are frozen, from the times of some
    prefixes; those between are taken to lie on a line. The last module never freezes."""
    points = [(0, 0.0)]
    for saving in (entry for entry in savings if entry.frozen_prefix > 0):
        points.append((saving.frozen_prefix, max(points[-1][1], 1 - saving.ratio)))
    shares = []
    for (begin, low), (end, high) in zip(points, points[1:]):
        shares += [(high - low) / (end - begin)] * (end - begin)
    return shares + [0.0] * (modules - len(shares))
