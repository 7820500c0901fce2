"""A table of what the first steps of frozen trainings tell of their ends."""

from __future__ import annotations

from collections.abc import Sequence

from bench import tasks
from bench.harness.comparisons import row
from bench.harness.groups import Group, Record
from bench.harness.wording import percents, plain_number

# The parts of the steps after which losses are compared.
_PARTS = (0.1, 0.2)


def early_losses(groups: Sequence[Group], policy: str) -> str:
    """The loss on the validation set early in the runs of a policy, over that of the plain runs of the same seeds, and
    how they end, by task. As Markdown; tasks without the policy, or without losses, are left out."""
    heads = [f"loss after {100 * part:.0f} % of the steps, against plain" for part in _PARTS]
    lines = [f"| task | seeds | {' | '.join(heads)} | quality at the end, against plain |", "|---" * 5 + "|"]
    for runs in groups:
        kind = tasks.task_class(runs.task)
        pairs = runs.pairs(policy)
        if not pairs or any("loss" not in entry for pair in pairs for record in pair for entry in record["curve"]):
            continue
        cells = [_range([_loss_at(run, part) / _loss_at(plain, part) - 1 for run, plain in pairs]) for part in _PARTS]
        end = percents(row(runs, policy, kind.quality).relative, 1, sign=True)
        lines.append(f"| {kind.title} | {len(pairs)} | {' | '.join(cells)} | {end} |")
    return "\n".join(lines)


def _loss_at(record: Record, part: float) -> float:
    """The loss of the evaluation that comes next to this part of the steps."""
    entry = min(record["curve"], key=lambda entry: abs(entry["step"] - part * record["steps"]))
    return entry["loss"]


def _range(shares: Sequence[float]) -> str:
    """The mean over seeds, and the least and the most."""
    mean, least, most = (100 * share for share in (sum(shares) / len(shares), min(shares), max(shares)))
    return f"{plain_number(mean, 0, sign=True)} % ({plain_number(least, 0)} to {plain_number(most, 0)})"
