"""Merges the summaries of several training runs into one file and prints them as a table.

usage: summarize.py OUTPUT.json SUMMARY.json [SUMMARY.json ...]

Each input is what `egeria-train --summary` wrote: {"runs": [...]}; so is the output.
"""

import json
import pathlib
import sys

COLUMNS = ("task", "policy", "ranks", "seconds", "accuracy", "validation loss", "frozen share", "ranks identical")


def row(run: dict) -> tuple[str, ...]:
    """The table row of one run, formatted."""
    return (
        run["task"],
        run["policy"],
        str(run["ranks"]),
        f"{run['seconds']:.1f}",
        f"{run['accuracy']:.4f}",
        f"{run['validation_loss']:.4f}",
        f"{run['frozen_share']:.3f}",
        "yes" if run["ranks_identical"] else "NO",
    )


def decisions(run: dict) -> str:
    """'freeze 1 @ 120, unfreeze 0 @ 300' for one run."""
    if not run["decisions"]:
        return "none"
    return ", ".join(f"{d['action']} to {d['frozen_prefix']} @ {d['step']}" for d in run["decisions"])


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    runs = [run for path in arguments[1:] for run in json.loads(pathlib.Path(path).read_text())["runs"]]
    pathlib.Path(arguments[0]).write_text(json.dumps({"runs": runs}, indent=1) + "\n")

    table = [COLUMNS, *(row(run) for run in runs)]
    widths = [max(len(line[i]) for line in table) for i in range(len(COLUMNS))]
    for index, line in enumerate(table):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
        if index == 0:
            print("  ".join("-" * width for width in widths))
    print()
    for run in runs:
        print(f"{run['task']} {run['policy']}: decisions (frozen modules @ step): {decisions(run)}")
    identical = all(run["ranks_identical"] for run in runs)
    print(f"ranks identical: {'yes' if identical else 'NO'}")
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
