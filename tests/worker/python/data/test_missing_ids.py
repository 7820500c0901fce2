"""Where batches have no sample ids, one line says why."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cache_daemon import Daemon
from torch import Tensor, nn
from torch.utils.data import DataLoader

import egeria
import egeria.data.sample_ids
from egeria.data import SampleIds, current, wrap

ROWS = torch.arange(80.0).view(40, 2)


@pytest.fixture(autouse=True)
def a_process_that_has_said_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "egeria")
    monkeypatch.setattr(egeria.data.sample_ids, "_current", SampleIds())
    monkeypatch.setattr(egeria.data.sample_ids, "_told", set())


def reversed_rows(samples: list[Tensor]) -> Tensor:
    samples.reverse()
    return torch.stack(samples)


def each(loader: DataLoader) -> None:
    for batch in loader:
        current().take(len(batch))


def one_ahead(loader: DataLoader) -> None:
    batches = iter(loader)
    ahead = next(batches)
    while ahead is not None:
        batch, ahead = ahead, next(batches, None)
        current().take(len(batch))


def always_the_first(loader: DataLoader) -> None:
    for _ in range(6):
        current().take(len(next(iter(loader))))


def several_times(loader: DataLoader) -> None:
    for batch in loader:
        for _ in range(6):
            current().take(len(batch))


def halves(loader: DataLoader) -> None:
    for batch in loader:
        current().take(len(batch) // 2)


def ids_of(**options: Any) -> Callable[[], DataLoader]:
    return lambda: wrap(DataLoader(ROWS, 4, **options))


@pytest.mark.parametrize(
    "make, loop, why",
    [
        (lambda: DataLoader(ROWS, 4), each, r"loader is not wrapped; loader = egeria.data.wrap\(loader\)"),
        (ids_of(), one_ahead, r"takes batches ahead of the model, or leaves some out; call egeria.data.current\(\)"),
        (ids_of(), always_the_first, "of a loop that has been left"),
        (ids_of(), several_times, "called more than once for a batch"),
        (ids_of(), halves, "called with 2 samples, the loader's batch has 4"),
        (ids_of(collate_fn=reversed_rows), each, r"no integers of 64 bits \(give wrap\(\) a sample_id\), or"),
    ],
)
def test_it_is_said_once(
    make: Callable[[], DataLoader], loop: Callable[[DataLoader], None], why: str, caplog: pytest.LogCaptureFixture
):
    for _ in range(3):
        loop(make())
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.INFO, "nobody has to do anything about it"
    assert caplog.records[0].getMessage().startswith("egeria: batches have no sample ids, so nothing is cached: ")
    assert re.search(why, caplog.records[0].getMessage())


def test_nothing_is_said_where_there_are_ids_but_for_a_few_passes(caplog: pytest.LogCaptureFixture):
    for _ in range(3):
        current().take(4)  # a warm-up
    for _ in range(3):
        each(wrap(DataLoader(ROWS, 4, shuffle=True)))
        current().take(4)
    assert not caplog.records


@pytest.mark.parametrize("cache, said", [("unix:/nobody/listens.sock", 1), ("none", 0)])
def test_a_session_says_it_if_it_has_a_cache(cache: str, said: int, caplog: pytest.LogCaptureFixture):
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    config = egeria.Config(controller="none", cache=cache)
    with egeria.attach(model, optimizer, modules=["0", "1"], config=config) as session:
        for batch in DataLoader(ROWS, 4):
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            session.step(loss)
    assert sum("nothing is cached" in record.getMessage() for record in caplog.records) == said


def test_a_prefix_that_is_refused_does_not_look_like_a_loop_that_runs_ahead(
    cache_daemon: Daemon, caplog: pytest.LogCaptureFixture
):
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    model[0].register_forward_hook(lambda module, args, output: None)  # somebody's, so that nothing is skipped
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    config = egeria.Config(controller="none", cache=cache_daemon.address, plans=[(1, 1), (4, 0)])
    with egeria.attach(model, optimizer, modules=["0", "1"], config=config) as session:
        for batch in wrap(DataLoader(ROWS, 4)):
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            session.step(loss)
    assert any("[HOOKED]" in record.getMessage() for record in caplog.records)
    assert not any("nothing is cached" in record.getMessage() for record in caplog.records)
