"""egeria.training.process_exit: the interpreter does not end while a collective's thread still holds its tensors."""

from __future__ import annotations

import ctypes
import hashlib
import threading
import time
from collections.abc import Iterator

import pytest
from harness import wait_until

from egeria.training import process_exit
from egeria.training.process_exit import wait_for_collectives

_PR_SET_NAME = 15


class Collective(threading.Thread):
    """Runs, without the interpreter's lock, under the name of a gloo group's thread; rests once it is released."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.release, self.end = threading.Event(), threading.Event()

    def run(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"pt_gloo_runloop")
        while not self.release.is_set():
            hashlib.pbkdf2_hmac("sha256", b"a", b"b", 40_000)
        self.end.wait()


@pytest.fixture(name="collective")
def collective_fixture() -> Iterator[Collective]:
    """One that is seen running."""
    thread = Collective()
    thread.start()
    wait_until(lambda: "R" in process_exit._states(), 60, "a thread that runs")
    yield thread
    thread.release.set()
    thread.end.set()
    thread.join()


def test_a_collective_that_runs_is_waited_for(collective: Collective):
    threading.Timer(0.3, collective.release.set).start()
    assert wait_for_collectives(patience=60)
    assert collective.release.is_set()


@pytest.mark.usefixtures("collective")
def test_patience_ends():
    begin = time.monotonic()
    assert not wait_for_collectives(patience=0.2)
    assert time.monotonic() - begin < 5


def test_nothing_is_waited_for_without_collectives():
    while process_exit._states():  # the system may know the thread of the test before a moment longer than Python
        time.sleep(0.01)
    assert wait_for_collectives(patience=0)
