"""A training uses this class for the cache: it decides which frozen prefix is skipped, and follows what is frozen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from egeria import _native
from egeria.cache.gate import CacheGate
from egeria.cache.module_fingerprint import ModuleFingerprint
from egeria.cache.prefix_store import PrefixStore, fingerprint
from egeria.cache.repeated_samples import Repeats
from egeria.cache.skipper import Skipper
from egeria.config import Config
from egeria.data import stand_in
from egeria.data.sample_ids import current
from egeria.model.inputs import batch_of
from egeria.model.isolation import device_of
from egeria.model.modules import LayerModule
from egeria.model.shadow import FirstPass

_logger = logging.getLogger("egeria")

# Batches that are read ahead, as far as they are known.
_AHEAD = 8
# A change of frozen layers that lasts so many steps is taken for what they are.
_SETTLED_AFTER = 4


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
        first_pass: FirstPass | None = None,
        steps_left: Callable[[], int | None] = lambda: None,
    ):
        """
        Args:
          address: of the egeria-cache, "unix:/path".
          model: unwrapped.
          format: how activations are kept: see Config.cache_format.
          quota_bytes: the job's; 0: the daemon's.
          always: the cache is used whatever it costs.
          own_forward_only: see Skipper.
          tell: called with what goes wrong, for people.
          first_pass: see Skipper.
          steps_left: of the training; None: not known.
        """
        self.repeats = Repeats()
        self._address = address
        self._model = model
        self._format = format
        self._quota_bytes = quota_bytes
        self._own_forward_only = own_forward_only
        self._tell = tell
        self._first_pass = first_pass
        self._prefix = 0
        self._cache: _native.ActivationCache | None = None
        self._store: PrefixStore | None = None
        self._skipper: Skipper | None = None
        self._gate = CacheGate(device_of(model), self.repeats, always, lambda: current().drew, steps_left)
        self._final: dict[str, Any] | None = None  # estimates() at the end
        self._samples_before = stand_in.counts.copy()
        self._fingerprint = b""  # the fingerprint of the prefix that is skipped, or was
        # Where that has changed: the steps since then, the fingerprint at the last look, and the steps after which one
        # that stays counts as settled.
        self._steps_changed = 0
        self._seen = b""
        self._settled_after = _SETTLED_AFTER

    @classmethod
    def of(
        cls,
        config: Config,
        model: nn.Module,
        own_forward_only: bool,
        tell: Callable[[str, Exception | None], None],
        first_pass: FirstPass,
        steps_left: Callable[[], int | None],
    ) -> Caching | None:
        """Makes one as the configuration says; None where it names no cache."""
        if (address := config.cache_address()) is None:
            return None
        return cls(
            address,
            model,
            format=config.cache_format,
            quota_bytes=config.cache_job_bytes(),
            always=config.cache_use == "always",
            own_forward_only=own_forward_only,
            tell=tell,
            first_pass=first_pass,
            steps_left=steps_left,
        )

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A training forward pass of the wrapped model is about to begin. Ids that nobody needs have to be taken too:
        else it looks as if the loop took batches ahead."""
        if self._skipper is not None and self._skipper.refusal is None:
            return
        with self._gate.watch:
            ids = current().take(batch_of(args, kwargs))
            self.repeats.note(args, kwargs, ids)

    def after_step(self) -> None:
        """A step has ended."""
        if (news := self._gate.ledger.news()) is not None:
            _logger.info("egeria: the cache of frozen activations is %s", news)

    def follow(self, modules: Sequence[LayerModule], prefix: int, namespace: str) -> None:
        """Follows what is frozen, between two steps: `prefix` of the layer modules are frozen now. This is no
        collective: other ranks may have no cache.

        Args:
          namespace: a UUID. Ranks that have the same share entries; the first one counts.
        """
        if prefix == self._prefix:
            if self._has_changed():
                with self._gate.watch:
                    self._return_when_settled(modules, namespace)
            return
        self._prefix = prefix
        self._settled_after = _SETTLED_AFTER
        with self._gate.watch:
            self._leave()
            if prefix > 0:
                self._begin(modules, namespace)

    def counters(self) -> dict[str, Any]:
        """Returns the ledger's counts over all prefixes, and, with "cache_" before them, those of the line to the
        daemon.

        "passes", "passes_skipped"; "hits" and "misses" in samples. Misses by reason are the store's ("miss_absent",
        "miss_late", "miss_other_input", ...), "miss_recomputed" (with others of their batch), "miss_audited",
        "miss_no_ids" (in passes), "miss_off" (the cache does not pay), "miss_unproven" (there is no proof for this
        shape of call), "miss_unusual_call", "miss_unfit" (the store gave something else) and "miss_failure". "proofs"
        were made, each in a few steps' time; "audits" are passes that were computed although they might have been
        skipped; "failures" are those of the cache. "samples_left_out" and so on, where there are any, are those of
        egeria.data.stand_in.counts since this cache began.
        """
        line = {} if self._cache is None else self._cache.counters()
        samples = stand_in.counts - self._samples_before
        return {
            **self._gate.ledger.counters(),
            **{f"cache_{name}": value for name, value in line.items()},
            **{f"samples_{name}": value for name, value in samples.items()},
        }

    def estimates(self) -> dict[str, Any]:
        """Returns what is known of the prefix that is frozen now, or was at the end: "state" ("unknown", "trying",
        "on", "off"; "refused" where the prefix cannot be skipped, and "unfrozen" where nothing is frozen), "reason",
        "forward_seconds" and "fetch_seconds" of a pass (None: not known); and "saved_seconds" over all prefixes, less
        what was spent."""
        if self._final is not None:
            return dict(self._final)
        estimates = self._gate.ledger.estimates()
        if self._skipper is None:
            estimates.update(state="unfrozen", reason="nothing is frozen")
        elif self._skipper.refusal is not None:
            estimates.update(state="refused", reason=str(self._skipper.refusal))
        return estimates

    def summary(self) -> dict[str, Any]:
        """Returns passes, passes_skipped (training passes with frozen layers, and those that needed none of them),
        hits, misses (samples), saved_seconds (less what it took), spent_seconds, state, reason."""
        counters, estimates = self._gate.ledger.counters(), self.estimates()
        return {
            **{name: counters[name] for name in ("passes", "passes_skipped", "hits", "misses")},
            "spent_seconds": self.spent_seconds,
            **{name: estimates[name] for name in ("saved_seconds", "state", "reason")},
        }

    @property
    def spent_seconds(self) -> float:
        """The training thread has spent so much on all of this, whether it saved time or not."""
        return self._gate.watch.seconds

    @property
    def uses_pass(self) -> bool:
        """Whether the training's pass under way is skipped or looked at."""
        return self._skipper is not None and self._skipper.uses_pass

    def totals(self) -> tuple[_native.PassLedger, str, str, _native.ActivationCache | None]:
        """Returns the arguments of RankLink.set_cache_totals()."""
        estimates = self.estimates()
        return self._gate.ledger, estimates["state"], estimates["reason"], self._cache

    def close(self, forget: bool) -> None:
        """Leaves the model as it was. With `forget` the training has finished, and its entries are not needed any more;
        else they stay for its resume."""
        self._final = self.estimates()
        self._leave(forget)
        if self._cache is not None:
            self._cache.flush(1.0)
            self._cache.close()

    def _has_changed(self) -> bool:
        """Whether the prefix is not skipped because somebody has changed a weight or a setting."""
        refusal = self._skipper.refusal if self._skipper is not None else None
        return refusal is not None and refusal.name in ("WEIGHTS_CHANGED", "SETTING_CHANGED")

    def _return_when_settled(self, modules: Sequence[LayerModule], namespace: str) -> None:
        """Contents decide: where the prefix is what it was, it is skipped as before; where it stays something else,
        that is a prefix, too. Looks take a while and come more and more rarely, and so does the second."""
        self._steps_changed += 1
        if self._steps_changed & (self._steps_changed - 1):
            return
        seen, self._seen = self._seen, fingerprint(ModuleFingerprint(self._model, modules, self._prefix))
        is_back = self._seen == self._fingerprint
        if not is_back:
            if self._seen != seen or self._steps_changed < self._settled_after:
                return
            self._settled_after *= 4
        self._leave(forget=not is_back)
        self._begin(modules, namespace)

    def _begin(self, modules: Sequence[LayerModule], namespace: str) -> None:
        prefix = ModuleFingerprint(self._model, modules, self._prefix)
        if self._cache is None:
            self._cache = _native.ActivationCache(
                self._address,
                namespace,
                device=str(device_of(self._model)),
                format=self._format,
                quota_bytes=self._quota_bytes,
                patience_seconds=CacheGate.longest_patience,
            )
        self._fingerprint = fingerprint(prefix)
        self._store = PrefixStore(self._cache, self._fingerprint, self._format)
        self._skipper = Skipper(
            self._model,
            modules[: self._prefix],
            prefix,
            self._store,
            take_ids=current().take,
            upcoming=_upcoming,
            gate=self._gate,
            own_forward_only=self._own_forward_only,
            tell=self._tell,
            first_pass=self._first_pass,
        )

    def _leave(self, forget: bool = True) -> None:
        if self._skipper is not None:
            self._skipper.close()
            self._skipper = None
        if self._store is not None and forget:
            self._store.forget()
        self._store = None
        self._steps_changed = 0
        self._seen = b""
        self._gate.follow()


def _upcoming() -> list[list[int]]:
    return current().upcoming()[:_AHEAD]
