"""Fixtures of the tests of the cache."""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator

import pytest
from cache_daemon import Daemon
from frozen_trunk import Run, compare


@pytest.fixture(scope="session", name="scripts_cache")
def scripts_cache_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One cache for all scripts: each training has a part of its own in it."""
    daemon = Daemon(tmp_path_factory.mktemp("scripts"))
    daemon.start()
    yield daemon
    daemon.end(signal.SIGKILL)


@pytest.fixture
def run(scripts_cache: Daemon, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a script plainly and with a cache, for which it waits."""
    monkeypatch.setattr("egeria.cache.gate.CacheGate.longest_patience", 300.0)
    return functools.partial(compare, cache=scripts_cache.address)
