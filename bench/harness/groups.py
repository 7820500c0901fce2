"""The records of one task, by what they are: plain runs, others, and the sweep of the learning rate."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness.runs import Kind

Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Group:
    """All that was recorded of one task with the same settings, profile and ranks.

    Attributes:
      plain: records of the plain runs, by seed; without those of `tuning`.
      others: records of the other runs but the sweep's, by label and seed.
      sweep: records of the rate sweep.
      tuning: records of plain runs whose seeds have served the sweep alone, which no other number counts.
    """

    task: str
    profile: str
    ranks: int
    settings: str
    plain: Mapping[int, Record]
    others: Mapping[str, Mapping[int, Record]]
    sweep: Sequence[Record] = ()
    tuning: Sequence[Record] = ()

    @property
    def records(self) -> list[Record]:
        others = (record for runs in self.others.values() for record in runs.values())
        return [*self.plain.values(), *others, *self.sweep, *self.tuning]

    def pairs(self, label: str) -> list[tuple[Record, Record]]:
        """The label's records, each with the plain run of its seed; without seeds that have no plain run."""
        seeds = sorted(self.others.get(label, {}).items())
        return [(record, self.plain[seed]) for seed, record in seeds if seed in self.plain]

    @property
    def policies(self) -> list[str]:
        """Labels of policies under their own names, in as many steps as the plain run."""
        return [label for label, seeds in self.others.items() if label == next(iter(seeds.values()))["policy"]]

    @functools.cached_property
    def variants(self) -> list[str]:
        """Labels of policies with constants of their own (`--variant`)."""
        found = []
        for label, seeds in self.others.items():
            record = next(iter(seeds.values()))
            if record["kind"] == Kind.POLICY and label.partition("+")[0] != record["policy"]:
                found.append(label)
        return found


def group(records: Sequence[Record]) -> list[Group]:
    """Groups records by task, profile and ranks; where settings differ, those of the newest record count."""
    newest: dict[tuple[Any, ...], Record] = {}
    for record in records:
        kind = (record["task"], record["profile"], record["ranks"])
        if kind not in newest or record["started"] >= newest[kind]["started"]:
            newest[kind] = record
    found = []
    for (task, profile, ranks), latest in sorted(newest.items()):
        chosen = [
            record
            for record in records
            if (record["task"], record["profile"], record["ranks"]) == (task, profile, ranks)
            and record["settings"] == latest["settings"]
        ]
        # Among runs of one label with different options the newest counts.
        chosen.sort(key=lambda record: record["started"])
        others: dict[str, dict[int, Record]] = {}
        for record in chosen:
            if record["kind"] not in (Kind.PLAIN, Kind.SWEEP):
                others.setdefault(record["run"], {})[record["seed"]] = record
        sweep = {(record["run"], record["seed"]): record for record in chosen if record["kind"] == Kind.SWEEP}
        plain = {record["seed"]: record for record in chosen if record["kind"] == Kind.PLAIN}
        tuning = _tuning_seeds(plain, others, {seed for _, seed in sweep})
        found.append(
            Group(
                task,
                profile,
                ranks,
                latest["settings"],
                {seed: record for seed, record in plain.items() if seed not in tuning},
                others,
                list(sweep.values()),
                [plain[seed] for seed in sorted(tuning)],
            )
        )
    return found


def _tuning_seeds(plain: Mapping[int, Record], others: Mapping[str, Mapping[int, Record]], swept: set[int]) -> set[int]:
    """The seeds with a plain run that serves the sweep alone; none where no seed would be left."""
    found = {seed for seed in swept & set(plain) if not any(seed in seeds for seeds in others.values())}
    return found if found != set(plain) else set()
