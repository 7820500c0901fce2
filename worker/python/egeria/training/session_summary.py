"""This file puts what a session has done into numbers and into words."""

from __future__ import annotations

from typing import Any

from egeria.time_ledger import TimeLedger
from egeria.training.followed_training import FollowedTraining


def numbers_of(training: FollowedTraining) -> dict[str, Any]:
    """The numbers that Session.summary() documents."""
    return {
        "steps": training.steps,
        "modules": len(training.switcher.modules),
        "frozen_prefix": training.frozen_prefix,
        "frozen_share": training.ledger.frozen_share,
        "freezes": _freezes(training),
        "unfreezes": _unfreezes(training),
        "switches_undone": training.switcher.undone,
        "ranks": training.switcher.ranks,
        "ranks_identical": all(switch.ranks_identical for switch in training.switches),
        "saved_seconds": training.ledger.saved_seconds(),
        "spent_seconds": training.ledger.spent_seconds(),
        "time_saved_share": training.ledger.net_share(),
        "seconds_per_step": training.ledger.seconds_per_step(),
        "observe": training.config.observe,
        "cache": training.caching.summary() if training.caching is not None else None,
    }


def numbers_of_nothing(observe: bool) -> dict[str, Any]:
    """The numbers of a session that is switched off."""
    ledger = TimeLedger()
    return {
        **dict.fromkeys(("steps", "modules", "frozen_prefix", "freezes", "unfreezes", "switches_undone"), 0),
        "frozen_share": ledger.frozen_share,
        "ranks": 1,
        "ranks_identical": True,
        "saved_seconds": ledger.saved_seconds(),
        "spent_seconds": ledger.spent_seconds(),
        "time_saved_share": ledger.net_share(),
        "seconds_per_step": ledger.seconds_per_step(),
        "observe": observe,
        "cache": None,
    }


def scalars_of(training: FollowedTraining) -> dict[str, float]:
    """Numbers of now, for a logger."""
    scalars = {
        "egeria/frozen_prefix": float(training.frozen_prefix),
        "egeria/frozen_share": training.frozen_share,
        "egeria/freezes": float(_freezes(training)),
        "egeria/unfreezes": float(_unfreezes(training)),
    }
    saved = training.ledger.saved_seconds()
    if saved is not None:
        spent = sum(training.ledger.spent_seconds().values())
        scalars |= {
            "egeria/saved_seconds": saved,
            "egeria/spent_seconds": spent,
            "egeria/net_saved_seconds": saved - spent,
        }
    if training.caching is not None:
        cache = training.caching.summary()
        scalars["egeria/cache_passes_skipped"] = float(cache["passes_skipped"])
        scalars["egeria/cache_saved_seconds"] = cache["saved_seconds"]
    return scalars


def summary_line(numbers: dict[str, Any], note: str | None) -> str:
    """One line for a person, from the numbers of Session.summary(), and a `note` of why nothing could freeze."""
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
        parts.append("THE RANKS' PARAMETERS DIFFERED after a switch, or could not be compared")
    elif numbers["ranks"] > 1 and numbers["freezes"] + numbers["unfreezes"] > 0:
        parts.append(f"{numbers['ranks']} ranks identical")
    if saved is not None:
        froze = numbers["freezes"] > 0 or numbers["frozen_share"] > 0
        parts.append(
            f"time saved about {100 * saved:.0f} % (estimated from measured step times)"
            if froze
            else f"nothing froze{own_time}"
        )
    if note is not None:
        parts.append(note)
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


def _freezes(training: FollowedTraining) -> int:
    return sum(not switch.unfreeze for switch in training.switches)


def _unfreezes(training: FollowedTraining) -> int:
    return len(training.switches) - _freezes(training)
