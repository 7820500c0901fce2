"""SessionState is the part of a checkpoint that a session writes and resumes from."""

from __future__ import annotations

import dataclasses
import math
import uuid
from typing import Any

from egeria.errors import EgeriaError
from egeria.freeze.switcher import Switch

_VERSION = 1


@dataclasses.dataclass
class SessionState:
    """The state of a session after a step: small, of plain types only, and the same on all ranks.

    Attributes:
      step: optimizer steps done.
      frozen_prefix: layer modules 0..frozen_prefix-1 are frozen.
      applied_plan: the controller's newest plan that has been applied; 0: none.
      switches: all changes of what is frozen so far.
      modules: (name, names of units, names of loose parameters) of each layer module; empty: not known.
      step_shares: StepShares.known.
      learning_rate_sum: LearningRates.sum; None: not known.
      samples_repeat: whether samples come again as they were; None: not known.
      cache_namespace: a UUID in lower case, under which the cache keeps this training's entries; None: not known.
    """

    step: int = 0
    frozen_prefix: int = 0
    applied_plan: int = 0
    switches: list[Switch] = dataclasses.field(default_factory=list)
    modules: list[tuple[str, list[str], list[str]]] = dataclasses.field(default_factory=list)
    step_shares: dict[str, float] = dataclasses.field(default_factory=dict)
    learning_rate_sum: float | None = None
    samples_repeat: bool | None = None
    cache_namespace: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for torch.save() and JSON alike."""
        return {
            "version": _VERSION,
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "switches": [
                [switch.step, switch.frozen_prefix, int(switch.unfreeze), int(bool(switch.ranks_identical))]
                for switch in self.switches
            ],
            "modules": [list(module) for module in self.modules],
            "step_shares": dict(self.step_shares),
        }

    @classmethod
    def from_dict(cls, state: Any) -> SessionState:
        """Reads what to_dict() gave, this version's or an older one's; {"step": n} alone is enough.

        Raises:
          EgeriaError: [CHECKPOINT_MISMATCH] it is no such state, or a newer version wrote it.
        """
        try:
            if int(state.get("version", _VERSION)) > _VERSION:
                raise _mismatch(
                    "the state was written by a newer egeria; install that one, or resume without the Egeria part of "
                    "the checkpoint"
                )
            numbers = [int(state.get(name, 0)) for name in ("step", "frozen_prefix", "applied_plan")]
            switches = [
                Switch(int(step), int(prefix), bool(unfreeze), bool(identical))
                for step, prefix, unfreeze, identical in state.get("switches", [])
            ]
        except (AttributeError, TypeError, ValueError):
            raise _mismatch("this is no state of a session; load what state_dict() gave") from None
        if min(numbers) < 0:
            raise _mismatch(f"the state has negative numbers ({numbers}); load what state_dict() gave")
        repeat = state.get("samples_repeat")
        return cls(
            *numbers,
            switches,
            _modules_in(state),
            {str(name): float(share) for name, share in (state.get("step_shares") or {}).items()},
            _rate_sum_in(state),
            None if repeat is None else bool(repeat),
            _namespace_in(state),
        )


def _mismatch(text: str) -> EgeriaError:
    return EgeriaError("CHECKPOINT_MISMATCH", text)


def _modules_in(state: dict[str, Any]) -> list[tuple[str, list[str], list[str]]]:
    try:
        return [
            (str(name), [str(unit) for unit in units], [str(entry) for entry in loose])
            for name, units, loose in state.get("modules") or []
        ]
    except (TypeError, ValueError):
        raise _mismatch("the state has no list of layer modules; load what state_dict() gave") from None


def _rate_sum_in(state: dict[str, Any]) -> float | None:
    try:
        value = float(state["learning_rate_sum"])
    except (KeyError, TypeError, ValueError):
        return None
    return value if 0 <= value < math.inf else None


def _namespace_in(state: dict[str, Any]) -> str | None:
    try:
        return str(uuid.UUID(state.get("cache_namespace")))
    except (AttributeError, TypeError, ValueError):
        return None
