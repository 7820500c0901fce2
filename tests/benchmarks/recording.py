"""Records of what a benchmark has measured, from which `egeria bench report` makes the tables of measurements.md."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from bench.harness.machine import facts
from bench.harness.origins import machine_of

# A program records the checkout that it began with: that may change while it measures.
_FACTS = facts()


def add_record_option(parser: argparse.ArgumentParser) -> None:
    """Adds --record, whose value Recording.write() takes."""
    parser.add_argument(
        "--record",
        type=pathlib.Path,
        metavar="FILE",
        help="write what was measured to this file (docs/results/measured)",
    )


class Recording:
    """The rows of a table, in the order in which they are added; not thread-safe.

    Args:
      subject: the heading of the first column.
    """

    def __init__(self, subject: str = "what") -> None:
        self._subject = subject
        self._rows: dict[str, dict[str, Any]] = {}

    def add(self, what: str, values: Sequence[float], unit: str = "", column: str = "measured") -> None:
        """Adds one cell: the median of the rounds' values, with the least and the most where there are several."""
        least, most = (_rounded(min(values)), _rounded(max(values))) if len(values) > 1 else (None, None)
        cell = {"median": _rounded(statistics.median(values)), "least": least, "most": most, "unit": unit}
        self._rows.setdefault(what, {})[column] = cell

    def write(self, file: pathlib.Path | None, rounds: int) -> None:
        """Writes the record, or nothing without a file. Folders of this machine are left out. An older record in
        that file may describe a row of the README, which stays."""
        if file is None:
            return
        arguments = [argument for argument in sys.argv[1:] if argument not in ("--record", str(file))]
        record = {
            "program": pathlib.Path(sys.argv[0]).resolve().relative_to(ROOT).as_posix(),
            "arguments": " ".join("DIR" if _is_path(argument) else argument for argument in arguments),
            "machine": machine_of({"machine": _FACTS}).removeprefix("on "),
            "version": _FACTS["egeria"],
            "rounds": rounds,
            "subject": self._subject,
            "rows": [{"what": what, "values": values} for what, values in self._rows.items()],
        }
        if file.exists() and (row := json.loads(file.read_text(encoding="utf-8")).get("readme")):
            record["readme"] = row
        file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def percents(ratios: Sequence[float]) -> list[float]:
    """Ratios as percents."""
    return [100 * ratio for ratio in ratios]


def _rounded(value: float) -> float:
    """Three significant digits; whole numbers from a hundred on."""
    return float(f"{value:.3g}") if abs(value) < 100 else round(value)


def _is_path(argument: str) -> bool:
    """Whether it names a file or a folder of this machine. Other arguments may have a file's name by chance."""
    return os.sep in argument and pathlib.Path(argument).exists()
