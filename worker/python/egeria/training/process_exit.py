"""This file keeps the process from ending before its last collective has."""

from __future__ import annotations

import pathlib
import sys
import time

_COLLECTIVES = "(pt_gloo_runloop)"  # torch's name for the threads of a gloo group
_BUSY = {"R", "D"}  # runs or waits for a core; waits for a page
_CHECKS = 3  # in a row: a thread that waits for the interpreter's lock sleeps before it runs


def wait_for_collectives(patience: float = 1.0) -> bool:
    """Waits until the threads of the gloo groups rest; for atexit.

    A collective has ended for its caller a moment before the thread that ran it drops its tensors, and what torch keeps
    of the caller's context. Where any of that is Python's and the interpreter ends in between, the process aborts
    ("terminate called without an active exception", https://github.com/pytorch/pytorch/pull/179291), in torch alone as
    with Egeria.

    Args:
      patience: seconds, at most.

    Returns:
      Whether they rest. True where threads cannot be looked at.
    """
    deadline = time.monotonic() + patience
    between_checks = min(1.2 * sys.getswitchinterval(), 0.05)  # who waits for the interpreter's lock has had it by then
    checks = 0
    while checks < _CHECKS:
        states = _states()
        if not states:
            return True
        if time.monotonic() > deadline:
            return False
        checks = checks + 1 if states.isdisjoint(_BUSY) else 0
        time.sleep(between_checks)
    return True


def _states() -> set[str]:
    """The states of those threads, as in proc(5)."""
    states = set()
    for file in pathlib.Path("/proc/self/task").glob("*/stat"):
        try:
            _, name, rest = file.read_text().partition(_COLLECTIVES)
        except OSError:
            continue  # the thread has ended
        if name:
            states.add(rest.split()[0])
    return states
