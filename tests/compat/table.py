"""Writes docs/reference/compatibility.md from what the suite has found."""

from __future__ import annotations

import importlib.metadata
import itertools
import pathlib
import platform
from collections.abc import Iterator, Sequence
from typing import Any

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "reference" / "compatibility.md"

_LIBRARIES = ("torch", "torchvision", "transformers", "accelerate", "lightning", "timm", "peft")

_HEAD = """# Scripts of strangers

Each row is an ordinary training script of some 10 to 40 lines in `tests/compat/shapes`, with the three lines that the
README asks for and nothing else of Egeria's. `python tests/compat/run.py --write` runs all of them and writes this
page; it exits with 1 where a row is otherwise than its script declares.

Last run with Python {python}, {versions}.

| column | what it says |
|---|---|
| watched | the session counted the steps that the script made |
| froze | how many layer modules a freeze after 30 % of the steps froze, of how many; one entry a session |
| as by hand | the weights at the end equal, to the bit, those of the script with the same layers frozen by hand |
| as plain | the weights at the end of an observed run equal, to the bit, those of the script without Egeria |
| warned of | the names of warnings in the log; nothing else was warned of |
"""


def write(rows: Sequence[Any]) -> None:
    """Writes the document. `rows` are run.py's, in the order of the scripts."""
    DOCUMENT.write_text("\n".join(_lines(rows)) + "\n")


def _lines(rows: Sequence[Any]) -> Iterator[str]:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES)
    yield _HEAD.format(python=platform.python_version(), versions=versions)
    failed = sum(bool(row.faults) for row in rows)
    yield f"{len(rows)} scripts, of which {len(rows) - failed} are as declared."
    for kind, group in itertools.groupby(rows, key=lambda row: row.script.kind):
        yield f"\n## {kind}\n\n| script | what it is | watched | froze | as by hand | as plain | warned of |"
        yield "|---|---|---|---|---|---|---|"
        yield from (_row(row) for row in group)
    yield "\n## What they print\n\nThe last line of each with the default policy, one for each session:\n\n```"
    for row in rows:
        yield from (f"{row.script.name}: {line.removeprefix('egeria: ')}" for line in row.last_lines)
    yield "```"
    if failed:
        yield "\n## What is not as declared\n"
        yield from (f"- `{row.script.name}`: {'; '.join(row.faults)}" for row in rows if row.faults)


def _row(row: Any) -> str:
    told = ", ".join(f"`{name}`" for name in row.told)
    if row.script.refused is not None:
        cells = [f"refused: `{row.script.refused}`", "", "", "", ""]
    else:
        cells = [row.watched or "no", row.froze or "no", row.as_by_hand or "no", row.observed or "no", told]
    return f"| `{row.script.name}` | {row.script.does} | {' | '.join(cells)} |"
