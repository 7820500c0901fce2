"""Writes docs/reference/compatibility.md from what the suite has found."""

from __future__ import annotations

import importlib.metadata
import itertools
import pathlib
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scripts import Script

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "reference" / "compatibility.md"

_LIBRARIES = ("torch", "torchvision", "transformers", "accelerate", "lightning", "timm", "peft")

_HEAD = """# Scripts of strangers

Each row is an ordinary training script in `tests/compat/shapes`. It has the three lines that the README asks for and
nothing else of Egeria's. `python tests/compat/run.py --write` runs all of them and writes this page. It exits with 1
where a row is otherwise than its script declares.

Last run with Python {python}, {versions}.

| column | what it says |
|---|---|
| watched | the session counted the steps that the script made |
| froze | how many layer modules a freeze after 30 % of the steps froze, of how many, with one entry a session |
| as by hand | the weights at the end equal, to the bit, those of the script with the same layers frozen by hand |
| as plain | the weights at the end of an observed run equal, to the bit, those of the script without Egeria |
| warned of | the names of all warnings in the log |
"""

# Lines of the document that speak of one script, which is the group: its row, its last lines, what is wrong with it.
_ROW = re.compile(r"\| `([\w.]+)` \| ")
_LAST = re.compile(r"([\w.]+): egeria")
_FAULT = re.compile(r"- `([\w.]+)`: ")


def write(scripts: Sequence[Script], rows: Mapping[str, Any]) -> None:
    """Writes the document. `rows` are run.py's by the scripts' names; what the document says of others stays."""
    DOCUMENT.write_text("\n".join(_lines(scripts, rows, DOCUMENT.read_text().splitlines())) + "\n")


def _lines(scripts: Sequence[Script], rows: Mapping[str, Any], old: Sequence[str]) -> Iterator[str]:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES)
    yield _HEAD.format(python=platform.python_version(), versions=versions)
    parts: dict[re.Pattern[str], list[str]] = {_ROW: [], _LAST: [], _FAULT: []}
    for script in scripts:
        row = rows.get(script.name)
        for pattern, part in parts.items():
            part += (
                _new(row, pattern)
                if row is not None
                else [line for line in old if (found := pattern.match(line)) and found[1] == script.name]
            )
    yield f"{len(scripts)} scripts, of which {len(scripts) - len(parts[_FAULT])} are as declared."
    by_name = {_ROW.match(line)[1]: line for line in parts[_ROW]}
    for kind, group in itertools.groupby(scripts, key=lambda script: script.kind):
        yield f"\n## {kind}\n\n| script | what it is | watched | froze | as by hand | as plain | warned of |"
        yield "|---|---|---|---|---|---|---|"
        yield from (by_name[script.name] for script in group if script.name in by_name)
    yield "\n## What they print\n\nThe last line of each with the default policy, one for each session:\n\n```"
    yield from parts[_LAST]
    yield "```"
    if parts[_FAULT]:
        yield "\n## What is not as declared\n"
        yield from parts[_FAULT]


def _new(row: Any, pattern: re.Pattern[str]) -> list[str]:
    """The lines of a script that has been run."""
    name = row.script.name
    if pattern is _LAST:
        return [f"{name}: {line}" for line in row.last_lines]
    if pattern is _FAULT:
        return [f"- `{name}`: {'; '.join(row.faults)}"] if row.faults else []
    if row.script.refused is not None:
        cells = [f"refused: `{row.script.refused}`", "", "", "", ""]
    else:
        told = ", ".join(f"`{name}`" for name in row.told)
        cells = [row.watched or "no", row.froze or "no", row.as_by_hand or "no", row.observed or "no", told]
    return [f"| `{name}` | {row.script.does} | {' | '.join(cells)} |"]
