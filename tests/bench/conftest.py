"""Fixtures of the tests of `egeria bench`."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import preloaded
import pytest

preloaded.MODULES += ["sklearn.datasets"]


@pytest.fixture
def preloaded_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that the test's own process starts have ranks that are forks of a preloaded interpreter."""

    def start(arguments: Sequence[str], ranks: int, log: pathlib.Path, environment: Mapping[str, str]):
        return preloaded.Ranks(pathlib.Path(__file__).with_name("rank.py"), arguments, log, environment, ranks)

    preloaded.start()  # once, before several threads want it
    monkeypatch.setattr("bench.harness.processes.start_ranks", start)
