"""The history of a job as values over its steps."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Scalar(NamedTuple):
    """A value of a step, and when it was, in seconds since 1970, where that is known."""

    tag: str
    step: int
    value: float | str
    time: float | None = None


def scalars_of(records: Iterable[dict[str, Any]]) -> Iterator[Scalar]:
    """Yields what the records of an export tell; modules have names once a record has told them."""
    names: list[str] = []
    for record in records:
        if "modules" in record:
            names = record["modules"]
        elif "action" in record:
            yield from _of_decision(record)
        elif "step" in record:
            yield from _of_observation(record, names)


def _of_decision(record: dict[str, Any]) -> Iterator[Scalar]:
    step = record["step"]
    time = _seconds(record["time"]) if record.get("time") else None
    yield Scalar("frozen_prefix", step, float(record["frozen_prefix"]), time)
    yield Scalar("decision", step, f"{record['action']} to {record['frozen_prefix']}: {record['reason']}", time)


def _seconds(time: str) -> float:
    """Seconds since 1970 of a time such as 2026-01-02T03:04:05.123456789Z."""
    whole, _, part = time.rstrip("Z").partition(".")
    return datetime.datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{part or 0}")


def _of_observation(record: dict[str, Any], names: list[str]) -> Iterator[Scalar]:
    def name(module: int) -> str:
        return f"{module:02} {names[module]}" if module < len(names) else f"{module:02}"

    step = record["step"]
    for key, tag in (("loss", "loss"), ("lr", "learning_rate")):
        if record.get(key) is not None:
            yield Scalar(tag, step, record[key])
    if record.get("plasticity") is not None and record.get("module") is not None:
        yield Scalar(f"plasticity/{name(record['module'])}", step, record["plasticity"])
    gradients = record.get("gradients") or {}
    for offset, square in enumerate(gradients.get("square_of_mean", [])):
        module = gradients.get("first_module", 0) + offset
        yield Scalar(f"gradient_norm/{name(module)}", gradients.get("step", step), max(square, 0.0) ** 0.5)
    account = record.get("account") or {}
    if "saved_seconds" in account:
        yield Scalar("saved_seconds", step, account["saved_seconds"])
