"""A session's side of the cache of frozen activations: when there is one, and what it is told of the training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from egeria.cache.caching import Caching
from egeria.config import Config
from egeria.data.sample_ids import current
from egeria.freeze.switcher import Switcher
from egeria.tell_once import TellOnce
from egeria.time_ledger import TimeLedger
from egeria.training.job_daemons import JobDaemons

# A training that ends in so many seconds does not get back what the cache takes at its beginning.
_NEEDS_SECONDS = 10.0


class SessionCache:
    """Follows a training for the cache. Owned by the training thread.

    Attributes:
      caching: None where no cache is configured, or the job brings one and has had no batch with sample ids so far.
    """

    def __init__(
        self,
        config: Config,
        make: Callable[[], Caching | None],
        daemons: JobDaemons,
        switcher: Switcher,
        ledger: TimeLedger,
        tell: TellOnce,
    ):
        self._make = make
        self._daemons = daemons
        self._switcher = switcher
        self._ledger = ledger
        self._tell = tell
        self._always = config.cache_use == "always"
        self._is_brought = config.brings_cache()
        self._has_time = True
        self._spent = 0.0  # seconds that are in the ledger
        self._known: bool | None = None  # whether samples come again, as a checkpoint says
        self.caching = None if self._is_brought else make()

    @property
    def samples_repeat(self) -> bool | None:
        """Whether samples come to the model as they came before, for a checkpoint; None: that is not known."""
        return self._known if self.caching is None else self.caching.repeats.known

    def resume(self, samples_repeat: bool | None) -> None:
        """Takes samples_repeat of a checkpoint."""
        self._known = samples_repeat
        if self.caching is not None and samples_repeat is not None:
            self.caching.repeats.known = samples_repeat

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A training forward pass begins. A cache that the job brings is of use with the first batch that has ids."""
        if self._is_brought and self.caching is None and current().has_ids:
            self.caching = self._make()
            self.resume(self._known)
            self._daemons.want_cache()
        if self.caching is not None:
            with self._tell.guard("whether samples come again cannot be told"):
                self.caching.before_forward(args, kwargs)

    def end_step(self) -> None:
        """A step has ended; nothing has been switched behind it yet."""
        if self.caching is not None:
            self.caching.after_step()
            spent = self.caching.spent_seconds
            self._ledger.add_spent("cache", spent - self._spent)
            self._spent = spent

    def note_switch(self, seconds_left: float) -> None:
        """Other layers are frozen from here on, `seconds_left` before the training ends."""
        self._has_time = self._always or seconds_left > _NEEDS_SECONDS

    def follow(self, namespace: str) -> None:
        """Skips what is frozen now, or tries whether that pays."""
        if self.caching is not None:
            with self._tell.guard("frozen layers are not skipped"):
                prefix = self._switcher.prefix if self._has_time else 0
                self.caching.follow(self._switcher.modules, prefix, namespace)

    def skip_nothing(self, namespace: str) -> None:
        """Nothing is skipped until the next follow()."""
        if self.caching is not None:
            self.caching.follow(self._switcher.modules, 0, namespace)

    def report(self, native: Any) -> None:
        """Gives the totals to the link to the controller."""
        if self.caching is not None:
            native.set_cache_totals(*self.caching.totals())

    def close(self, forget: bool) -> None:
        """The session ends; see Caching.close()."""
        if self.caching is not None:
            self.caching.close(forget)
