"""A Divergence notices that the ranks' parameters have come apart, and says what becomes of the training."""

from __future__ import annotations

from collections.abc import Callable

from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.freeze.switcher import Switch, Switcher
from egeria.tell_once import TellOnce

# A comparison hashes all parameters. In so many steps it takes well under a thousandth of the time.
_STEPS_BETWEEN_COMPARISONS = 1000


class Divergence:
    """While something is frozen the ranks compare their parameters now and then, and at each switch. Owned by the
    training thread.
    """

    def __init__(self, switcher: Switcher, config: Config, tell: TellOnce, forget: Callable[[], None]):
        """`forget` is called where other weights may be frozen than before."""
        self._error: EgeriaError | None = None  # they must not go on
        self._switcher = switcher
        self._config = config
        self._tell = tell
        self._forget = forget
        self._compared_at = 0  # the step of the newest comparison

    def stop_if_due(self) -> None:
        """Raises EgeriaError [RANKS_DIFFER] on all ranks between the same two passes, where they must not go on."""
        if self._error is not None:
            raise self._error

    def is_due(self, step: int) -> bool:
        return self._switcher.prefix > 0 and step - self._compared_at >= _STEPS_BETWEEN_COMPARISONS

    def compare(self, step: int) -> None:
        """Compares the ranks. A collective."""
        self._compared_at = step
        if self._switcher.are_identical() is False:
            self._end(step, f"with {self._switcher.prefix} frozen layer modules")

    def follow(self, switch: Switch) -> None:
        """The ranks have compared themselves at a switch. A collective where they differ."""
        self._compared_at = switch.step
        if switch.ranks_identical is False:
            self._end(switch.step, f"after a switch to frozen prefix {switch.frozen_prefix}")

    def _end(self, step: int, when: str) -> None:
        """All take what rank 0 has, or the training ends with this step. A collective."""
        what = f"step {step}: the ranks' parameters differ {when}"
        if self._config.on_divergence == "resync":
            self._forget()
            if self._switcher.resync():
                self._tell(f"[RANKS_DIFFER] {what}: all ranks go on with what rank 0 has")
                return
        self._error = EgeriaError(
            "RANKS_DIFFER",
            f"{what}: the training is stopped before it goes wrong; resume it from a checkpoint, or let "
            "on_divergence='resync' give all ranks what rank 0 has",
        )
