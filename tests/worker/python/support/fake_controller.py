"""A controller without a mind for programs in Python: says what a test has told it to say, and keeps what it hears."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from typing import Any


class FakeController:
    """Ends with its context; then `gradients` and `registrations` hold what it was told, as dicts of their messages."""

    def __init__(self, folder: pathlib.Path, **directive: Any):
        """
        Args:
          directive: fields of a Directive as protobuf's JSON has them; "plans" for all ranks.
        """
        self.address = f"unix:{folder}/fake.sock"
        self.gradients: list[dict[str, Any]] = []
        self.registrations: list[dict[str, Any]] = []
        program = pathlib.Path(os.environ["EGERIA_BIN"]).parent / "tests" / "fake_controller"
        self._process = subprocess.Popen(
            [program, f"{folder}/fake.sock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self.say(**directive)

    def say(self, **directive: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(directive) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        if self._process.poll() is not None:
            return
        output, _ = self._process.communicate(timeout=60)
        for line in output.splitlines():
            try:
                message = json.loads(line)
            except ValueError:
                continue
            self.registrations += [message["registration"]] if "registration" in message else []
            self.gradients += [_numbers(message["gradients"])] if "gradients" in message else []

    def __enter__(self) -> FakeController:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _numbers(message: dict[str, Any]) -> dict[str, Any]:
    """protobuf's JSON has 64-bit integers as text."""
    return {name: int(value) if isinstance(value, str) else value for name, value in message.items()}
