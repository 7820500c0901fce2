"""Runs that are trained at the same time and take turns, a few steps each, so that the machine is the same for all."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from bench.harness.errors import BenchError

_GO, _DONE = b"g", b"d"
_Report = TypeVar("_Report")
_Kind = TypeVar("_Kind")


def in_rotation(kinds: Sequence[_Kind], number: int) -> list[_Kind]:
    """Returns these in the order of a round: each round begins with what came second in the round before."""
    first = number % len(kinds)
    return [*kinds[first:], *kinds[:first]]


class TurnGiver:
    """Lets one run at a time train, in rotation, from when all of them are ready until each has ended. A context: when
    it ends, runs that still wait fail.

    Attributes:
      address: of the socket, for Turns.
    """

    def __init__(self, folder: pathlib.Path, runs: int):
        self.address = str(folder / "turns.sock")
        self._runs = runs
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(runs)
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._give, daemon=True)

    def __enter__(self) -> TurnGiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended = True
            for connection in (self._listener, *self._connections):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for connection in (self._listener, *self._connections):
            connection.close()

    def _give(self) -> None:
        with contextlib.suppress(OSError):  # the listener fails when it ends
            while len(self._connections) < self._runs:
                connection, _ = self._listener.accept()
                with self._lock:
                    if self._ended:
                        connection.close()
                        return
                    self._connections.append(connection)
            waiting = list(self._connections)
            while waiting:
                waiting = [connection for connection in waiting if _take_turn(connection)]


def _take_turn(connection: socket.socket) -> bool:
    """Whether the run goes on after it."""
    try:
        connection.sendall(_GO)
        return connection.recv(1) == _DONE
    except OSError:
        return False


def run_in_turns(folder: pathlib.Path, runs: Sequence[Callable[[str], _Report]]) -> list[_Report]:
    """Calls all of these at once, each with the address for its Turns, whose socket is in the folder. If one fails, the
    others end.

    Returns:
      What they return.
    """
    with concurrent.futures.ThreadPoolExecutor(len(runs)) as pool, TurnGiver(folder, len(runs)) as turns:
        started = [pool.submit(run, turns.address) for run in runs]
        for finished in concurrent.futures.as_completed(started):
            finished.result()  # raises
    return [training.result() for training in started]


class Turns:
    """The turns of one run, on its rank 0; other ranks wait for that one anyway, when they take a step."""

    def __init__(self, address: str):
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(address)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """A turn. The last one ends with the process.

        Raises:
          BenchError: [NO_TURN] the program that gives turns has ended.
        """
        try:
            answer = self._connection.recv(1)
        except OSError:
            answer = b""
        if answer != _GO:
            raise BenchError("NO_TURN", "the runs that this one takes turns with have ended")
        yield
        with contextlib.suppress(OSError):
            self._connection.sendall(_DONE)
