#!/usr/bin/env python3
"""Draws one recorded run: which layer modules were frozen when, under the learning rate.

usage: bench/draw_run.py RECORDS.jsonl RUN SEED OUT.svg, such as
bench/draw_run.py docs/results/records/minilm-classify.jsonl finetune 0 docs/results/minilm-run.svg
"""

from __future__ import annotations

import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from bench import tasks  # noqa: E402
from bench.harness import records  # noqa: E402
from bench.harness.groups import Record  # noqa: E402

# With a fixed salt the same record gives the same file.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "egeria", "font.size": 9})

TRAINS, FROZEN = "#f2a65a", "#7fa8d1"


def frozen_since(record: Record, module: int) -> float:
    """The share of the steps at which a module froze for good, 1 where it did not."""
    since = 1.0
    for switch in record["switches"]:
        if switch["frozen_prefix"] <= module:
            since = 1.0
        elif since == 1.0:
            since = switch["step"] / record["steps"]
    return since


def draw(record: Record, file: pathlib.Path) -> None:
    task = tasks.create(record["task"], record["profile"], None)
    figure, (rate, timeline) = plt.subplots(
        2, sharex=True, figsize=(7, 3.4), layout="constrained", gridspec_kw={"height_ratios": [1, 3]}
    )
    points = [step / 2 for step in range(200)]
    rate.plot(points, [task.rate(point / 100) for point in points], color="0.3", linewidth=1.2)
    rate.set_ylabel("learning\nrate")
    rate.set_yticks([])
    rate.set_ylim(bottom=0)
    names = [module["name"] for module in record["modules"]]
    for module in range(len(names)):
        since = 100 * frozen_since(record, module)
        timeline.barh(module, since, color=TRAINS, height=0.8, label="trains" if module == 0 else None)
        label = "frozen" if module == 0 else None
        timeline.barh(module, 100 - since, left=since, color=FROZEN, height=0.8, label=label)
    timeline.set_yticks(range(len(names)), names)
    timeline.invert_yaxis()
    timeline.set_xlim(0, 100)
    timeline.set_xlabel("part of the training's steps, %")
    timeline.legend(loc="lower left", ncols=2)
    figure.savefig(file, format="svg", metadata={"Date": None})
    plt.close(figure)


def main(file: str, run: str, seed: str, out: str) -> None:
    recorded = records.read(pathlib.Path(file))
    found = [record for record in recorded if (record["run"], record["seed"]) == (run, int(seed))]
    draw(found[-1], pathlib.Path(out))


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
