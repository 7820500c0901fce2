"""A training uses this class for the cache: it decides which frozen prefix is skipped, and follows what is frozen."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch.utils._pytree as pytree
from torch import nn

from egeria import _native
from egeria.cache.gate import CacheGate
from egeria.cache.module_fingerprint import ModuleFingerprint
from egeria.cache.prefix_cut import Refused
from egeria.cache.prefix_store import PrefixStore, fingerprint
from egeria.cache.repeated_samples import Repeats
from egeria.cache.skipper import Skipper
from egeria.cache.stopwatch import Stopwatch
from egeria.data.sample_ids import current
from egeria.model.inputs import batch_of
from egeria.model.isolation import device_of
from egeria.model.modules import LayerModule

_logger = logging.getLogger("egeria")

# Batches that are read ahead, as far as they are known.
_AHEAD = 8
# Passes after which a change of what the cost model has decided is looked for.
_LOOK_EVERY = 16
# A prefix whose attributes have changed is another one, and is begun once they have been the same for so many steps;
# unless they have changed so often.
_STEADY_STEPS = 8
_MOST_CHANGES = 4


class Caching:
    """Lets the training skip the forward pass of what is frozen, as far as the node's egeria-cache has it.

    Owned by the training thread.

    Attributes:
      repeats: whether samples come to the model as they came before; for checkpoints.
    """

    def __init__(
        self,
        address: str,
        model: nn.Module,
        *,
        format: str,
        quota_bytes: int,
        always: bool,
        own_forward_only: bool,
        tell: Callable[[str, Exception | None], None],
    ):
        """
        Args:
          address: of the egeria-cache, "unix:/path".
          model: unwrapped.
          format: of what is kept: see Config.cache_format.
          quota_bytes: of the job; 0: the daemon's.
          always: do so whatever it costs.
          own_forward_only: see Skipper.
          tell: called with what goes wrong, for people.
        """
        self.repeats = Repeats()
        self._address = address
        self._model = model
        self._format = format
        self._quota_bytes = quota_bytes
        self._always = always
        self._own_forward_only = own_forward_only
        self._tell = tell
        self._prefix = 0
        self._cache: _native.ActivationCache | None = None
        self._store: PrefixStore | None = None
        self._skipper: Skipper | None = None
        self._changes = 0  # of attributes, since the prefix froze
        self._changed: ModuleFingerprint | None = None  # as they are now, while they are waited for
        self._steady = 0  # steps that they have been so
        self._counters: dict[str, int] = {}  # of the prefixes before
        self._saved_seconds = 0.0  # by those
        self._spent_seconds = 0.0  # for those
        self._watch = Stopwatch()  # of all but the skipper's own
        self._final: dict[str, Any] | None = None  # estimates() at the end
        self._state = ""

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a training forward pass of the wrapped model. Ids that nobody needs have to be taken too: else it
        looks as if the loop took batches ahead."""
        if self._skipper is not None and self._skipper.refusal is None:
            return
        with self._watch:
            ids = current().take(batch_of(pytree.tree_leaves((args, kwargs))))
            self.repeats.note(args, kwargs, ids)

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """For passes of the model that are not training's."""
        return contextlib.nullcontext() if self._skipper is None else self._skipper.aside()

    def after_step(self) -> None:
        """At the end of a step."""
        if self._skipper is not None:
            self._log_state(self._skipper)

    def follow(self, modules: Sequence[LayerModule], prefix: int, namespace: str) -> None:
        """Between two steps: `prefix` of the layer modules are frozen now. No collective: others may have no cache.

        Args:
          namespace: a UUID. Ranks that have the same share entries; the first one counts.
        """
        if prefix != self._prefix:
            self._prefix = prefix
            self._changes = 0
            self._changed = None
            with self._watch:
                self._leave()
                if prefix > 0:
                    self._begin(modules, ModuleFingerprint(self._model, modules, prefix), namespace)
        elif self._has_changed() and self._changes < _MOST_CHANGES:
            with self._watch:
                self._wait(modules, namespace)

    def counters(self) -> dict[str, Any]:
        """Totals over all prefixes: see Skipper.counters; and, with "cache_" before them, those of the line to the
        daemon."""
        totals = self._skipped()
        if self._cache is not None:
            _add(totals, {f"cache_{name}": value for name, value in self._cache.counters().items()})
        return totals

    def estimates(self) -> dict[str, Any]:
        """Of the prefix that is frozen now, or was at the end, see CacheGate.estimates(); "saved_seconds" over all
        prefixes. "state" is "refused" where the prefix cannot be skipped, and "unfrozen" where nothing is frozen."""
        if self._final is not None:
            return dict(self._final)
        if self._skipper is None:
            return {
                "state": "unfrozen",
                "reason": "nothing is frozen",
                "saved_seconds": self._saved_seconds,
                "forward_seconds": None,
                "fetch_seconds": None,
            }
        estimates = self._skipper.gate.estimates()
        estimates["saved_seconds"] += self._saved_seconds
        if self._skipper.refusal is not None:
            estimates.update(state="refused", reason=str(self._skipper.refusal))
        return estimates

    def summary(self) -> dict[str, Any]:
        """passes, passes_skipped (training passes with frozen layers, and those that needed none of them), hits, misses
        (samples), saved_seconds (less what it took), spent_seconds, state, reason."""
        totals, estimates = self.counters(), self.estimates()
        return {
            **{name: totals.get(name, 0) for name in ("passes", "passes_skipped", "hits", "misses")},
            "spent_seconds": self.spent_seconds,
            **{name: estimates[name] for name in ("saved_seconds", "state", "reason")},
        }

    @property
    def spent_seconds(self) -> float:
        """What all of this has taken of the training thread's time, whether it saved some or not."""
        present = self._skipper.watch.seconds if self._skipper is not None else 0.0
        return self._spent_seconds + self._watch.seconds + present

    def totals(self) -> tuple[dict[str, int], dict[str, int], dict[str, Any], _native.ActivationCache | None]:
        """For the metrics: Skipper's counters over all prefixes, samples by why they were no hits, estimates(), and the
        line to the daemon, if there is one."""
        counters = self._skipped()
        misses = {name[len("miss_") :]: value for name, value in counters.items() if name.startswith("miss_")}
        return counters, misses, self.estimates(), self._cache

    def close(self, forget: bool) -> None:
        """Leaves the model as it was. `forget`: the entries of a training that has finished; else they stay for its
        resume."""
        self._final = self.estimates()
        self._leave(forget)
        if self._cache is not None:
            self._cache.flush(1.0)
            self._cache.close()

    def _begin(self, modules: Sequence[LayerModule], attributes: ModuleFingerprint, namespace: str) -> None:
        frozen, device = modules[: self._prefix], device_of(self._model)
        if self._cache is None:
            self._cache = _native.ActivationCache(
                self._address,
                namespace,
                device=str(device),
                format=self._format,
                quota_bytes=self._quota_bytes,
                patience_seconds=CacheGate.longest_patience,
            )
        self._store = PrefixStore(self._cache, fingerprint(frozen, attributes), self._format)
        self._skipper = Skipper(
            self._model,
            frozen,
            attributes,
            self._store,
            take_ids=current().take,
            upcoming=_upcoming,
            gate=CacheGate(device, self.repeats, self._always),
            own_forward_only=self._own_forward_only,
            tell=self._refused,
        )

    def _has_changed(self) -> bool:
        refusal = self._skipper.refusal if self._skipper is not None else None
        return refusal is not None and refusal.name == "SETTING_CHANGED"

    def _refused(self, what: str, error: Exception | None) -> None:
        """That attributes have changed is said when they are not waited for any more."""
        if not isinstance(error, Refused) or error.name != "SETTING_CHANGED":
            self._tell(what, error)

    def _wait(self, modules: Sequence[LayerModule], namespace: str) -> None:
        """At the end of a step, when attributes have changed: begins anew once they stay as they are."""
        if self._changed is None or self._changed.changed() is not None:
            self._changes += 1
            self._steady = 0
            self._changed = ModuleFingerprint(self._model, modules, self._prefix)
            if self._changes == _MOST_CHANGES and self._skipper is not None:
                self._tell("the forward pass of the frozen layers is not skipped", self._skipper.refusal)
            return
        self._steady += 1
        if self._steady == _STEADY_STEPS:
            attributes, self._changed = self._changed, None
            self._leave()
            self._begin(modules, attributes, namespace)

    def _skipped(self) -> dict[str, Any]:
        """Skipper's counters, over all prefixes."""
        totals = dict(self._counters)
        if self._skipper is not None:
            _add(totals, self._skipper.counters)
        return totals

    def _leave(self, forget: bool = True) -> None:
        if self._skipper is not None:
            self._skipper.close()
            _add(self._counters, self._skipper.counters)
            self._saved_seconds += self._skipper.gate.estimates()["saved_seconds"]
            self._spent_seconds += self._skipper.watch.seconds
            self._skipper = None
        if self._store is not None and forget:
            self._store.forget()
        self._store = None
        self._state = ""

    def _log_state(self, skipper: Skipper) -> None:
        if skipper.counters["passes"] % _LOOK_EVERY:
            return
        estimates = self.estimates()
        if estimates["state"] != self._state and estimates["state"] in ("on", "off"):
            _logger.info("egeria: the cache of frozen activations is %s: %s", estimates["state"], estimates["reason"])
        self._state = estimates["state"]


def _upcoming() -> list[list[int]]:
    return current().upcoming()[:_AHEAD]


def _add(totals: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        totals[name] = totals.get(name, 0) + value
