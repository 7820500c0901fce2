"""A trial ends a training after some steps, and leaves what its losses were (`egeria trial`)."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.freeze.switcher import Switch

VARIABLE = "EGERIA_TRIAL"


@dataclasses.dataclass
class Trial:
    """Says what a process of a trial is to do, and keeps what it has seen. Owned by the training thread.

    Attributes:
      steps: the training ends after so many optimizer steps, counted from attach() on.
      report: the file that rank 0 writes then.
      freezes: False for the plain training, beside which the other one is judged.
    """

    steps: int
    report: str
    freezes: bool
    _begin: int | None = None  # the training's steps before those of the trial
    _losses: dict[int, Tensor] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_environment(cls) -> Trial | None:
        """Returns the trial that this process is a part of; None where it is none.

        Raises:
          EgeriaError: [BAD_CONFIG] the variable has another form than `egeria trial` gives it.
        """
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        try:
            given = json.loads(text)
            return cls(int(given["steps"]), str(given["report"]), bool(given["freezes"]))
        except (ValueError, KeyError, TypeError) as error:
            raise EgeriaError("BAD_CONFIG", f"{VARIABLE} is {text!r}; `egeria trial` sets it") from error

    def in_environment(self) -> str:
        """Returns the variable's value, for of_environment()."""
        return json.dumps({"steps": self.steps, "report": self.report, "freezes": self.freezes})

    def adapted(self, config: Config) -> Config:
        """Returns how a session of this trial is to behave."""
        return config if self.freezes else dataclasses.replace(config, observe=True, plans=())

    def add_loss(self, step: int, loss: Tensor) -> None:
        """This step of the training had this loss, a scalar."""
        self._losses[step] = loss

    def end_step(self, step: int, rank: int, modules: int, switches: Sequence[Switch]) -> None:
        """The optimizer has stepped, which ends this step of the training.

        Raises:
          SystemExit: the trial is over. The step behind it ends as well, since a loss may be reported that late.
        """
        if self._begin is None:
            self._begin = step - 1
        if step - self._begin > self.steps:
            if rank == 0:
                self._write(self._begin, modules, switches)
            raise SystemExit(0)

    def _write(self, begin: int, modules: int, switches: Sequence[Switch]) -> None:
        found: dict[str, Any] = {
            "losses": {step - begin: loss.item() for step, loss in self._losses.items()},
            "modules": modules,
            "switches": [[switch.step - begin, switch.frozen_prefix] for switch in switches],
        }
        pathlib.Path(self.report).write_text(json.dumps(found), encoding="utf-8")
