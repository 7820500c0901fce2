"""These sentences tell a user at the start what Egeria lacks in this training, for which it freezes later or never."""

from __future__ import annotations

from collections.abc import Iterator

from torch.optim.lr_scheduler import ReduceLROnPlateau

from egeria import _native
from egeria.model.schedule_clock import ScheduleClock
from egeria.training.link_target import LinkTarget

# Rates that are to come may be this part of the mean, where `auto` is to freeze: see LateClock.
_HIGH = 0.5


def of_start() -> Iterator[str]:
    """When a session is attached."""
    for unknown in _native.unknown_variables():
        yield f"[UNKNOWN_VARIABLE] {unknown}"


def of_link(target: LinkTarget, schedule: ScheduleClock) -> Iterator[str]:
    """Before the link starts."""
    config = target.config
    waits = config.policy in ("plasticity", "actnorm") and config.options.get("bootstrap", True)
    if waits and not target.losses_reported:
        yield (
            "no loss is reported, so the bootstrapping stage lasts a fixed number of steps; call "
            "session.step(loss) after each optimizer.step()"
        )
    if config.policy == "auto":
        yield from _of_rates(target, schedule)


def _of_rates(target: LinkTarget, schedule: ScheduleClock) -> Iterator[str]:
    """Says where `auto` freezes nothing, or late, because of the learning rates."""
    instead = "or another policy, such as Config(policy='plasticity') or 'finetune' (docs/reference/policies.md)"
    rates, scheduler = target.planned_rates, schedule.scheduler
    if target.rates_of_their_own:
        yield (
            "[RATES_UNKNOWN] an optimizer makes learning rates of its own (lr=None), at which 'auto' freezes nothing; "
            f"give it a learning rate and a schedule, {instead}"
        )
        return
    if rates and rates[-1] > _HIGH * sum(rates) / len(rates):
        yield (
            f"[RATES_STAY_HIGH] the schedule ends at a learning rate of {rates[-1]:.3g}, over half of its mean: layers "
            f"learn until the end, and 'auto' freezes nothing; choose a schedule that falls, {instead}"
        )
    elif scheduler is None:
        given = "scheduler" if target.total_steps else "scheduler and total_steps"
        yield (
            "[RATES_UNKNOWN] attach() was given no scheduler, and at a constant learning rate 'auto' freezes nothing; "
            f"give it the {given} where there is one, {instead}"
        )
    elif isinstance(scheduler, ReduceLROnPlateau):
        yield (
            "[RATES_UNKNOWN] a ReduceLROnPlateau does not tell when it will lower the rate, so 'auto' freezes once the "
            f"rate has fallen far; if that is too late, choose a schedule over the number of steps, {instead}"
        )
    elif not schedule.is_readable:
        yield (
            f"[RATES_UNKNOWN] the rates to come cannot be read from the scheduler, a {type(scheduler).__name__}, so "
            "'auto' bounds them by the present rate and freezes later than it could; give attach() one of "
            "torch.optim.lr_scheduler or of timm"
        )
