"""Reports, from the records alone: TASK.md for each task, and README.md over all of them."""

from __future__ import annotations

import os
import pathlib
import statistics
from collections.abc import Sequence

from bench import tasks
from bench.harness import measured, records
from bench.harness.comparisons import (
    STOP,
    Row,
    between_evaluations,
    difference,
    duels,
    final_quality,
    other_scores,
    row,
    strongest,
)
from bench.harness.errors import BenchError
from bench.harness.groups import Group, Record, group
from bench.harness.origins import machine_of, mixture, plain_mixture
from bench.harness.overview import overview, report_name, table
from bench.harness.runs import Kind
from bench.harness.spread import Spread
from bench.harness.sweeps import best_of, qualities
from bench.harness.task import Quality
from bench.harness.verdicts import further, judge, summary
from bench.harness.wording import (
    PERCENTS,
    in_unit,
    interval,
    percents,
    plain_number,
    saved,
    switches_in_words,
    unit_digits,
)

# Between these lines README.md has the table of results.
README_MARKS = ("<!-- results: written by egeria bench report -->", "<!-- end of results -->")

# Shares under this one are printed as 0.
_LEAST_SHARE = 0.0005


def write_reports(out: pathlib.Path) -> list[pathlib.Path]:
    """Writes the reports of all records under `out`, beside them. Returns the files.

    Raises:
      BenchError: [NO_RECORDS].
    """
    from bench.harness import plots  # matplotlib takes seconds to load

    groups = read_groups(out)
    for runs in groups:
        quality = tasks.task_class(runs.task).quality
        name = report_name(runs)
        plots.draw_pareto(out / f"{name}-pareto.svg", runs, quality)
        plots.draw_timeline(out / f"{name}-timeline.svg", runs)
    pages = page_texts(out, groups)
    for file, text in pages.items():
        file.write_text(text, encoding="utf-8")
    return list(pages)


def write_readme(out: pathlib.Path, page: pathlib.Path) -> None:
    """Writes the table of results between the marks of a page. Raises BenchError [NO_MARKER], [NO_RECORDS]."""
    folder = os.path.relpath(out, page.parent)
    text = measured.fill(page.read_text(encoding="utf-8"), *README_MARKS, readme_table(out, folder))
    page.write_text(text, encoding="utf-8")


def readme_table(out: pathlib.Path, folder: str) -> str:
    """The table of results for a page from which the results are in `folder`. Raises BenchError [NO_RECORDS]."""
    return table(read_groups(out), folder, measured.readme_rows(out))


def read_groups(out: pathlib.Path) -> list[Group]:
    """All that was recorded under `out` and has plain runs. Raises BenchError [NO_RECORDS]."""
    files = sorted((out / "records").glob("*.jsonl"))
    groups = [found for file in files for found in group(records.read(file)) if found.plain]
    if not groups:
        raise BenchError(
            "NO_RECORDS",
            f"there are no records of plain runs in {out / 'records'}; run `egeria bench TASK --out {out}` first",
        )
    return groups


def page_texts(out: pathlib.Path, groups: Sequence[Group]) -> dict[pathlib.Path, str]:
    """Returns the text of each page of a folder, by file."""
    pages = {out / f"{report_name(runs)}.md": task_report(runs, tasks.task_class(runs.task).quality) for runs in groups}
    notes = out / "notes.txt"  # written by hand, about records that the totals do not count
    pages[out / "README.md"] = overview(groups, notes.read_text(encoding="utf-8") if notes.exists() else "")
    return pages | measured.pages(out, groups)


def task_report(runs: Group, quality: Quality) -> str:
    """One task's report, as Markdown."""
    name = report_name(runs)
    rows = [
        found
        for label in runs.others
        if label not in runs.variants and (found := row(runs, label, quality)) is not None
    ]
    text = [
        f"# {tasks.task_class(runs.task).title}",
        "",
        " ".join(summary(runs, quality)),
        "",
        *_table(runs, rows, quality),
        "",
        f"![Quality against time]({name}-pareto.svg)",
        "",
        "## Details",
        "",
        *_setting(runs, quality),
        "",
        *[f"- {line}" for line in further(runs, quality)],
        "",
        *_duel_table(runs, rows, quality),
        *_all_runs(runs, rows, quality),
        "",
        *_other_scores(runs, rows, quality),
        *_variant_table(runs, quality),
        *_rate_sweep(runs, quality),
        "## What was frozen when",
        "",
        f"![Frozen share over the steps]({name}-timeline.svg)",
        "",
        *_decisions(runs),
        "## Where the records come from",
        "",
        *_machines(runs),
        *_mixtures(runs),
    ]
    return "\n".join(text).rstrip() + "\n"


def _mixtures(runs: Group) -> list[str]:
    """One line for all rows that are mixed in the same way."""
    found = {"plain": plain_mixture(runs), **{label: mixture(runs, label) for label in runs.others}}
    labels: dict[str, list[str]] = {}
    for label, text in found.items():
        if text:
            labels.setdefault(text, []).append(f"`{label}`")
    if not labels:
        return []
    return [
        "",
        "Some rows mix versions, machines or constants:",
        "",
        "| runs | mixed |",
        "|---|---|",
        *(f"| {', '.join(names)} | {text} |" for text, names in labels.items()),
    ]


def _table(runs: Group, rows: Sequence[Row], quality: Quality) -> list[str]:
    """The policies and the negative control, the policy of the summary first; without those of fewer seeds where it
    has several."""
    judged = judge(runs, quality)
    shown = [found for found in rows if found.kind in (Kind.POLICY, Kind.EARLY)]
    if judged is not None:
        shown = [found for found in shown if found.gain.count > 1 or judged.policy.gain.count == 1]
        shown.sort(key=lambda found: found.label != judged.policy.label)
    lines = [
        "| run | seeds | time saved | quality against plain | strongest control | quality against it | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for found in shown:
        lines.append(
            f"| {_name(found)} | {found.gain.count} | {saved(found)} | {percents(found.relative, 1, sign=True)} | "
            f"{_against_best(runs, found, quality)} |"
        )
    return [*lines, "", PERCENTS]


def _against_best(runs: Group, found: Row, quality: Quality) -> str:
    """The last three cells of a row; the negative control has none."""
    if found.kind is not Kind.POLICY:
        return " | | "
    best = strongest(duels(runs, found.label, quality))
    return f"`{best.control}` | {percents(best.relative, 1, sign=True)} | {best.gain.verdict.value}"


def _setting(runs: Group, quality: Quality) -> list[str]:
    """Says what was trained, and how its numbers are to be read."""
    plain = list(runs.plain.values())
    final = final_quality(plain, quality)
    seconds = Spread.of([record["seconds"] for record in plain])
    deviation = "" if final.deviation is None else f" ± {plain_number(final.deviation, unit_digits(quality))}"
    return [
        f"The runs have the profile `{runs.profile}`, {runs.ranks} ranks and the seeds "
        f"{', '.join(map(str, sorted(runs.plain)))}. A plain run takes {plain[0]['steps']:,} steps in "
        f"{seconds.mean:.0f} s ({seconds.least:.0f} to {seconds.most:.0f}) and trains {plain[0]['parameters']:,} "
        f"parameters. Its quality is the {_words(quality.name)} on the validation set at the end: "
        f"{plain_number(final.mean, unit_digits(quality))}{deviation} {quality.unit}. "
        f"{'More' if quality.higher_is_better else 'Less'} is better.",
        "",
        f"Evaluations are {plain_number(100 * between_evaluations(runs), 1)} % of a run apart. The control `{STOP}` is "
        "the plain run's own curve at the policy's time, on a straight line between two evaluations. A curve that "
        "flattens lies above that line, so that stopping is a little better than this page says.",
        *_own_steps(runs, quality),
    ]


def _own_steps(runs: Group, quality: Quality) -> list[str]:
    """How much of the policy's run is its own."""
    judged = judge(runs, quality)
    if judged is None or judged.policy.own == 1:
        return []
    policy = judged.policy
    watching = (
        ""
        if policy.watching is None or policy.watching < _LEAST_SHARE
        else f" To be watched up to there would have cost about {plain_number(100 * policy.watching, 1)} % more. That "
        "is an estimate, which is in no other number here."
    )
    return [
        "",
        f"`{policy.label}` starts from a checkpoint of the plain run, and the last {100 * policy.own:.0f} % of the "
        f"steps are its own.{watching}",
    ]


def _duel_table(runs: Group, rows: Sequence[Row], quality: Quality) -> list[str]:
    fought = [duel for found in rows if found.kind is Kind.POLICY for duel in duels(runs, found.label, quality)]
    if not fought:
        return []
    lines = [
        "## Against each control of the same time",
        "",
        f"| policy | control | seeds | quality against it | in {quality.unit} | verdict | worst seed | policy saved | "
        "control saved |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for duel in fought:
        lines.append(
            f"| `{duel.label}` | `{duel.control}` | {duel.gain.count} | {percents(duel.relative, 1, sign=True)} | "
            f"{in_unit(duel.gain, quality)} | {duel.gain.verdict.value} | "
            f"{plain_number(duel.gain.least, unit_digits(quality), sign=True)} | "
            f"{percents(duel.policy_ratio.complement)} | {percents(duel.control_ratio.complement)} |"
        )
    return [
        *lines,
        "",
        "A control takes the policy's share of the steps. Where it saved another share of the time, the machine was "
        "not the same for both.",
        "",
    ]


def _all_runs(runs: Group, rows: Sequence[Row], quality: Quality) -> list[str]:
    share, at = tasks.task_class(runs.task).too_early
    lines = [
        "## All runs",
        "",
        f"| run | seeds | quality against plain, {quality.unit} | worst seed | time saved | least to most | of "
        "processor time | by its own account | frozen | time to plain's quality | less noise | own steps |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for found in rows:
        lines.append(
            f"| {_name(found)} | {found.gain.count} | {in_unit(found.gain, quality)} | "
            f"{plain_number(found.gain.least, unit_digits(quality), sign=True)} | {_time_cells(found)} | "
            f"{_share(found.account)} | {_share(found.frozen)} | {_reached(found.reached, found)} | "
            f"{_reached(found.reached_noise, found)} | {100 * found.own:.0f} % |"
        )
    return [
        *lines,
        "",
        f"`early` freezes {share:.0%} of the layer modules at {at:.0%} of the steps. `short` has the whole schedule in "
        "the share of the steps that its name says. `drop` leaves as many steps out where rates are low. `horizon` is "
        "`short` at its own best rate, and `drop-raised` is `drop` at raised rates. `decay` has rates that get smaller "
        "towards the front. Processor time is that of a rank with its share of the cache's. The account is the "
        "session's own: what freezing saved, less what it cost. Frozen is the share of the parameters, averaged over "
        "the steps. The time to plain's quality is a share of the time that the plain run takes to get there. Brackets "
        "say how many seeds got there. Less noise means: to that quality less the deviation of the plain runs.",
    ]


def _other_scores(runs: Group, rows: Sequence[Row], quality: Quality) -> list[str]:
    """Other scores were measured at the end of the runs, too. They are in no verdict."""
    scores = [other_scores(runs, found.label, quality) for found in rows]
    names = [name for name in (scores[0] if scores else ()) if all(name in others for others in scores)]
    if not names:
        return []
    lines = [
        "## Other scores at the end",
        "",
        f"| run | seeds | {' | '.join(f'{name}, mean | over plain' for name in map(_words, names))} |",
        "|---" * (2 + 2 * len(names)) + "|",
    ]
    for found, others in zip(rows, scores):
        cells = [f"{plain_number(mean, 4)} | {interval(over, 4)}" for mean, over in (others[name] for name in names)]
        lines.append(f"| {_name(found)} | {found.gain.count} | {' | '.join(cells)} |")
    return [*lines, "", "No verdict counts these.", ""]


def _variant_table(runs: Group, quality: Quality) -> list[str]:
    """Policies with other constants, beside themselves under their own names; those first."""
    variants = [found for label in runs.variants if (found := row(runs, label, quality)) is not None]
    if not variants:
        return []
    policies = dict.fromkeys(_policy(runs, found.label) for found in variants)
    own = [found for policy in policies if (found := row(runs, policy, quality)) is not None]
    lines = [
        "## Other constants",
        "",
        "| run | constants | seeds | quality against plain | against the policy under its own name | time saved | "
        "frozen | switches a run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for found in [*own, *variants]:
        policy = _policy(runs, found.label)
        gain = None if found.label == policy else difference(runs, found.label, policy, quality)
        switches = statistics.fmean(len(record["switches"]) for record in runs.others[found.label].values())
        lines.append(
            f"| `{found.label}` | {found.constants or 'its own'} | {found.gain.count} | "
            f"{percents(found.relative, 1, sign=True)} | {'' if gain is None else percents(gain, 1, sign=True)} | "
            f"{saved(found)} | {_share(found.frozen)} | {switches:.1f} |"
        )
    return [*lines, ""]


def _rate_sweep(runs: Group, quality: Quality) -> list[str]:
    """Whether the plain run's learning rate is the best of those that were tried."""
    swept = qualities(runs.records)
    if not swept:
        return []
    lines = [
        "## The learning rate of the plain run",
        "",
        f"| share of the steps | rate, of the task's own | seeds | quality, {quality.unit} |",
        "|---|---|---|---|",
    ]
    for share, peaks in sorted(swept.items(), reverse=True):
        for peak, finals in sorted(peaks.items()):
            mean = quality.scale * statistics.fmean(finals.values())
            lines.append(
                f"| {100 * share:.0f} % | {peak:g} | {len(finals)} | {plain_number(mean, unit_digits(quality))} |"
            )
    best = best_of(swept[max(swept)], quality)
    tuned = "The task's own rate is the best" if best == 1.0 else f"The best rate is {best:g} times the task's own"
    alone = " No other number here counts the seeds of the sweep." if runs.tuning else ""
    return [
        *lines,
        "",
        f"{tuned} at {100 * max(swept):.0f} % of the steps. A sweep is about quality, so that its times are left out."
        f"{alone}",
        "",
    ]


def _policy(runs: Group, label: str) -> str:
    return next(iter(runs.others[label].values()))["policy"]


def _decisions(runs: Group) -> list[str]:
    lines = [
        "| run | seed | modules frozen, from step | passes skipped by the cache | last decision at | reason |",
        "|---|---|---|---|---|---|",
    ]
    for label, seeds in runs.others.items():
        for seed, record in sorted(seeds.items()):
            if record["kind"] == Kind.POLICY:
                last = record["decisions"][-1] if record["decisions"] else None
                lines.append(
                    f"| `{label}` | {seed} | {_switches(record) or 'nothing'} | {_skipped(record)} | "
                    + ("| |" if last is None else f"{last['step']:,} | `{last['reason']}` |")
                )
    return [*lines, ""] if len(lines) > 2 else []


def _skipped(record: Record) -> str:
    """How many of the passes with frozen layers the cache has made unnecessary."""
    cache = record.get("cache") or {}
    return f"{cache['passes_skipped']:,} of {cache['passes']:,}" if cache.get("passes") else ""


def _switches(record: Record) -> str:
    changes = switches_in_words(record)
    return f"`{changes}` of {len(record['modules'])}" if changes else ""


def _machines(runs: Group) -> list[str]:
    """One line for each machine and version."""
    found: dict[str, int] = {}
    for record in runs.records:
        text = f"{machine_of(record)}, egeria {record['machine']['egeria']}"
        found[text] = found.get(text, 0) + 1
    return [f"- {count} runs {text}" for text, count in sorted(found.items())]


def _name(found: Row) -> str:
    return f"`{found.label}`" + (f" ({found.constants})" if found.constants else "")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _share(share: float | None) -> str:
    return "-" if share is None else f"{plain_number(100 * share, 1)} %"


def _time_cells(found: Row) -> str:
    """Mean and extremes of the time saved, and the processor time's."""
    part = found.ratio.complement
    processor = "-" if found.processor is None else percents(found.processor.complement, 1)
    return (
        f"{saved(found, 1)} | {plain_number(100 * part.least, 1)} to {plain_number(100 * part.most, 1)} % | {processor}"
    )


def _reached(spread: Spread | None, found: Row) -> str:
    if spread is None:
        return "-"
    return f"{100 * spread.mean:.0f} % ({spread.count}/{found.gain.count})"
