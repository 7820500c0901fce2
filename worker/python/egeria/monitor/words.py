"""The numbers of a job as a person reads them."""

from __future__ import annotations

from typing import Any

Job = dict[str, Any]


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if abs(value) < 0.05:
        return "0.0 s"
    if abs(value) < 100:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if abs(value) < 6000 else f"{value / 3600:.1f} h"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def size(value: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def state(job: Job) -> str:
    if job["phase"] != "running":
        return job["phase"]
    for word, holds in (("blocked", job["blocked"]), ("paused", job["paused"]), ("observing", job["observing"])):
        if holds:
            return f"running, {word}"
    return "running"


def steps(job: Job) -> str:
    return f"{job['step']:,} of {job['total_steps']:,}" if job["total_steps"] else f"{job['step']:,}"


def net(job: Job) -> float | None:
    return job["saved_seconds"] - job["spent_seconds"] if "saved_seconds" in job else None


def frozen(job: Job) -> str:
    return f"{job['applied_prefix']} of {job['modules']} ({100 * job['frozen_parameters_ratio']:.1f} %)"


def interval(module: dict[str, Any]) -> str:
    """The signal-to-noise ratio with its interval."""
    if "snr" not in module:
        return "–"
    return f"{number(module['snr'])} ({number(module['snr_lower'])}..{number(module['snr_upper'])})"


def sentences(job: Job) -> list[str]:
    """Says in words what a person should know of the job."""
    say = []
    if job["phase"] == "finished":
        say.append("The training has finished.")
    elif job["phase"] == "silent":
        say.append("No rank is connected. Training may go on without the controller; what is frozen stays frozen.")
    elif job["connected_ranks"] < job["ranks"]:
        missing = job["ranks"] - job["connected_ranks"]
        say.append(
            f"{missing} of {job['ranks']} ranks are not connected. Nothing more is frozen or unfrozen until all are."
        )
    if job["blocked"] and job["phase"] != "finished":
        say.append(f"Nothing more can freeze: {job['blocked']}.")
    if job["paused"]:
        say.append("An operator has paused the policy.")
    if job["observing"]:
        say.append("The job is only observed: decisions change nothing.")
    if job["bootstrapping"]:
        say.append("The loss has not settled yet. Nothing freezes before it has.")
    return say or ["Nothing is in the way."]


_CACHE = {
    "unfrozen": "Nothing is frozen, so that there is nothing to keep.",
    "unknown": "It is not known yet whether samples come again.",
    "trying": "It is being tried whether the cache pays.",
    "on": "The forward pass of frozen modules is skipped where the cache has what they give.",
    "off": "The cache does not pay, and is not asked.",
    "refused": "The frozen modules cannot be skipped.",
}


def cache(job: Job) -> str:
    """Says what the cache of frozen activations does for rank 0."""
    told = job.get("cache")
    if told is None:
        return "Cache: rank 0 has told of none."
    say = ["Cache:", _CACHE.get(told["state"], told["state"])]
    if told["reason"]:
        say.append(f"{told['reason'][:1].upper()}{told['reason'][1:]}.")
    if (asked := told["hits"] + told["computed"]) > 0:
        say.append(
            f"{told['hits']:,} of {asked:,} samples were skipped, {size(told['bytes_read'])} read, and "
            f"{seconds(told['saved_seconds'])} saved by that."
        )
    return " ".join(say)
