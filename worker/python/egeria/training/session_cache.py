"""A session's side of the cache of frozen activations: when there is one, and what it is told of the training."""

from __future__ import annotations

from typing import Any

from egeria.cache.caching import Caching
from egeria.config import Config
from egeria.data.sample_ids import current
from egeria.tell_once import TellOnce
from egeria.time_ledger import TimeLedger
from egeria.training.job_daemons import JobDaemons

# A training that ends in so many seconds does not get back what the cache takes at its beginning.
_NEEDS_SECONDS = 10.0


class SessionCache:
    """Follows a training for the cache. Owned by the training thread."""

    def __init__(
        self, config: Config, caching: Caching | None, daemons: JobDaemons, ledger: TimeLedger, tell: TellOnce
    ):
        self._daemons = daemons
        self._ledger = ledger
        self._tell = tell
        self._always = config.cache_use == "always"
        self._is_wanted = not config.brings_cache()
        self._has_time = True
        self._spent = 0.0  # seconds that are in the ledger
        self._caching = caching
        if caching is not None and not self._is_wanted:
            current().when_fed(self._want)

    @property
    def caching(self) -> Caching | None:
        """None where no cache is configured, or the job brings one and no loader of its gives sample ids so far."""
        return self._caching if self._is_wanted else None

    @property
    def lacks_ids(self) -> bool:
        """Whether there may be a cache, and no loader gives it sample ids."""
        return self._caching is not None and not current().is_fed

    @property
    def samples_repeat(self) -> bool | None:
        """Whether samples come to the model as they came before, for a checkpoint; None: that is not known."""
        return None if self._caching is None else self._caching.repeats.known

    def resume(self, samples_repeat: bool | None) -> None:
        """Takes samples_repeat of a checkpoint."""
        if self._caching is not None and samples_repeat is not None:
            self._caching.repeats.known = samples_repeat

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A training forward pass begins."""
        if self.caching is not None:
            with self._tell.guard("whether samples come again cannot be told"):
                self.caching.before_forward(args, kwargs)

    def seconds_of_step(self) -> float:
        """Returns what the cache has taken of the step under way, which the ledger does not have yet."""
        return 0.0 if self.caching is None else self.caching.spent_seconds - self._spent

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

    def _want(self) -> None:
        """A cache that the job brings is of use once batches have sample ids."""
        self._is_wanted = True
        self._daemons.want_cache()
        self.follow()

    def follow(self) -> None:
        """Skips what does not train now, or tries whether that pays."""
        if self.caching is not None:
            with self._tell.guard("frozen layers are not skipped"):
                self.caching.follow(self._has_time)

    def skip_nothing(self) -> None:
        """Nothing is skipped until the next follow()."""
        if self._caching is not None:
            self._caching.skip_nothing()

    def report(self, native: Any) -> None:
        """Gives the totals to the link to the controller."""
        if self.caching is not None:
            native.set_cache_totals(*self.caching.totals())

    def close(self, forget: bool) -> None:
        """The session ends; see Caching.close()."""
        if self._caching is not None:
            self._caching.close(forget)
