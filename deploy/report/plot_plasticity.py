"""Draws the plasticity of every layer module over the steps, with the decisions on it, as a PNG.

usage: plot_plasticity.py READINGS.jsonl DECISIONS.jsonl OUTPUT.png [--title TITLE]

READINGS.jsonl is what `egeria export JOB` wrote, DECISIONS.jsonl what `egeria export JOB --decisions` did.
"""

import argparse
import bisect
import json
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)


def stretches(points: list[tuple[int, float]], cuts: list[int]):
    """The (steps, values) of a module between decisions: a line across one would claim readings that are not there."""
    by_stretch: dict[int, list[tuple[int, float]]] = {}
    for point in points:
        by_stretch.setdefault(bisect.bisect_left(cuts, point[0]), []).append(point)
    return [tuple(zip(*stretch)) for stretch in by_stretch.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readings", type=pathlib.Path)
    parser.add_argument("decisions", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--title", default="Plasticity of the frontmost active module")
    arguments = parser.parse_args()

    readings: dict[int, list[tuple[int, float]]] = {}
    rates: list[tuple[int, float]] = []
    decisions = [json.loads(line) for line in arguments.decisions.read_text().splitlines()]
    for line in arguments.readings.read_text().splitlines():
        record = json.loads(line)
        if record.get("plasticity") is not None and "module" in record:
            readings.setdefault(record["module"], []).append((record["step"], record["plasticity"]))
        if record.get("lr") is not None:
            rates.append((record["step"], record["lr"]))
    if not readings:
        parser.error(f"{arguments.readings} holds no reading: was the job run with a policy that measures plasticity?")

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(11, 7), sharex=True, height_ratios=(4, 1), layout="constrained")
    colours = plt.get_cmap("viridis", max(readings) + 1)
    for module, points in sorted(readings.items()):
        label = f"module {module}"
        for steps, values in stretches(points, [decision["step"] for decision in decisions]):
            top.plot(steps, values, ".-", color=colours(module), linewidth=1, markersize=3, label=label)
            label = None
    top.set_yscale("log")
    top.set_ylabel("plasticity (SP loss)")
    top.set_title(arguments.title)
    for decision in decisions:
        freeze = decision["action"] == "freeze"
        top.axvline(
            decision["step"], color="tab:blue" if freeze else "tab:red", linewidth=1, linestyle="--" if freeze else "-"
        )
        top.annotate(
            f"{decision['action']} → {decision['frozen_prefix']}",
            (decision["step"], 1.0),
            xycoords=("data", "axes fraction"),
            rotation=90,
            fontsize=7,
            va="top",
            ha="right",
        )
    top.legend(fontsize=8, ncols=2, loc="lower left")
    if rates:
        steps, values = zip(*rates)
        bottom.step(steps, values, where="post", color="black", linewidth=1)
        bottom.set_yscale("log")
    bottom.set_ylabel("learning rate")
    bottom.set_xlabel("step")
    figure.savefig(arguments.output, dpi=110)
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
