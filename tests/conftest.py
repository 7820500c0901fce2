"""Fixtures of the Python tests. By hand, after deploy/build.sh: python -m pytest tests/worker/python/cache."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
if "EGERIA_BIN" not in os.environ:  # ctest says what it has built
    package = [str(ROOT / "build" / "dev" / "python"), str(ROOT / "worker" / "python")]
    package += [str(ROOT / "tests"), str(ROOT)]
    os.environ.update(EGERIA_BIN=str(ROOT / "build" / "dev" / "bin"), PYTHONPATH=":".join(package), OMP_NUM_THREADS="1")
    sys.path[:0] = package
os.environ.setdefault("EGERIA_CONTROLLER", "none")  # a test that wants one starts it
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "worker" / "python" / "support")]
from cache_daemon import Daemon
from harness import Controller


@pytest.fixture
def controller(tmp_path: pathlib.Path) -> Iterator[Controller]:
    """A running controller of this test's own."""
    with Controller(tmp_path) as running:
        yield running


@pytest.fixture
def cache_daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    """A running egeria-cache of this test's own."""
    daemon = Daemon(tmp_path)
    daemon.start()
    yield daemon
    daemon.end(signal.SIGKILL)


@pytest.fixture
def patient_cache(cache_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """A cache that sessions of the test's process wait for, however slow the machine is."""
    monkeypatch.setattr("egeria.cache.gate.CacheGate.longest_patience", 300.0)
    return cache_daemon
