"""Says a task's results in sentences: which control is the strongest, and whether the policy beats it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from bench import tasks
from bench.harness.comparisons import Duel, Row, difference, duels, row, stopping_is_as_good, strongest
from bench.harness.groups import Group
from bench.harness.spread import Verdict
from bench.harness.sweeps import best_of, qualities
from bench.harness.task import Quality
from bench.harness.wording import CONTROLS, better_or_worse, outcome, plain_number, saved, seeds, time_in_words

# A negative control has lost clearly where it is worse than plain by so many standard deviations of plain.
_CLEARLY = 2.0


class Advice(str, enum.Enum):
    """The advice to somebody with such a task."""

    FREEZE = "freeze"
    STOP = "stop instead"
    PLAIN = "train plainly"
    CONTROL = "use the control"
    TUNE = "tune the plain run"
    OPEN = "open"


@dataclasses.dataclass(frozen=True)
class Judged:
    """The policy that a task's report is about, beside the controls of its own time.

    Attributes:
      best: the duel with the strongest of the controls.
      better_rate: a multiple of its learning rate with which the whole plain run did better in a sweep; None: there is
        none, or nobody knows.
    """

    policy: Row
    fought: Sequence[Duel]
    best: Duel
    advice: Advice
    better_rate: float | None


def judge(runs: Group, quality: Quality) -> Judged | None:
    """The policy with the most seeds; among equals `finetune` where the network is pretrained, else `auto`. None
    where no policy has been run."""
    first = "finetune" if tasks.task_class(runs.task).pretrained else "auto"
    labels = sorted(runs.policies, key=lambda label: (label != first, label not in ("auto", "finetune")))
    rows = [found for label in labels if (found := row(runs, label, quality)) is not None]
    if not rows:
        return None
    policy = max(rows, key=lambda found: (found.label in ("auto", "finetune"), found.gain.count))
    fought = duels(runs, policy.label, quality)
    best = strongest(fought)
    swept = qualities(runs.records).get(1.0)
    rate = best_of(swept, quality) if swept else 1.0
    better_rate = None if rate == 1.0 else rate
    advice = Advice.TUNE if better_rate is not None else _advice(policy, fought, best)
    return Judged(policy, fought, best, advice, better_rate)


def summary(runs: Group, quality: Quality) -> list[str]:
    """The sentences that a task's report begins with."""
    judged = judge(runs, quality)
    if judged is None:
        return ["**No policy has been run on this task.**", negative_control(row(runs, "early", quality))]
    policy, best, name = judged.policy, judged.best, f"`{judged.policy.label}`"
    return [
        f"At the time that {name} takes, the strongest control is {CONTROLS.get(best.control, 'another run')} "
        f"(`{best.control}`), and {name} {outcome(best.gain.verdict)}.{_of_its_seeds(best, policy)}",
        f"The quality of {name} is {better_or_worse(best.relative)}.",
        f"Against the whole plain run, {name} {time_in_words(policy)} over {seeds(policy.gain.count)}, and "
        f"its quality is {better_or_worse(policy.relative)}.",
        _noise(policy),
        _in_words(judged),
        negative_control(row(runs, "early", quality)),
    ]


def negative_control(early: Row | None) -> str:
    """Whether an early freeze loses, as it must where a task is to prove anything."""
    if early is None:
        return "**The negative control has not been run.**"
    if early.plain.diverged:
        return "**Nothing can be said about the negative control: a plain run diverged.**"
    if early.gain.diverged:
        return "The negative control, an early freeze, loses clearly: a run diverged."
    gain = better_or_worse(early.relative)
    if early.noise is None:
        return f"The negative control, an early freeze, is {gain}; a single seed does not tell what is noise."
    if -early.gain.mean > _CLEARLY * early.noise:
        return f"The negative control, an early freeze, loses clearly, as it must: it is {gain}."
    return f"**The negative control, an early freeze, does not lose clearly: it is {gain}. This task proves nothing.**"


def further(runs: Group, quality: Quality) -> list[str]:
    """Says what the signal earns over a plain clock, and whether longer trainings make good use of the time saved."""
    found = []
    judged = judge(runs, quality)
    clock = row(runs, "staged", quality)
    if judged is not None and clock is not None and judged.policy.label != "staged":
        gain = difference(runs, judged.policy.label, "staged", quality)
        if gain is not None:
            found.append(
                f"The plain clock `staged` saved {saved(clock)}. The quality of `{judged.policy.label}` is "
                f"{better_or_worse(gain)} than that of `staged`."
            )
    for label in runs.others:
        longer = row(runs, label, quality) if "+" in label and label not in runs.variants else None
        if longer is not None:
            found.append(
                f"`{label}` trains for more steps with the time saved: it {time_in_words(longer)} and is "
                f"{better_or_worse(longer.relative)}. {_better_and_sooner(longer)}"
            )
    return found


def _better_and_sooner(longer: Row) -> str:
    if longer.gain.verdict is Verdict.BEATS and longer.ratio.complement.verdict is Verdict.BEATS:
        return "It is better, and sooner, both beyond the spread over seeds."
    both = longer.gain.mean > 0 and longer.ratio.mean < 1
    return f"By the mean it is {'better, and sooner' if both else 'not both better and sooner'}."


def _advice(policy: Row, fought: Sequence[Duel], best: Duel) -> Advice:
    if policy.ratio.mean >= 1:
        return Advice.PLAIN
    if stopping_is_as_good(policy, fought):
        return Advice.STOP
    if best.gain.verdict is Verdict.LOSES:
        return Advice.CONTROL
    return Advice.FREEZE if best.gain.verdict is Verdict.BEATS else Advice.OPEN


def _in_words(judged: Judged) -> str:
    name = f"`{judged.policy.label}`"
    if judged.advice is Advice.TUNE:
        return f"**The plain run is not tuned**: {judged.better_rate:g} times its learning rate did better in a sweep."
    if judged.advice is Advice.OPEN and judged.best.gain.mean > 0 and judged.policy.noise is not None:
        return f"{name} is ahead by the mean, but not beyond the spread over seeds: more seeds have to tell."
    stopping = "better" if judged.best.gain.verdict is Verdict.LOSES else "as good"
    return {
        Advice.PLAIN: f"**Train plainly instead**: {name} saved no time here.",
        Advice.STOP: f"**Stop instead**: a plain run that stops at that time is {stopping}, and needs no freezing.",
        Advice.CONTROL: f"**Use `{judged.best.control}` instead**: it is better in the same time.",
        Advice.FREEZE: "Freezing pays on this task.",
        Advice.OPEN: f"These runs do not tell whether {name} is worth it.",
    }[judged.advice]


def _of_its_seeds(best: Duel, policy: Row) -> str:
    """Says so where not all seeds of the policy have the control."""
    if best.gain.count == policy.gain.count:
        return ""
    return f" That control was run for {best.gain.count} of the {seeds(policy.gain.count)}."


def _noise(policy: Row) -> str:
    if policy.plain.diverged:
        return "A plain run diverged, so that noise cannot be told."
    if policy.noise is None:
        return "A single seed does not tell what is noise."
    return f"Plain runs of these seeds differ by {plain_number(100 * policy.noise / abs(policy.plain.mean), 1)} %."
