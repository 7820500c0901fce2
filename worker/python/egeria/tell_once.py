"""No error of Egeria's reaches the training: it is told once, and the training goes on."""

from __future__ import annotations

import contextlib
import logging

_logger = logging.getLogger("egeria")


class TellOnce:
    """Says each kind of trouble once, and swallows the exceptions of what Egeria does beside the training.

    Attributes:
      whose: begins what is said, where a process has several sessions: "Generator: "; else empty.
    """

    def __init__(self) -> None:
        self.whose = ""
        self._told: set[str] = set()

    def __call__(self, what: str, error: Exception | None = None) -> None:
        """Logs a warning, unless the same words were logged before.

        Args:
          what: the trouble in words; it tells kinds of trouble apart.
          error: the exception behind it; its traceback is logged for debugging.
        """
        self._say(logging.WARNING, what, error)

    def note(self, what: str, error: Exception | None = None) -> None:
        """Does the same for what nobody has to do anything about: it is logged as information."""
        self._say(logging.INFO, what, error)

    def _say(self, level: int, what: str, error: Exception | None) -> None:
        if what in self._told:
            return
        self._told.add(what)
        _logger.log(level, "egeria: %s%s%s", self.whose, what, f": {_first_line(error)}" if error is not None else "")
        if error is not None:
            _logger.debug("egeria: %s", what, exc_info=error)

    def guard(self, what: str) -> contextlib.AbstractContextManager[None]:
        """An exception ends the block and is told as `what`; the caller goes on behind the block."""
        return _Guard(self, what)


class _Guard:
    """Is the context of guard(). Steps enter several, and one made of a generator takes three times as long."""

    __slots__ = ("_tell", "_what")

    def __init__(self, tell: TellOnce, what: str):
        self._tell = tell
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._tell(self._what, error)
        return True


def _first_line(error: Exception) -> str:
    """Errors of torch explain themselves at length."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
