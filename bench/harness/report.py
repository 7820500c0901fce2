"""Reports, from the records alone: TASK.md for each task, and README.md over all of them."""

from __future__ import annotations

import pathlib
import statistics
from collections.abc import Sequence

from bench import tasks
from bench.harness import records
from bench.harness.comparisons import (
    Duel,
    Group,
    Record,
    Row,
    Spread,
    Verdict,
    difference,
    duels,
    final_quality,
    group,
    machine_of,
    mixture,
    plain_mixture,
    row,
)
from bench.harness.errors import BenchError
from bench.harness.runs import EARLY_AT, EARLY_MODULES, Kind
from bench.harness.task import Quality

# A negative control has lost clearly where it is worse than plain by so many standard deviations of plain.
_CLEARLY = 2.0
# Times that differ by no more than this part of the plain run's are the same.
_SAME_TIME = 0.02
# A run that takes less than this part of the plain run's time is much faster.
_MUCH_FASTER = 0.9


def write_reports(out: pathlib.Path) -> list[pathlib.Path]:
    """Writes the reports of all records under `out`, beside them. Returns the files.

    Raises:
      BenchError: [NO_RECORDS].
    """
    from bench.harness import plots  # matplotlib takes seconds to load

    files = sorted((out / "records").glob("*.jsonl"))
    groups = [found for file in files for found in group(records.read(file)) if found.plain]
    if not groups:
        raise BenchError(
            "NO_RECORDS",
            f"there are no records of plain runs in {out / 'records'}; run `egeria bench TASK --out {out}` first",
        )
    written = []
    for runs in groups:
        quality = tasks.task_class(runs.task).quality
        name = report_name(runs)
        plots.draw_pareto(out / f"{name}-pareto.svg", runs, quality)
        plots.draw_timeline(out / f"{name}-timeline.svg", runs)
        (out / f"{name}.md").write_text(task_report(runs, quality), encoding="utf-8")
        written.append(out / f"{name}.md")
    notes = out / "notes.txt"  # written by hand, about records that the totals do not count
    text = overview(groups, notes.read_text(encoding="utf-8") if notes.exists() else "")
    (out / "README.md").write_text(text, encoding="utf-8")
    return [*written, out / "README.md"]


def report_name(runs: Group) -> str:
    """The name of the report's file, without its ending."""
    return "-".join(
        [
            runs.task,
            *([runs.profile] if runs.profile != "small" else []),
            *([f"{runs.ranks}-ranks"] if runs.ranks != 2 else []),
        ]
    )


def verdicts(runs: Group, quality: Quality) -> list[str]:
    """The sentences that a report begins with."""
    lines = []
    auto = row(runs, "auto", quality)
    if auto is None:
        lines.append("**`auto` has not been run on this task.**")
    else:
        lines.append(_against_controls(auto, duels(runs, "auto", quality), quality))
        if auto.ratio.mean >= 1:
            lines.append(f"**`auto` does not save time here: {_ratio(auto.ratio)} of the plain run's.**")
        lines += [_against_plain(auto, quality), *_against_clock(runs, auto, quality), *_reinvested(runs, quality)]
    return [*lines, _negative_control(row(runs, "early", quality), quality), *_mixtures(runs)]


def within_noise(policy: Row) -> bool:
    """Whether the mean quality is known to fall behind the plain runs' by no more than they differ among themselves."""
    return policy.noise is not None and policy.gain.mean >= -policy.noise


def _against_controls(policy: Row, fought: Sequence[Duel], quality: Quality) -> str:
    if len(fought) < 2:
        return f"**`{policy.label}` has not been compared with both controls of its own time.**"
    behind = " and ".join(f"`{duel.control.value}`" for duel in fought if not duel.ahead)
    text = (
        f"**By the mean {_name(policy)} does not beat {behind} at its own time:**"
        if behind
        else f"By the mean {_name(policy)} beats both controls at its own time:"
    )
    found = ", ".join(
        f"{_difference(duel.gain, quality)} over `{duel.control.value}` ({duel.gain.verdict.value})" for duel in fought
    )
    return f"{text} {found}.{_times(policy, fought)}"


def _against_plain(policy: Row, quality: Quality) -> str:
    text = _result(policy, quality)
    if policy.plain.diverged:
        return f"{text}; what is noise cannot be told, since a plain run diverged."
    if policy.noise is None:
        return f"{text}; what is noise, a single seed does not tell."
    spread = f"the {_number(policy.noise, quality)} that plain runs of its seeds spread by"
    if within_noise(policy):
        return f"{text}; by the mean not behind by more than {spread}."
    return f"**{text}; by the mean behind by more than {spread}.**"


def _negative_control(early: Row | None, quality: Quality) -> str:
    if early is None:
        return "**The negative control has not been run.**"
    if early.plain.diverged:
        return "**Of the negative control nothing can be said: a plain run diverged.**"
    if early.gain.diverged:
        return "The negative control loses clearly: a run diverged."
    gain = _difference(early.gain, quality)
    if early.noise is None:
        return f"The negative control is at {gain}; with a single seed nothing can be said about noise."
    spread = f"where plain runs of its seeds spread by {_number(early.noise, quality)}"
    if -early.gain.mean > _CLEARLY * early.noise:
        return f"The negative control loses clearly: {gain}, {spread}."
    return f"**The negative control does not lose clearly ({gain}, {spread}): this task proves nothing.**"


def _against_clock(runs: Group, policy: Row, quality: Quality) -> list[str]:
    """The line that tells what the signal has earned over a plain clock."""
    gain, clock = difference(runs, policy.label, "staged", quality), row(runs, "staged", quality)
    if gain is None or clock is None:
        return []
    return [
        f"`{policy.label}` over the plain clock `staged`: {_difference(gain, quality)} ({gain.verdict.value}); "
        f"`staged` took {_time(clock)}."
    ]


def _reinvested(runs: Group, quality: Quality) -> list[str]:
    lines = []
    for label in runs.others:
        found = row(runs, label, quality) if label.startswith("auto+") else None
        if found is None:
            continue
        text = _result(found, quality)
        both = found.gain.mean > 0 and found.ratio.mean < 1
        lines.append(
            f"{text}: by the mean better, and sooner."
            if both
            else f"**{text}: by the mean not both better and sooner.**"
        )
    return lines


def _result(found: Row, quality: Quality) -> str:
    seeds = "1 seed" if found.gain.count == 1 else f"{found.gain.count} seeds"
    return (
        f"{_name(found)} over {seeds}: {_difference(found.gain, quality)} to plain ({found.gain.verdict.value}) "
        f"in {_time(found)}"
    )


def _times(policy: Row, fought: Sequence[Duel]) -> str:
    """Controls get the policy's share of the steps; whether they took its time is a matter of the machine."""
    times = " and ".join(f"{_ratio(duel.control_ratio)} (`{duel.control.value}`)" for duel in fought)
    off = max(abs(duel.control_ratio.mean - policy.ratio.mean) for duel in fought)
    return f" As measured, it took {_time(policy)}, and they {times}" + (
        "." if off <= _SAME_TIME else ": the machine was not the same for all."
    )


def _time(found: Row) -> str:
    own = "" if found.own == 1 else f" (its time is its own for the last {100 * found.own:.0f} % of the steps)"
    return f"{_ratio(found.ratio)} of the plain run's time{own}"


def _mixtures(runs: Group) -> list[str]:
    """One line for all rows that are mixed in the same way."""
    mixtures = {"plain": plain_mixture(runs), **{label: mixture(runs, label) for label in runs.others}}
    labels: dict[str, list[str]] = {}
    for label, found in mixtures.items():
        if found:
            labels.setdefault(found, []).append(f"`{label}`")
    return [f"Mixed rows: {', '.join(names)}: {found}." for found, names in labels.items()]


def task_report(runs: Group, quality: Quality) -> str:
    """One task's report, as Markdown."""
    kind = tasks.task_class(runs.task)
    name = report_name(runs)
    plain = list(runs.plain.values())
    final = final_quality(plain, quality)
    seconds = Spread.of([record["seconds"] for record in plain])
    rows = [
        found
        for label in runs.others
        if label not in runs.variants and (found := row(runs, label, quality)) is not None
    ]
    text = [
        f"# {kind.title}",
        "",
        *[f"- {line}" for line in verdicts(runs, quality)],
        "",
        f"Profile `{runs.profile}`, {runs.ranks} ranks, seeds {', '.join(map(str, sorted(runs.plain)))}; "
        f"{plain[0]['steps']:,} steps, {plain[0]['parameters']:,} parameters. "
        f"Quality is the {quality.name.replace('_', ' ')} on the validation set at the end, in {quality.unit}, "
        f"{'more' if quality.higher_is_better else 'less'} being better. Plain: {_value(final, quality)}"
        f"{' (mixed)' if plain_mixture(runs) else ''}, {seconds.mean:.0f} s of training ({seconds.least:.0f} to "
        f"{seconds.most:.0f}).",
        "",
        *_machines(runs),
        "",
        "## Runs",
        "",
        "Quality is the difference to the plain run of the same seed, over which means are taken; positive is better. "
        "± is half of the mean's 90 % interval over the seeds, by Student's t, of quality and of time: a run beats "
        "another where the interval of quality lies above 0, loses where it lies below, and where it contains 0 they "
        "cannot be told apart. "
        "Time is that of training, evaluation left out, over the plain run's, both as measured. Where a run begins as "
        "the plain run does, it may have been started from there, and its time is that of the plain run up to there "
        "and its own from there on: the share of its own is given. TTA: time to the plain run's final quality over "
        "the time the plain run took to get there; in brackets how many seeds got there. Less noise: to that quality "
        "less the standard deviation of the plain runs of its seeds, which a single seed does not tell.",
        "",
        *_table(rows, quality),
        "",
        *_duel_table(runs, rows, quality),
        *_variant_table(runs, quality),
        f"![Quality against time]({name}-pareto.svg)",
        "",
        "## What was frozen when",
        "",
        f"![Frozen share over the steps]({name}-timeline.svg)",
        "",
        *_decisions(runs),
    ]
    return "\n".join(text).rstrip() + "\n"


def overview(groups: Sequence[Group], notes: str = "") -> str:
    """README.md: the totals over all tasks, with the notes of the folder below them."""
    text = ["# Results of `egeria bench`", "", *_sums(groups), ""]
    if notes:
        text += [notes.strip(), ""]
    for runs in groups:
        if runs.profile == "small":
            lines = verdicts(runs, tasks.task_class(runs.task).quality)
            text += [f"- {tasks.task_class(runs.task).title}: {lines[0]}"]
            text += [f"  {line}" for line in lines[1:] if line.startswith("**")]
    text += [
        "",
        "Written by `egeria bench report` from the records beside it. docs/benchmarks.md says what is "
        "measured and how. Each cell: mean difference of quality to the plain run of the same seed, and training "
        "time over the plain run's (± half of their 90 % intervals). Plain: ± the standard deviation over the "
        "seeds. Mixed: rows come from several versions, machines or constants, as the task's report says.",
        "",
    ]
    labels = list(
        dict.fromkeys(
            label
            for runs in groups
            for label in runs.others
            if label not in runs.variants
            and next(iter(runs.others[label].values()))["kind"] in (Kind.POLICY, Kind.EARLY)
        )
    )
    text += [
        "| task | profile | seeds | plain | " + " | ".join(f"`{label}`" for label in labels) + " |",
        "|---|---|---|---|" + "---|" * len(labels),
    ]
    for runs in groups:
        quality = tasks.task_class(runs.task).quality
        final = final_quality(runs.plain.values(), quality)
        cells = []
        for label in labels:
            found = row(runs, label, quality)
            cells.append(
                "" if found is None else f"{_signed(found.gain, quality)}, {_ratio(found.ratio, 2)}{_constants(found)}"
            )
        mixed = ", mixed" if _mixtures(runs) else ""
        text.append(
            f"| [{tasks.task_class(runs.task).title}]({report_name(runs)}.md) | {runs.profile} | "
            f"{len(runs.plain)}{mixed} | {_value(final, quality)} {quality.unit}"
            f"{', mixed' if plain_mixture(runs) else ''} | " + " | ".join(cells) + " |"
        )
    return "\n".join(text) + "\n"


def _sums(groups: Sequence[Group]) -> list[str]:
    """On how many of the tasks `auto` does what it should."""
    small = [(runs, tasks.task_class(runs.task).quality) for runs in groups if runs.profile == "small"]
    rows = [(runs, found, quality) for runs, quality in small if (found := row(runs, "auto", quality)) is not None]
    if not rows:
        return []
    ratios = [found.ratio for _, found, _ in rows]
    fought = [found for runs, _, quality in rows if len(found := duels(runs, "auto", quality)) == 2]
    ahead = sum(all(duel.ahead for duel in pair) for pair in fought)
    text = (
        f"Of {len(rows)} tasks, `auto` takes less time than the plain run on {_count_below(ratios, 1)}, under "
        f"{_MUCH_FASTER} of it on {_count_below(ratios, _MUCH_FASTER)}; by the mean it beats both controls of its "
        f"own time on {ahead}."
    )
    several = [found for _, found, _ in rows if found.gain.count > 1]
    if not several:
        return [f"{text} One seed each: what is beyond the spread over seeds cannot be told."]
    won = sum(all(duel.gain.verdict is Verdict.BEATS for duel in pair) for pair in fought)
    lost = sum(any(duel.gain.verdict is Verdict.LOSES for duel in pair) for pair in fought)
    under = sum(found.gain.verdict is Verdict.LOSES for found in several)
    within = sum(within_noise(found) for found in several)
    return [
        f"{text} Of the {len(several)} with more than one seed, it beats both beyond the spread over seeds on "
        f"{won}, and loses to one of them on {lost}; it loses to plain beyond the spread on {under}, and its mean "
        f"quality is within the plain runs' noise on {within}."
    ]


def _count_below(ratios: Sequence[Spread], limit: float) -> str:
    count = str(sum(ratio.mean < limit for ratio in ratios))
    if all(ratio.half_width is None for ratio in ratios):
        return count
    return f"{count} (beyond the spread over seeds on {sum(ratio.is_below(limit) for ratio in ratios)})"


def _table(rows: Sequence[Row], quality: Quality) -> list[str]:
    lines = [
        f"| run | seeds | quality, {quality.unit} | worst seed | time | least to most | saved | by its own "
        "account | frozen | TTA | TTA less noise | own steps | watching before, estimate |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for found in rows:
        lines.append(
            f"| {found.label}{_constants(found)} | {found.gain.count} | {_signed(found.gain, quality)} | "
            f"{_number(found.gain.least, quality, sign=True)} | {_ratio(found.ratio)} | {found.ratio.least:.3f} to "
            f"{found.ratio.most:.3f} | {100 * (1 - found.ratio.mean):.1f} % | {_percent(found.account)} | "
            f"{100 * found.frozen:.1f} % | {_reached(found.reached, found)} | "
            f"{_reached(found.reached_noise, found)} | {100 * found.own:.0f} % | {_percent(found.watching)} |"
        )
    lines += [
        "",
        f"`early` freezes {EARLY_MODULES:.0%} of the layer modules at {EARLY_AT:.0%} of the steps: it must "
        "lose, or the task proves nothing. `short S` is the whole schedule in that share of the steps, `drop S` "
        "leaves as many steps out of the phase of low learning rates. Saved: share of the "
        "plain run's time, as measured, and as the session adds it up (what freezing saved, less what it cost). "
        "Frozen: share of the parameters, averaged over the steps. Watching before: an estimate, which is in no "
        "other number here, of what hooks and agreement between ranks would have taken in the steps that are the "
        "plain run's, as much a step as in its own, over the plain run's time. `--whole` measures it.",
    ]
    return lines


def _duel_table(runs: Group, rows: Sequence[Row], quality: Quality) -> list[str]:
    fought = [duel for found in rows if found.kind is Kind.POLICY for duel in duels(runs, found.label, quality)]
    if not fought:
        return []
    lines = [
        "## Against controls of the same time",
        "",
        f"| policy | control | quality over the control's, {quality.unit} | verdict | worst seed | control's time |",
        "|---|---|---|---|---|---|",
    ]
    for duel in fought:
        lines.append(
            f"| {duel.label} | {duel.control.value} | {_signed(duel.gain, quality)} | "
            f"{duel.gain.verdict.value} | {_number(duel.gain.least, quality, sign=True)} | "
            f"{_ratio(duel.control_ratio)} |"
        )
    return [*lines, ""]


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
        f"| run | constants | seeds | quality, {quality.unit} | over the policy under its own name | time | "
        "frozen | switches a run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for found in [*own, *variants]:
        policy = _policy(runs, found.label)
        gain = None if found.label == policy else difference(runs, found.label, policy, quality)
        switches = statistics.fmean(len(record["switches"]) for record in runs.others[found.label].values())
        lines.append(
            f"| {found.label} | {found.constants or 'its own'} | {found.gain.count} | "
            f"{_signed(found.gain, quality)} | {'' if gain is None else _signed(gain, quality)} | "
            f"{_ratio(found.ratio)} | {100 * found.frozen:.1f} % | {switches:.1f} |"
        )
    return [*lines, ""]


def _policy(runs: Group, label: str) -> str:
    return next(iter(runs.others[label].values()))["policy"]


def _decisions(runs: Group) -> list[str]:
    lines = []
    for label, seeds in runs.others.items():
        for seed, record in sorted(seeds.items()):
            if record["kind"] == Kind.POLICY:
                lines += [f"- `{label}`, seed {seed}: " + (_switches(record) or "nothing was frozen")]
                if record["decisions"]:
                    last = record["decisions"][-1]
                    lines[-1] += f". The last decision, at step {last['step']:,}: {last['reason']}"
    return [*lines, ""] if lines else []


def _switches(record: Record) -> str:
    return ", ".join(
        f"{switch['frozen_prefix']} of {len(record['modules'])} modules from step {switch['step']:,}"
        for switch in record["switches"]
    )


def _machines(runs: Group) -> list[str]:
    """One line for each machine and version."""
    found: dict[str, int] = {}
    for record in runs.records:
        text = f"{machine_of(record)}, egeria {record['machine']['egeria']}"
        found[text] = found.get(text, 0) + 1
    return [f"- {count} runs {text}" for text, count in sorted(found.items())]


def _name(found: Row) -> str:
    return f"`{found.label}`{_constants(found)}"


def _constants(found: Row) -> str:
    return f" ({found.constants})" if found.constants else ""


def _digits(quality: Quality) -> int:
    return 2 if quality.scale == 100 else 4


def _number(value: float, quality: Quality, sign: bool = False) -> str:
    return f"{value:{'+' if sign else ''}.{_digits(quality)}f}"


def _value(spread: Spread, quality: Quality) -> str:
    deviation = "" if spread.deviation is None else f" ± {_number(spread.deviation, quality)}"
    return _number(spread.mean, quality) + deviation


def _signed(spread: Spread, quality: Quality) -> str:
    """A mean difference and half of its interval."""
    half = "" if spread.half_width is None else f" ± {_number(spread.half_width, quality)}"
    return _number(spread.mean, quality, sign=True) + half


def _ratio(spread: Spread, digits: int = 3) -> str:
    """A mean ratio and half of its interval."""
    half = "" if spread.half_width is None else f" ± {spread.half_width:.{digits}f}"
    return f"{spread.mean:.{digits}f}{half}"


def _difference(spread: Spread, quality: Quality) -> str:
    return f"{_signed(spread, quality)} {quality.unit}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _reached(spread: Spread | None, found: Row) -> str:
    if spread is None:
        return "-"
    return f"{spread.mean:.3f} ({spread.count}/{found.gain.count})"
