"""Where records come from: the versions, machines and constants that made the runs of a row."""

from __future__ import annotations

import json
from collections.abc import Mapping

from bench.harness.groups import Group, Record
from bench.harness.runs import own_options


def mixture(runs: Group, label: str) -> str:
    """Tells which versions, machines and constants made the label's runs, where they differ between its seeds or the
    plain runs that they are paired with; otherwise ""."""
    pairs = runs.pairs(label)
    found = []
    for origin in (_version, machine_of):
        own = {record["seed"]: origin(record) for record, _ in pairs}
        plain = {record["seed"]: origin(record) for _, record in pairs}
        if len({*own.values(), *plain.values()}) > 1:
            found += [
                _sentence(_by_seed(own)),
                "The plain runs" + (" likewise" if plain == own else f": {_by_seed(plain)}"),
            ]
    constants = {record["seed"]: f"with {constants_in_words(record) or 'its own constants'}" for record, _ in pairs}
    if len(set(constants.values())) > 1:
        found.append(_sentence(_by_seed(constants)))
    return ". ".join(found)


def plain_mixture(runs: Group) -> str:
    """By which versions and on which machines the plain runs were made, where they differ; else ""."""
    found = [{seed: origin(record) for seed, record in runs.plain.items()} for origin in (_version, machine_of)]
    return ". ".join(_sentence(_by_seed(texts)) for texts in found if len(set(texts.values())) > 1)


def machine_of(record: Record) -> str:
    """The machine of a record, in words."""
    facts = record["machine"]
    cores = "1 core" if facts["cores"] == 1 else f"{facts['cores']} cores"
    return f"on {cores} ({facts['processor']}), device {facts['device']}, torch {facts['torch']}"


def _version(record: Record) -> str:
    return f"by version {record['machine']['egeria']}"


def constants_in_words(record: Record) -> str:
    """As JSON; "" where they are the policy's own."""
    return "" if record["options"] == own_options(record["policy"]) else f"`{json.dumps(record['options'])}`"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _by_seed(texts: Mapping[int, str]) -> str:
    seeds: dict[str, list[str]] = {}
    for seed, text in sorted(texts.items()):
        seeds.setdefault(text, []).append(str(seed))
    return ", ".join(
        f"seed{'s' if len(numbers) > 1 else ''} {', '.join(numbers)} {text}" for text, numbers in seeds.items()
    )
