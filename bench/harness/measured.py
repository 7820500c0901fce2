"""Tables of measurements that are not whole trainings, from the records that the programs in tests/benchmarks write.

A record is a JSON object: the "program" that made it and its "arguments", the "machine" in words, the "version" where
it is known, "transcribed" where the numbers were copied from an older document, and "rows". A row has "what" was
measured and "values" by column. A value has "median", "least" and "most" (null where there was one round), and a "unit"
or none. It may also be a number or a text.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bench import tasks
from bench.harness.comparisons import quality_at
from bench.harness.early_losses import early_losses
from bench.harness.errors import BenchError
from bench.harness.groups import Group
from bench.harness.origins import constants_in_words
from bench.harness.task import Quality
from bench.harness.wording import plain_number, switches_in_words

# Records of single measurements, lines of whole runs beside plain ones, and the losses of a policy's first steps.
_MARKER = re.compile(r"(<!-- (measured/|runs of |early losses of )([\w.-]+) -->\n).*?<!-- end -->", re.DOTALL)


def pages(out: pathlib.Path, groups: Sequence[Group] = ()) -> dict[pathlib.Path, str]:
    """The pages of a folder that were written by hand, with their tables as the records have them, by file. `groups`
    are the folder's records."""

    def table(match: re.Match[str]) -> str:
        made = {
            "measured/": lambda name: _record_table(out / "measured" / name),
            "runs of ": lambda name: _runs_table(out / name),
            "early losses of ": lambda policy: early_losses(groups, policy),
        }[match[2]](match[3])
        return f"{match[1]}{made}\n<!-- end -->"

    texts = {file: file.read_text(encoding="utf-8") for file in sorted(out.glob("*.md"))}
    return {file: _MARKER.sub(table, text) for file, text in texts.items() if _MARKER.search(text)}


def readme_rows(out: pathlib.Path) -> list[str]:
    """Rows of the table of results for what was measured beside whole trainings.

    A record with such a row has "rounds", and "readme": the "task", its "quality" in words, the "column" in which the
    row "ours" is compared with the row "control", and what that is "in words".
    """
    found = []
    for file in sorted((out / "measured").glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        wanted = record.get("readme")
        if wanted is not None:
            values = {row["what"]: row["values"][wanted["column"]] for row in record["rows"]}
            found.append(
                f"| {wanted['task']} | {_saved(values[wanted['ours']], record['rounds'])} | {wanted['quality']} | "
                f"{wanted['in words']} save {_saved(values[wanted['control']], record['rounds'])} |"
            )
    return found


def _saved(value: Mapping[str, Any], rounds: int) -> str:
    """The percents that are left of the plain time as those that were saved."""
    median, least, most = (None if value[key] is None else 100 - value[key] for key in ("median", "least", "most"))
    spread = "" if least is None or f"{most:.0f}" == f"{least:.0f}" else f"{most:.0f} to {least:.0f} "
    return f"{median:.0f} %" + ("" if least is None else f" ({spread}in {rounds} rounds)")


def fill(text: str, begin: str, end: str, content: str) -> str:
    """The text with `content` between two lines of it.

    Raises:
      BenchError: [NO_MARKER].
    """
    head, found, rest = text.partition(f"{begin}\n")
    _, closed, tail = rest.partition(end)
    if not (found and closed):
        raise BenchError(
            "NO_MARKER", f"the page has no lines `{begin}` and `{end}`; write them where the table is to be"
        )
    return f"{head}{begin}\n{content}\n{end}{tail}"


def _record_table(file: pathlib.Path) -> str:
    record = json.loads(file.read_text(encoding="utf-8"))
    return f"{_table(record)}\n\n{_origin(record)}"


def _runs_table(file: pathlib.Path) -> str:
    """Whole trainings, each beside the plain one that is the last before it in the file. Records of `egeria bench` have
    options, and their rows tell more."""
    runs = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    with_options = all("options" in run for run in runs)
    columns = ["task", "seed", "run", "time saved", "quality against plain"]
    columns += ["against stopping then", "constants", "frozen modules"] if with_options else []
    lines = [f"| {' | '.join([*columns, 'version'])} |", "|---" * (len(columns) + 1) + "|"]
    plain: Mapping[str, Any] = {}
    for run in runs:
        if run["run"] == "plain":
            plain = run
            continue
        kind = tasks.task_class(run["task"])
        forced = f" at {100 * run['at']:.0f} % of the steps" if "at" in run else ""
        label = {"null": "plain again"}.get(run["run"], run["run"]) + forced
        cells = [
            kind.title,
            run["seed"],
            label + (f", {run['note']}" if "note" in run else ""),
            f"{plain_number(100 - 100 * run['seconds'] / plain['seconds'], 1)} %",
            _gain(run, plain["final"], plain, kind.quality),
        ]
        if with_options:
            stopped = quality_at(plain, kind.quality, run["seconds"])
            cells += [_gain(run, stopped, plain, kind.quality), constants_in_words(run), switches_in_words(run)]
        lines.append(f"| {' | '.join(map(str, cells))} | {run['machine']['egeria']} |")
    return "\n".join(lines)


def _gain(run: Mapping[str, Any], score: float, plain: Mapping[str, Any], quality: Quality) -> str:
    """A run's quality over another score, in percents of the plain run's."""
    gain = quality.gain(run["final"], score) / abs(quality.scale * plain["final"])
    return f"{plain_number(100 * gain, 1, sign=True)} %"


def _table(record: Mapping[str, Any]) -> str:
    columns = list(dict.fromkeys(column for row in record["rows"] for column in row["values"]))
    lines = [f"| {record.get('subject', 'what')} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in record["rows"]:
        cells = (_cell(row["values"].get(column)) for column in columns)
        lines.append(f"| {row['what']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "" if value is None else str(value)
    unit = f" {value['unit']}" if value.get("unit") else ""
    spread = "" if value.get("least") is None else f" ({_number(value['least'])} to {_number(value['most'])})"
    return f"{_number(value['median'])}{unit}{spread}"


def _number(value: float) -> str:
    """Three significant digits; whole numbers from a hundred on."""
    return f"{round(value):,}" if abs(value) >= 100 else f"{float(f'{value:.3g}'):g}"


def _origin(record: Mapping[str, Any]) -> str:
    program = f"`{record['program']}{' ' + record['arguments'] if record['arguments'] else ''}`"
    copied = " These numbers were measured once and copied by hand." if record.get("transcribed") else ""
    version = f", version {record['version']}" if "version" in record else ""
    return f"Measured by {program} on {record['machine']}{version}.{copied}"
