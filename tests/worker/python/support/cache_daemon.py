"""A real egeria-cache for tests, and trainings that wait for it."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any


class Daemon:
    """An egeria-cache on a folder of its own; with metrics where a port is given, and with more options."""

    def __init__(self, folder: pathlib.Path, metrics_port: int | None = None, options: Sequence[str] = ()):
        self.options = options
        self.metrics = "none" if metrics_port is None else f"127.0.0.1:{metrics_port}"
        self.folder = folder / "store"
        self.address = f"unix:{self.folder}/cache.sock"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        reader, writer = os.pipe()
        program = pathlib.Path(os.environ["EGERIA_BIN"]) / "egeria-cache"
        self.process = subprocess.Popen(
            [
                program,
                "--folder",
                self.folder,
                "--keep-free",
                "0",
                "--metrics-listen",
                self.metrics,
                "--ready-fd",
                str(writer),
                *self.options,
            ],
            pass_fds=[writer],
        )
        os.close(writer)
        with os.fdopen(reader) as ready:
            assert ready.readline() == "READY=1\n"

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(300)
            self.process = None


def be_patient() -> None:
    """Sessions of this process wait for their caches, however slow the machine is."""
    from egeria.cache.gate import CacheGate

    CacheGate.longest_patience = 300.0


def wait_until_kept(session: Any, seconds: float = 300, attachments: int = 1) -> None:
    """Where a session has a cache, and has frozen layers: until that is there, and has written what it was offered.

    Args:
      attachments: at least so many times it has been found; a daemon that was started anew is found again.
    """
    cache = session._training.cache.caching and session._training.cache.caching._cache
    if cache is None:
        return
    deadline = time.monotonic() + seconds
    while not cache.attached or cache.counters()["attached"] < attachments:
        assert time.monotonic() < deadline, "the session has not found its cache"
        time.sleep(0.01)
    assert cache.flush(seconds)
