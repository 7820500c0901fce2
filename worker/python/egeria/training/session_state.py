"""This file puts what a session has done into a checkpoint, and into words."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from typing import Any

from egeria import _native
from egeria.errors import EgeriaError
from egeria.freeze.switcher import Switch

STATE_VERSION = 1


def read_state(state: Any) -> tuple[int, int, int, list[Switch]]:
    """(step, frozen prefix, applied plan, switches) of what state_dict() gave."""
    try:
        if int(state.get("version", STATE_VERSION)) > STATE_VERSION:
            raise EgeriaError(
                "CHECKPOINT_MISMATCH",
                "the state was written by a newer egeria; install that one, "
                "or resume without the Egeria part of the checkpoint",
            )
        numbers = [int(state.get(name, 0)) for name in ("step", "frozen_prefix", "applied_plan")]
        switches = [
            Switch(int(step), int(prefix), bool(unfreeze), bool(identical))
            for step, prefix, unfreeze, identical in state.get("switches", [])
        ]
    except (AttributeError, TypeError, ValueError):
        raise EgeriaError("CHECKPOINT_MISMATCH", "this is no state of a session; load what state_dict() gave") from None
    if min(numbers) < 0:
        raise EgeriaError(
            "CHECKPOINT_MISMATCH", f"the state has negative numbers ({numbers}); load what state_dict() gave"
        )
    return numbers[0], numbers[1], numbers[2], switches


def namespace_in(state: dict[str, Any]) -> str | None:
    """The namespace of the cache, a UUID in lower case; None where the state has none, as those of older versions."""
    try:
        return str(uuid.UUID(state.get("cache_namespace")))
    except (AttributeError, TypeError, ValueError):
        return None


def rate_sum_in(state: dict[str, Any]) -> float | None:
    """LearningRates.sum; None where the state has none that could be, as those of older versions."""
    try:
        value = float(state["learning_rate_sum"])
    except (KeyError, TypeError, ValueError):
        return None
    return value if 0 <= value < math.inf else None


def saved_before(step: int, switches: Sequence[Switch], shares: Sequence[float], total_steps: int | None) -> float:
    """The part of a training's time, 0..1, that frozen layer modules saved before `step`.

    Args:
      shares: of the modules, see StepShares.known; all 0: not known.
      total_steps: of the whole training; None: not known, nor is what was saved.
    """
    changes = [(switch.step, switch.frozen_prefix) for switch in switches]
    return _native.saved_before(step, changes, len(shares), list(shares), total_steps or 0)


def summary_line(numbers: dict[str, Any]) -> str:
    """What Session.summary() says, for a person."""
    saved = numbers["time_saved_share"]
    own_time = "" if saved is None else f", Egeria's own time about {abs(100 * saved):.0f} %"  # where nothing is saved
    if numbers["observe"]:
        return f"egeria: {numbers['steps']:,} steps observed, nothing was frozen{own_time}"
    parts = [
        f"egeria: {numbers['steps']:,} steps",
        f"frozen share {100 * numbers['frozen_share']:.0f} %",
        _count(numbers["freezes"], "freeze"),
        _count(numbers["unfreezes"], "unfreeze"),
    ]
    if not numbers["ranks_identical"]:
        parts.append("THE RANKS' PARAMETERS DIFFERED after a switch")
    elif numbers["ranks"] > 1 and numbers["freezes"] + numbers["unfreezes"] > 0:
        parts.append(f"{numbers['ranks']} ranks identical")
    if saved is not None:
        froze = numbers["freezes"] > 0 or numbers["frozen_share"] > 0
        parts.append(
            f"time saved about {100 * saved:.0f} % (estimated from measured step times)"
            if froze
            else f"nothing froze{own_time}"
        )
    cache = numbers["cache"]
    if cache is not None and cache["passes_skipped"] > 0:
        parts.append(
            f"cache skipped {100 * cache['passes_skipped'] / cache['passes']:.0f} % of the frozen forward "
            f"passes on rank 0, about {cache['saved_seconds']:.0f} s saved"
        )
    elif cache is not None and cache["passes"] > 0:
        parts.append(f"cache {cache['state']}: {cache['reason']}")
    return ", ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
