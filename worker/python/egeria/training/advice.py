"""These sentences tell a user at the start what Egeria lacks in this training, for which it freezes later or never."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from egeria import _native
from egeria.config import Config
from egeria.model.lr_schedules import unwrapped
from egeria.training.link_target import LinkTarget


def without_controller(config: Config) -> str | None:
    """Where nobody has said that there is to be no controller."""
    if config.controller is not None or os.environ.get("EGERIA_CONTROLLER") or config.plans:
        return None
    return (
        "there is no controller, so nothing is measured and nothing freezes; start the script by egeria-run, or set "
        "EGERIA_CONTROLLER to the address of one ('none' says that there is to be none)"
    )


def of_start(config: Config, is_first: bool) -> Iterator[str]:
    """When a session is attached; `is_first`: on rank 0."""
    for unknown in _native.unknown_variables():
        yield f"[UNKNOWN_VARIABLE] {unknown}"
    if is_first and (text := without_controller(config)) is not None:
        yield text


def of_link(target: LinkTarget, scheduler: Any) -> Iterator[str]:
    """Before the link starts. `scheduler` is as attach() was given it."""
    config = target.config
    waits = config.policy in ("plasticity", "actnorm") and config.options.get("bootstrap", True)
    if waits and not target.losses_reported:
        yield (
            "no loss is reported, so the bootstrapping stage lasts a fixed number of steps; call "
            "session.step(loss) after each optimizer.step()"
        )
    if config.policy == "auto" and scheduler is not None and target.total_steps and not target.planned_rates:
        kind = type(unwrapped(scheduler, "scheduler")).__name__
        yield (
            f"the rates to come cannot be read from the scheduler, a {kind}, so 'auto' "
            "bounds them by the present rate and freezes later than it could; give attach() one of "
            "torch.optim.lr_scheduler that is stepped once for each optimizer step"
        )
