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


def cache(job: Job) -> str:
    """Says what the cache of frozen activations does for rank 0."""
    say = ["Cache:", *job["cache_words"]]
    told = job.get("cache")
    if told is not None and (asked := told["hits"] + told["computed"]) > 0:
        say.append(
            f"{told['hits']:,} of {asked:,} samples were skipped, {size(told['bytes_read'])} read, and "
            f"{seconds(told['saved_seconds'])} saved by that."
        )
    return " ".join(say)
