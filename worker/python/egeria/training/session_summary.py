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
        "frozen_by_script": training.frozen_by_script,
        "frozen_share": training.ledger.frozen_share,
        "freezes": _freezes(training),
        "unfreezes": _unfreezes(training),
        "switches_undone": training.switcher.undone,
        "ranks": training.switcher.ranks,
        "ranks_identical": all(switch.ranks_identical for switch in training.switches),
        "saved_seconds": _saved_seconds(training),
        "spent_seconds": training.ledger.spent_seconds(),
        "time_saved_share": training.ledger.net_share(),
        "seconds_per_step": training.ledger.seconds_per_step(),
        "observe": training.config.observe,
        "own_controller": training.daemons.are_own,
        "cache": training.cache.caching.summary() if training.cache.caching is not None else None,
        "frozen_forward": training.forward.summary(),
        "advice": training.link.advice or _advice_on_the_cache(training),
    }


def numbers_of_nothing(observe: bool) -> dict[str, Any]:
    """The numbers of a session that is switched off."""
    ledger = TimeLedger()
    return {
        **dict.fromkeys(("steps", "modules", "frozen_prefix", "frozen_by_script"), 0),
        **dict.fromkeys(("freezes", "unfreezes", "switches_undone"), 0),
        "frozen_share": ledger.frozen_share,
        "ranks": 1,
        "ranks_identical": True,
        "saved_seconds": ledger.saved_seconds(),
        "spent_seconds": ledger.spent_seconds(),
        "time_saved_share": ledger.net_share(),
        "seconds_per_step": ledger.seconds_per_step(),
        "observe": observe,
        "own_controller": False,
        "cache": None,
        "frozen_forward": None,
        "advice": "",
    }


def scalars_of(training: FollowedTraining) -> dict[str, float]:
    """Numbers of now, for a logger."""
    scalars = {
        "egeria/frozen_prefix": float(training.frozen_prefix),
        "egeria/frozen_by_script": float(training.frozen_by_script),
        "egeria/frozen_share": training.frozen_share,
        "egeria/freezes": float(_freezes(training)),
        "egeria/unfreezes": float(_unfreezes(training)),
    }
    saved = _saved_seconds(training)
    if saved is not None:
        spent = sum(training.ledger.spent_seconds().values())
        scalars |= {
            "egeria/saved_seconds": saved,
            "egeria/spent_seconds": spent,
            "egeria/net_saved_seconds": saved - spent,
        }
    if training.cache.caching is not None:
        cache = training.cache.caching.summary()
        scalars["egeria/cache_passes_skipped"] = float(cache["passes_skipped"])
        scalars["egeria/cache_saved_seconds"] = cache["saved_seconds"]
    return scalars


def progress_of(training: FollowedTraining) -> str:
    """The line that Session.progress() documents."""
    trains, script, prefix = training.switcher.trains, training.frozen_by_script, training.frozen_prefix
    counts = [index < script or trained for index, trained in enumerate(trains)]
    line = f"frozen {sum(counts[: max(script, prefix)])}/{sum(counts)}"
    if script > 0:
        line += ", by the script" if prefix <= script else f", {script} by the script"
    net = scalars_of(training).get("egeria/net_saved_seconds")
    return line + (f", net {net:.1f} s saved" if net is not None else "")


def _advice_on_the_cache(training: FollowedTraining) -> str:
    if training.frozen_by_script == 0 or not training.cache.lacks_ids:
        return ""
    return (
        "the layers that the script froze were computed in every step; with loader = egeria.data.wrap(loader) they are "
        "computed once for each sample (docs/guides/frozen-backbones.md)"
    )


def _saved_seconds(training: FollowedTraining) -> float | None:
    """The steps' times tell it where Egeria has frozen something. Where only the script has, the cache has saved it."""
    saved = training.ledger.saved_seconds()
    if training.switches or training.cache.caching is None:
        return saved
    cache = training.cache.caching.summary()
    return (saved or 0.0) + cache["saved_seconds"] + cache["spent_seconds"]


def why_idle(training: FollowedTraining) -> str:
    """Says why nothing froze; empty where nobody knows."""
    config = training.config
    if training.daemons.trouble is not None:
        return training.daemons.trouble
    if config.policy == "none" and not config.plans:
        return "the policy 'none' never freezes"
    if training.link.why_idle or config.address() is None:
        return training.link.why_idle
    if training.has_steps_to_come():
        return f"the training ended before the last of {training.total_steps():,} steps"
    return f"the policy '{config.policy}' had frozen nothing by then"


def summary_line(numbers: dict[str, Any], why: str, whose: str = "") -> str:
    """One line for a person, and one with advice where there is some, from the numbers of Session.summary(), and why
    nothing froze; see TellOnce.whose."""
    steps, spent = f"egeria: {whose}{_count(numbers['steps'], 'step')}", sum(numbers["spent_seconds"].values())
    if numbers["own_controller"]:
        steps += " with a controller of the job's own"
    took = f"Egeria took {_seconds(spent)}"
    if numbers["observe"]:
        return f"{steps} observed, nothing was frozen, {took}"
    froze = numbers["freezes"] + numbers["unfreezes"] > 0 or numbers["frozen_share"] > 0
    parts = [steps]
    if froze:
        parts.append(f"frozen share {100 * numbers['frozen_share']:.0f} %")
        parts += [_count(numbers["freezes"], "freeze"), _count(numbers["unfreezes"], "unfreeze")]
    if not numbers["ranks_identical"]:
        parts.append("THE RANKS' PARAMETERS DIFFERED after a switch, or could not be compared")
    elif numbers["ranks"] > 1 and froze:
        parts.append(f"{numbers['ranks']} ranks identical")
    saved, net = numbers["saved_seconds"], numbers["time_saved_share"]
    if not froze:
        parts.append(took)
        script = numbers["frozen_by_script"]
        what = (
            f"the script froze {script} of {numbers['modules']} layer modules, Egeria none"
            if script
            else "nothing froze"
        )
        parts.append(f"{what}{': ' if why else ''}{why}")
    elif saved is None or net is None:
        parts.append(f"{took}, the saved time is unknown")
    else:
        share = f" ({100 * net:.0f} % of the time)" if net > 0 else ""
        parts.append(f"saved about {_seconds(saved)}, {took}{share}")
    form = numbers["frozen_forward"]
    if form is not None and form["calls"] > 0:
        difference = form["difference"]
        shown = "" if difference is None else f", {difference:.1g} of {form['of']:.2g} from exact"
        parts.append(f"frozen layers ran {form['form']}{shown}")
    cache = numbers["cache"]
    if cache is not None and cache["passes_skipped"] > 0:
        parts.append(
            f"cache skipped {100 * cache['passes_skipped'] / cache['passes']:.0f} % of the frozen forward "
            f"passes on rank 0, about {cache['saved_seconds']:.0f} s saved"
        )
    return ", ".join(parts) + (f"\negeria: advice: {numbers['advice']}" if numbers["advice"] else "")


def _seconds(seconds: float) -> str:
    return (
        f"{seconds:,.0f} s" if abs(seconds) >= 100 else f"{seconds:.1f} s" if abs(seconds) >= 1 else f"{seconds:.2f} s"
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _freezes(training: FollowedTraining) -> int:
    return _switches(training, unfreeze=False)


def _unfreezes(training: FollowedTraining) -> int:
    return _switches(training, unfreeze=True)


def _switches(training: FollowedTraining, unfreeze: bool) -> int:
    """Those that changed a layer module with something to train."""
    trains = training.switcher.trains
    prefixes = [0, *(switch.frozen_prefix for switch in training.switches)]
    changed = [any(trains[min(pair) : max(pair)]) for pair in zip(prefixes, prefixes[1:])]
    return sum(is_real and switch.unfreeze == unfreeze for is_real, switch in zip(changed, training.switches))
