"""egeria.exiting: the interpreter does not end while a collective's thread still holds its tensors."""

from __future__ import annotations

import ctypes
import hashlib
import threading
import time

from egeria import exiting
from egeria.exiting import wait_for_collectives

_PR_SET_NAME = 15


class Collective(threading.Thread):
    """Runs, without the interpreter's lock, under the name of a gloo group's thread."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.started, self.rested, self.end = threading.Event(), threading.Event(), threading.Event()

    def run(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"pt_gloo_runloop")
        self.started.set()
        hashlib.pbkdf2_hmac("sha256", b"a", b"b", 600_000)
        self.rested.set()
        self.end.wait()


def test_a_collective_that_runs_is_waited_for():
    thread = Collective()
    thread.start()
    thread.started.wait()
    assert not thread.rested.is_set()
    assert wait_for_collectives(patience=60)
    assert thread.rested.is_set()
    thread.end.set()
    thread.join()


def test_patience_ends():
    thread = Collective()
    thread.start()
    thread.started.wait()
    begin = time.monotonic()
    assert not wait_for_collectives(patience=0.01)
    assert time.monotonic() - begin < 5
    assert not thread.rested.is_set()
    thread.rested.wait()
    thread.end.set()
    thread.join()


def test_nothing_is_waited_for_without_collectives():
    while exiting._states():  # that of the test before: the system may know it a moment longer than Python
        time.sleep(0.01)
    assert wait_for_collectives(patience=0)
