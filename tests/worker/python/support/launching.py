"""Starts Python programs of these tests, alone or on two ranks, and brings them to their end."""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess

from preloaded import Process, Ranks

HERE = pathlib.Path(__file__).resolve().parent


class Program:
    """A Python program of this folder under way; ends with its context."""

    def __init__(
        self,
        folder: pathlib.Path,
        script: str,
        *arguments: object,
        ranks: int = 1,
        environment: dict[str, str] | None = None,
    ):
        self.log = folder / f"{script}.{len(list(folder.glob('*.log')))}.log"
        variables = dict(os.environ, OMP_NUM_THREADS="1", **(environment or {}))
        start = Process if ranks == 1 else functools.partial(Ranks, ranks=ranks)
        self.process = start(HERE / script, arguments, self.log, variables)

    def wait(self, seconds: float = 300) -> int:
        """The exit code; fails, with the log, if it does not come in time."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {seconds} s:\n{self.text()}") from None

    def succeed(self, seconds: float = 300) -> None:
        code = self.wait(seconds)
        assert code == 0, f"exit code {code}:\n{self.text()}"

    def text(self) -> str:
        return self.log.read_text()[-6000:]

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
