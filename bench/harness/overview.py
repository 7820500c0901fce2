"""The page over all tasks, and the table of results that README.md takes from the same records."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from bench import tasks
from bench.harness.groups import Group
from bench.harness.spread import Verdict
from bench.harness.verdicts import Advice, Judged, judge
from bench.harness.wording import PERCENTS, percents, saved

_MOST_ROWS = 10
_TRIAL = "digits"  # too small to stand beside the others on a page for everybody
_READING = (
    f"{PERCENTS} The strongest control has the best quality at the policy's time: `stop` "
    "ends the plain run then, `short` has a shorter schedule, `drop` leaves out late steps, and `drop-raised` does so "
    "at raised rates."
)


def report_name(runs: Group) -> str:
    """The name of the report's file, without its ending."""
    return "-".join(
        [
            runs.task,
            *([runs.profile] if runs.profile != "small" else []),
            *([f"{runs.ranks}-ranks"] if runs.ranks != 2 else []),
        ]
    )


def overview(groups: Sequence[Group], notes: str = "") -> str:
    """README.md of the results, with the notes of the folder below its totals."""
    judged = _judged(groups)
    text = ["# Results of `egeria bench`", "", _totals([found for _, found in judged]), ""]
    text += [*_rows(judged[:_MOST_ROWS]), "", _READING, ""]
    if notes:
        text += [notes.strip(), ""]
    text += ["## Pages", "", "Each page has all runs of a task, their settings and where their records come from.", ""]
    text += [f"- [{_title(runs)}]({report_name(runs)}.md){_said(runs, judged)}" for runs in groups]
    text += ["", "`egeria bench report` has written these pages from the records beside them."]
    return "\n".join(text) + "\n"


def table(groups: Sequence[Group], folder: str, first: Sequence[str] = ()) -> str:
    """The overview in whole percents, for a page from which the results are in `folder`. `first`: its first rows."""
    judged = _judged(groups)
    most = _MOST_ROWS - len(first)
    lines = [
        "| task | time saved | quality against plain | against the strongest control |",
        "|---|---|---|---|",
        *first,
    ]
    shown = [one for one in judged if one[0].task != _TRIAL or len(judged) == 1][:most]
    for runs, found in shown:
        start = "fine-tuned" if tasks.task_class(runs.task).pretrained else "from scratch"
        lines.append(
            f"| [{_title(runs)}]({folder}/{report_name(runs)}.md), {start} | {saved(found.policy)} | "
            f"{percents(found.policy.relative, sign=True)} | {_standing(found)} |"
        )
    rest = len(judged) - len(shown)
    if rest:
        lines += ["", f"[The results]({folder}/README.md) have {rest} more task{'s' if rest > 1 else ''}."]
    return "\n".join(lines)


def _standing(found: Judged) -> str:
    """Where a policy stands beside the strongest control, in a cell."""
    best = found.best
    if found.better_rate is not None:
        return "the plain run is not tuned"
    gain = percents(best.relative, sign=True)
    if best.gain.verdict in (Verdict.ONE_SEED, Verdict.DIVERGED):
        return f"`{best.control}`: {gain}"
    if best.gain.verdict in (Verdict.BEATS, Verdict.LOSES):
        size = "less than 1 %" if gain.startswith("0 %") else gain.lstrip("+-")
        place = "ahead of" if best.gain.verdict is Verdict.BEATS else "behind"
        return f"**{place} `{best.control}` by {size}**"
    return f"level with `{best.control}`, {gain}"


def _judged(groups: Sequence[Group]) -> list[tuple[Group, Judged]]:
    """Tasks with a policy in their small profile: those with pretrained networks first, then in the tasks' order."""
    small = [runs for runs in groups if runs.profile == "small"]
    small.sort(key=lambda runs: (not tasks.task_class(runs.task).pretrained, tasks.NAMES.index(runs.task), runs.ranks))
    found = [(runs, judge(runs, tasks.task_class(runs.task).quality)) for runs in small]
    return [(runs, judged) for runs, judged in found if judged is not None]


def _rows(judged: Sequence[tuple[Group, Judged]]) -> list[str]:
    lines = [
        "| task | policy | time saved | quality against plain | against the strongest control | advice |",
        "|---|---|---|---|---|---|",
    ]
    for runs, found in judged:
        lines.append(
            f"| [{_title(runs)}]({report_name(runs)}.md) | `{found.policy.label}` | {saved(found.policy)} | "
            f"{percents(found.policy.relative, 1, sign=True)} | `{found.best.control}`: "
            f"{percents(found.best.relative, 1, sign=True)} | {found.advice.value} |"
        )
    return lines


def _title(runs: Group) -> str:
    return tasks.task_class(runs.task).title + (f", {runs.ranks} ranks" if runs.ranks != 2 else "")


def _totals(judged: Sequence[Judged]) -> str:
    """On how many of the tasks the policy does what it should."""
    if not judged:
        return "**No policy has been run on any task.**"
    count = collections.Counter(found.best.gain.verdict for found in judged)
    told = [found for found in judged if found.best.gain.verdict not in (Verdict.ONE_SEED, Verdict.DIVERGED)]
    few, diverged = count[Verdict.ONE_SEED], count[Verdict.DIVERGED]
    untold = (
        f" {few} more task{'s have' if few > 1 else ' has'} one seed, which tells too little to count." if few else ""
    )
    if diverged:
        untold += f" {diverged} more had a run that diverged."
    if not told:
        return f"**No policy has been run with several seeds that can be compared.**{untold}"
    advice = collections.Counter(found.advice for found in told)
    faster = sum(found.policy.ratio.mean < 1 for found in told)
    even = sum(found.policy.gain.verdict is not Verdict.LOSES for found in told)
    return (
        f"The policy saved time on {faster} of {len(told)} tasks. On {even} its quality is better than the "
        "whole plain run's or cannot be told apart from it. It beats the strongest control of its own time on "
        f"{count[Verdict.BEATS]}, loses to it on {count[Verdict.LOSES]}, and cannot be told apart from it on "
        f"{count[Verdict.OPEN]}. On {advice[Advice.STOP]} it is at least as good to stop the plain run at that time: "
        f"there, stop instead.{untold}"
    )


def _said(runs: Group, judged: Sequence[tuple[Group, Judged]]) -> str:
    """Returns the rest of a line about a task that is not in the table."""
    if any(found is runs for found, _ in judged[:_MOST_ROWS]):
        return ""
    advice = next((found.advice.value for group, found in judged if group is runs), "no policy has been run")
    return f", profile `{runs.profile}`: {advice}"
