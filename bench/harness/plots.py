"""Drawings of a report: quality against time, and what was frozen when."""

from __future__ import annotations

import pathlib
import statistics

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)

from bench.harness.comparisons import RUN_CONTROLS, quality_at, row  # noqa: E402
from bench.harness.groups import Group  # noqa: E402
from bench.harness.records import prefix_share  # noqa: E402
from bench.harness.runs import Kind  # noqa: E402
from bench.harness.task import Quality  # noqa: E402

# With a fixed salt the same records give the same file.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "egeria", "font.size": 8})

_MARKERS = {Kind.POLICY: "o", Kind.EARLY: "X", Kind.DECAY: "P"}
# The part of the plain run, from its end on, in which stopping it is drawn.
_STOPPING = 0.5


def draw_pareto(file: pathlib.Path, runs: Group, quality: Quality) -> None:
    """Each label's mean quality over the plain run's, against its mean share of the plain run's time; thin lines span
    the seeds. The controls of one kind are joined, and a line shows the plain run as it is stopped earlier. Without
    variants."""
    figure, axes = plt.subplots(figsize=(5.2, 3.2), layout="constrained")
    axes.axhline(0, color="0.7", linewidth=0.8)
    axes.plot([100], [0], "*k", markersize=9, label="plain")
    _draw_stopping(axes, runs, quality)
    controls: dict[Kind, list[tuple[float, float]]] = {kind: [] for kind in RUN_CONTROLS}
    colours = iter(plt.get_cmap("tab10").colors * 4)
    for label in runs.others:
        found = row(runs, label, quality)
        if found is None or label in runs.variants:
            continue
        if found.kind in controls:
            controls[found.kind].append((100 * found.ratio.mean, found.gain.mean))
            continue
        colour = "0.4" if found.kind is Kind.EARLY else next(colours)
        axes.plot([100 * found.ratio.mean] * 2, [found.gain.least, found.gain.most], color=colour, linewidth=0.8)
        axes.plot(
            [100 * found.ratio.mean], [found.gain.mean], _MARKERS[found.kind], color=colour, markersize=6, label=label
        )
    for (kind, points), marker in zip(controls.items(), "vsd<>hp"):
        if points:
            axes.plot(
                *zip(*sorted(points)),
                marker + ":",
                color="0.6",
                markersize=4,
                linewidth=0.8,
                label=f"control: {kind.value}",
            )
    axes.set_xlabel("training time, % of the plain run's")
    axes.set_ylabel(f"quality against plain, {quality.unit}")
    axes.legend(fontsize=7, loc="best")
    _save(figure, file)


def _draw_stopping(axes: plt.Axes, runs: Group, quality: Quality) -> None:
    """The mean quality of plain runs that are stopped after a share of their time, over that of whole ones."""
    shares = [1 - _STOPPING * part / 50 for part in range(51)]
    losses = [
        statistics.fmean(
            quality.gain(quality_at(plain, quality, share * plain["seconds"]), plain["final"])
            for plain in runs.plain.values()
        )
        for share in shares
    ]
    axes.plot([100 * share for share in shares], losses, color="0.3", linewidth=1.0, label="control: stop")


def draw_timeline(file: pathlib.Path, runs: Group) -> None:
    """The share of the parameters that is frozen over the steps: one line for each label and seed, without variants."""
    shown = {
        label: seeds
        for label, seeds in runs.others.items()
        if label not in runs.variants and any(record["switches"] for record in seeds.values())
    }
    figure, axes = plt.subplots(figsize=(5.2, 2.6), layout="constrained")
    colours = iter(plt.get_cmap("tab10").colors * 4)
    for label, seeds in shown.items():
        colour = next(colours)
        for index, (_, record) in enumerate(sorted(seeds.items())):
            steps, shares = [0.0], [0.0]
            for switch in record["switches"]:
                steps.append(switch["step"] / record["steps"])
                shares.append(prefix_share(record, switch["frozen_prefix"]))
            axes.step(
                [*steps, 1.0],
                [*shares, shares[-1]],
                where="post",
                color=colour,
                linewidth=1.0,
                alpha=0.8,
                label=label if index == 0 else None,
            )
    axes.set_xlabel("share of the run's steps")
    axes.set_ylabel("frozen share of parameters")
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.02, 1.02)
    if shown:
        axes.legend(fontsize=7, loc="upper left")
    _save(figure, file)


def _save(figure: plt.Figure, file: pathlib.Path) -> None:
    figure.savefig(file, format="svg", metadata={"Date": None})
    plt.close(figure)
