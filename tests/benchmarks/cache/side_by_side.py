"""Whole trainings that run side by side and take turns of a few steps, so that the machine is the same for all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

from bench.harness.turns import Turns

STEPS_OF_A_TURN = 16
# Memory comes in huge pages with this. With small ones, the places that a process finds make it up to a third slower
# than its twin for as long as it lives.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


class StepTurns:
    """The turns of a training whose loader has no workers. The last turn ends with the process."""

    def __init__(self, address: str):
        self._turns = Turns(address)
        self._turn = contextlib.ExitStack()
        self._steps = 0

    def before(self, collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Returns a function that collates samples once it is this training's turn."""

        def collated(samples: list[Any]) -> Any:
            if self._steps % STEPS_OF_A_TURN == 0:
                self._turn.close()
                self._turn.enter_context(self._turns.taken())
            self._steps += 1
            return collate(samples)

        return collated


class EpochClock:
    """Takes the processor time of this process, of the calling thread alone, and of the cache's daemon in a folder, at
    the end of each epoch."""

    def __init__(self, folder: pathlib.Path):
        self.epochs: list[dict[str, float]] = []
        self._folder = str(folder)
        self._at: dict[str, float] = {}

    def begin(self) -> None:
        """The first epoch begins, and with it whatever a form does before."""
        self._at = self._now()

    def end_epoch(self) -> None:
        before, self._at = self._at, self._now()
        self.epochs.append({name: value - before[name] for name, value in self._at.items()})

    def _now(self) -> dict[str, float]:
        return {"processor": time.process_time(), "thread": time.thread_time(), "daemon": self._daemon_seconds()}

    def _daemon_seconds(self) -> float:
        total = 0.0
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().split(b"\0")
                if command[0].endswith(b"egeria-cache") and any(self._folder.encode() in part for part in command):
                    fields = (process / "stat").read_text().rpartition(")")[2].split()
                    total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            except (OSError, IndexError):
                continue
        return total
