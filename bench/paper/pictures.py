"""The pictures of the page."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)
import numpy as np  # noqa: E402

# With a fixed salt the same records give the same file.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "egeria", "font.size": 8})

_FROZEN = "#7fa8d1"


def draw_convergence(file: pathlib.Path, measured: Mapping[str, Any], drops: Sequence[int]) -> None:
    """CKA and PWCCA of each layer module to the final model, over the steps."""
    figure, both = plt.subplots(1, 2, figsize=(7.4, 3.2), sharey=True, layout="constrained")
    for axes, name in zip(both, ("cka", "pwcca")):
        _module_lines(axes, measured, measured[name], drops)
        axes.set_title(name.upper(), fontsize=8)
    both[0].set_ylabel("similarity to the final model")
    _legend(both[1])
    _save(figure, file)


def draw_plasticity(file: pathlib.Path, measured: Mapping[str, Any], moving: str, drops: Sequence[int]) -> None:
    """SP loss of each layer module to a fixed and to a moving reference, over the steps."""
    figure, both = plt.subplots(1, 2, figsize=(7.4, 3.2), sharey=True, layout="constrained")
    for axes, name in zip(both, ("fixed", moving)):
        values = np.array(measured["plasticity"][name])
        _module_lines(axes, measured, np.where(values > 0, values, np.nan), drops)
        axes.set_yscale("log")
        axes.set_title(f"{name.partition(' ')[0]} reference", fontsize=8)
    both[0].set_ylabel("plasticity (SP loss)")
    _legend(both[1])
    _save(figure, file)


def draw_matched_time(
    file: pathlib.Path, curve: Sequence[tuple[float, float]], points: Sequence[tuple[str, str, float, float]]
) -> None:
    """Final quality over plain against time; `curve`: the plain run stopped there; `points`: label, marker,
    time over plain, gain."""
    figure, axes = plt.subplots(figsize=(5.2, 3.2), layout="constrained")
    axes.axhline(0, color="0.7", linewidth=0.8)
    axes.plot(*zip(*curve), color="0.5", linewidth=1.0, label="plain, stopped")
    for colour, (label, marker, ratio, gain) in zip(plt.get_cmap("tab10").colors * 4, points):
        axes.plot([ratio], [gain], marker, color=colour, markersize=6, label=label)
    lowest = min([gain for *_, gain in points], default=-5.0)
    axes.set_xlim(min([0.5, *(ratio for _, _, ratio, _ in points)]) - 0.03, None)
    axes.set_ylim(min(lowest, -5.0) - 2, None)
    axes.set_xlabel("time over the plain run's, by the cost of steps")
    axes.set_ylabel("accuracy over plain, points")
    axes.legend(fontsize=7, loc="lower right")
    _save(figure, file)


def draw_step_shares(file: pathlib.Path, rows: Sequence[Mapping[str, float]]) -> None:
    """The parts of a step by frozen prefix, over a step with nothing frozen."""
    whole = sum(rows[0][part] for part in ("forward", "backward", "update"))
    prefixes = [row["frozen_prefix"] for row in rows]
    parts = (
        ("forward, frozen (the cache saves it)", [row["frozen_forward"] for row in rows], _FROZEN),
        ("forward, active", [row["forward"] - row["frozen_forward"] for row in rows], "#9ccc9c"),
        ("backward", [row["backward"] for row in rows], "#f2a65a"),
        ("update", [row["update"] for row in rows], "0.6"),
    )
    figure, axes = plt.subplots(figsize=(5.2, 3.0), layout="constrained")
    below = np.zeros(len(rows))
    for label, values, colour in parts:
        heights = np.array(values) / whole
        axes.bar(prefixes, heights, bottom=below, color=colour, label=label)
        below += heights
    axes.set_xticks(prefixes)
    axes.set_xlabel("frozen layer modules")
    axes.set_ylabel("of a step with nothing frozen")
    axes.legend(fontsize=7)
    _save(figure, file)


def draw_timelines(file: pathlib.Path, runs: Mapping[str, Mapping[str, Any]], drops: Sequence[int]) -> None:
    """The frozen prefix of each run over its steps."""
    figure, axes = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
    for colour, (label, record) in zip(plt.get_cmap("tab10").colors * 4, runs.items()):
        switches = [{"step": 0, "frozen_prefix": 0}, *record["switches"]]
        steps = [*(switch["step"] for switch in switches), record["steps"]]
        prefixes = [*(switch["frozen_prefix"] for switch in switches), switches[-1]["frozen_prefix"]]
        axes.step(steps, prefixes, where="post", color=colour, linewidth=1.1, label=label)
    _mark(axes, drops)
    axes.set_xlabel("step")
    axes.set_ylabel("frozen layer modules")
    axes.legend(fontsize=7)
    _save(figure, file)


def _module_lines(axes: plt.Axes, measured: Mapping[str, Any], values: Any, drops: Sequence[int]) -> None:
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.95, len(measured["modules"])))
    for index, (name, colour) in enumerate(zip(measured["modules"], colours)):
        axes.plot(measured["steps"], [row[index] for row in values], color=colour, linewidth=1.0, label=name)
    _mark(axes, drops)
    axes.set_xlabel("step")


def _mark(axes: plt.Axes, drops: Sequence[int]) -> None:
    """The drops of the learning rate."""
    for step in drops:
        axes.axvline(step, color="0.7", linewidth=0.8, linestyle=":")


def _legend(axes: plt.Axes) -> None:
    axes.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _save(figure: plt.Figure, file: pathlib.Path) -> None:
    figure.savefig(file, format="svg", metadata={"Date": None})
    plt.close(figure)
