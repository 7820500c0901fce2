"""A training uses this class for the cache: it follows what does not train, and has that skipped."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from egeria import _native
from egeria.cache.early_batches import EarlyBatches
from egeria.cache.frozen_part import Part, PartSearch, resting
from egeria.cache.gate import CacheGate
from egeria.cache.model_call import Call
from egeria.cache.other_forms import AS_THEY_ARE, Forms
from egeria.cache.prefix_store import ROUNDING, PrefixStore, fingerprint
from egeria.cache.refused import Refused
from egeria.cache.repeated_samples import Repeats
from egeria.cache.settling import Settling
from egeria.cache.shallower_prefix import ShallowerPrefix
from egeria.cache.skipper import Skipper
from egeria.config import Config
from egeria.data import stand_in
from egeria.data.sample_ids import current
from egeria.model.inputs import batch_of
from egeria.model.isolation import device_of
from egeria.model.module_modes import ModuleModes
from egeria.model.shadow import FirstPass

_logger = logging.getLogger("egeria")

# Batches that are read ahead, as far as they are known.
_AHEAD = 8
# So many shallower prefixes help to keep a deeper one, for so many epochs.
_MOST_SHALLOWER = 2
_EPOCHS_OF_SHALLOWER = 2


class Caching:
    """Lets the training skip the forward pass of what does not train, whoever has frozen it, as far as the node's
    egeria-cache has it.

    Owned by the training thread.

    Attributes:
      repeats: whether samples come to the model as they came before; for checkpoints.
    """

    def __init__(
        self,
        address: str,
        model: nn.Module,
        namespace: Callable[[], str],
        *,
        format: str,
        quota_bytes: int,
        always: bool,
        own_forward_only: bool,
        tell: Callable[[str, Exception | None], None],
        warn: Callable[[str], None],
        first_pass: FirstPass | None = None,
        steps_left: Callable[[], int | None] = lambda: None,
        forms: Forms = AS_THEY_ARE,
    ):
        """
        Args:
          address: of the egeria-cache, "unix:/path".
          model: unwrapped.
          namespace: returns a UUID. Ranks that have the same share entries. Called once, when it is needed.
          format: how activations are kept: see Config.cache_form().
          quota_bytes: the job's; 0: the daemon's.
          always: the cache is used whatever it costs.
          own_forward_only: see Skipper.
          tell: called with what goes wrong, for people.
          warn: called with what they can do about it.
          first_pass: see Skipper.
          steps_left: of the training; None: not known.
          forms: see Skipper.
        """
        self._forms = forms
        self.repeats = Repeats()
        self._address = address
        self._model = model
        self._namespace = namespace
        self._format = format
        self._quota_bytes = quota_bytes
        self._own_forward_only = own_forward_only
        self._tell = tell
        self._warn = warn
        self._first_pass = first_pass
        self._flags, self._modes = b"", b""  # as the parameters and modules below had them last
        self._gradients = _native.GradientFlags([])  # they are read from the model's parameters
        self._modules: list[nn.Module] = []  # those that do not train
        self._modes_of = ModuleModes([])  # theirs
        self._is_first = True  # no pass of the model has been followed
        self._is_late = False  # nothing begins any more
        self._search: PartSearch | None = None
        self._part: Part | None = None
        self._cache: _native.ActivationCache | None = None
        self._store: PrefixStore | None = None
        self._skipper: Skipper | None = None
        self._shallower: list[ShallowerPrefix] = []  # the deepest first
        self._gate = CacheGate(device_of(model), self.repeats, always, lambda: current().drew, steps_left)
        self._final: dict[str, Any] | None = None  # estimates() at the end
        self._rounding: dict[str, float | None] | None = None  # its effect for the newest prefix, once it is known
        self._samples_before = stand_in.counts.copy()
        self._fingerprint = b""  # the skipped part has it, or had it
        self._form = b""  # in which it is computed
        self._settling = Settling(lambda: self._gate.ledger.counters()["passes_skipped"])
        self._early = EarlyBatches(self._goes_on_after_epoch)

    @classmethod
    def of(
        cls,
        config: Config,
        model: nn.Module,
        namespace: Callable[[], str],
        own_forward_only: bool,
        tell: Callable[[str, Exception | None], None],
        warn: Callable[[str], None],
        first_pass: FirstPass,
        steps_left: Callable[[], int | None],
        forms: Forms = AS_THEY_ARE,
    ) -> Caching | None:
        """Makes one as the configuration says; None where it names no cache."""
        if (address := config.cache_address()) is None:
            return None
        return cls(
            address,
            model,
            namespace,
            format=config.cache_form(),
            quota_bytes=config.cache_job_bytes(),
            always=config.cache_use == "always",
            own_forward_only=own_forward_only,
            tell=tell,
            warn=warn,
            first_pass=first_pass,
            steps_left=steps_left,
            forms=forms,
        )

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A training forward pass of the wrapped model is about to begin. Ids that nobody needs have to be taken too:
        else it looks as if the loop took batches ahead."""
        if self._skipper is not None and self._skipper.refusal is None:
            return
        with self._gate.watch:
            ids = current().take(batch_of(args, kwargs))
            self.repeats.note(args, kwargs, ids)
            if self._skipper is None:
                self._early.note(args, kwargs, ids)

    def after_step(self) -> None:
        """A step has ended."""
        if (news := self._gate.ledger.news()) is not None:
            _logger.info("egeria: the cache of frozen activations is %s", news)

    def follow(self, may_begin: bool = True) -> None:
        """Follows what does not train, between two steps. This is no collective: other ranks may have no cache.

        Args:
          may_begin: False: nothing else is skipped than what is already.
        """
        flags, modes = self._gradients.now(), self._modes_of.now()
        if flags and flags == self._flags and modes == self._modes:
            with self._gate.watch:
                if self._has_changed():
                    self._return_when_settled()
                self._look_again()
                if self._shallower and self._gate.epochs >= _EPOCHS_OF_SHALLOWER:
                    self._keep_shallower([])
            return
        self._is_late = not may_begin
        with self._gate.watch:
            self._look()
            if not may_begin and self._part is not None and not self._part.fingerprint.trains:
                return
            self._settling.begin_anew()
            begins = bool(self._modules) and may_begin
            if begins:
                self._hold_shallower()
            self._leave(forget=not self._modules)
            if begins:
                self._begin()

    def skip_nothing(self) -> None:
        """Nothing is skipped until the next follow(), and all that is kept is forgotten."""
        with self._gate.watch:
            self._leave(forget=True)
            self._gradients = _native.GradientFlags([])

    def counters(self) -> dict[str, Any]:
        """Returns the ledger's counts over all prefixes, and, with "cache_" before them, those of the line to the
        daemon.

        "passes", "passes_skipped"; "passes_spared" were computed to be kept, but for the layers of a shallower prefix
        that was; "hits" and "misses" in samples. Misses by reason are the store's ("miss_absent",
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
        if self._skipper is None and self._modules and self._is_late:
            estimates.update(state="off", reason="the training ends too soon for keeping what is frozen to pay")
        elif self._skipper is None:
            estimates.update(state="unfrozen", reason="nothing is frozen")
        elif self._skipper.refusal is not None:
            estimates.update(state="refused", reason=str(self._skipper.refusal))
        return estimates

    def summary(self) -> dict[str, Any]:
        """Returns passes, passes_skipped (training passes with frozen layers, and those that needed none of them),
        passes_spared (a shallower prefix was kept, and its layers were not needed), hits, misses (samples),
        saved_seconds (less what it took), spent_seconds, state, reason. Where hits are rounded, "precision" and
        "rounding" say how, and what that does to the model: see RoundingEffect."""
        counters, estimates = self._gate.ledger.counters(), self.estimates()
        self._note_rounding()
        rounds = {"precision": self._format, "rounding": self._rounding} if self._format in ROUNDING else {}
        return {
            **rounds,
            **{name: counters[name] for name in ("passes", "passes_skipped", "passes_spared", "hits", "misses")},
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
        for prefix in self._shallower:
            prefix.close(forget=False)
        self._shallower = []
        if self._cache is not None:
            self._cache.flush(1.0)
            self._cache.close()

    def _goes_on_after_epoch(self, passes: int) -> bool:
        """Whether another epoch comes behind one in which there were so many passes so far."""
        batches = current().batches_of_epoch()
        return batches is None or passes + self._gate.passes_left(math.inf) > batches

    def _has_changed(self) -> bool:
        """Whether the prefix is not skipped because somebody has changed a weight or a setting."""
        refusal = self._skipper.refusal if self._skipper is not None else None
        return refusal is not None and refusal.name in ("WEIGHTS_CHANGED", "SETTING_CHANGED")

    def _look(self) -> None:
        """Takes what does not train now for what is followed."""
        self._gradients = _native.GradientFlags(list(self._model.parameters()))
        self._modules = [inner for module in resting(self._model) for inner in module.modules()]
        self._modes_of = ModuleModes(self._modules)
        self._flags, self._modes = self._gradients.now(), self._modes_of.now()

    def _look_again(self) -> None:
        """Some libraries set attributes in a model's first pass, in which a part may have been found already."""
        if self._is_first and self._part is not None:
            try:
                self._part.fingerprint.check_unchanged(0)
            except Refused:
                self._leave(forget=True)
                self._begin()
        self._is_first = False

    def _return_when_settled(self) -> None:
        """Has a part that was changed skipped again, once it has settled."""
        if self._part is None or not self._settling.looks_now():
            return
        seen = fingerprint(self._part.look(), self._form)
        if self._settling.returns(seen, self._fingerprint):
            self._look()
            self._leave(forget=seen != self._fingerprint)
            self._begin()

    def _begin(self) -> None:
        if self._cache is None:
            self._cache = self._connect()
        self._skipper = Skipper(
            self._model,
            self,
            take_ids=current().take,
            upcoming=_upcoming,
            gate=self._gate,
            own_forward_only=self._own_forward_only,
            tell=self._tell,
            first_pass=self._first_pass,
            forms=self._forms,
            early=self._early,
        )

    def _connect(self) -> _native.ActivationCache:
        return _native.ActivationCache(
            self._address,
            self._namespace(),
            device=str(device_of(self._model)),
            format=self._format,
            quota_bytes=self._quota_bytes,
            patience_seconds=CacheGate.longest_patience,
        )

    # The skipper asks these for the part that it skips.

    def deepest(self, call: Call) -> Part:
        self._look()  # a script may set modes between attach() and its first step
        try:
            self._search = PartSearch(self._model, call, self._warn, self._first_pass)
            return self._search.deepest()
        except Refused:
            self._forget()
            raise

    def shallower(self, error: Refused) -> Part | None:
        return self._search.shallower(error) if self._search is not None else None

    def open(self, part: Part, form: bytes) -> PrefixStore:
        """Forgets what is kept of another part than this one, or of this one in another form."""
        self._form = form
        before, self._fingerprint = self._fingerprint, fingerprint(part.fingerprint, form)
        helps = [prefix for prefix in self._shallower if prefix.is_within(part)]
        self._keep_shallower(helps, spare=self._fingerprint)
        if self._store is not None and before not in (self._fingerprint, *(prefix.name for prefix in helps)):
            self._store.forget()
        self._search, self._part = None, part
        assert self._cache is not None
        self._store = PrefixStore(self._cache, self._fingerprint, self._format)
        return self._store

    def shallower_prefixes(self) -> Sequence[ShallowerPrefix]:
        return self._shallower

    def drop(self, prefix: ShallowerPrefix) -> None:
        self._keep_shallower([other for other in self._shallower if other is not prefix])

    def _hold_shallower(self) -> None:
        """More or less is frozen now: what was kept so far helps to keep what is frozen, if all of it still is."""
        kept = None if self._skipper is None else self._skipper.kept
        known = self._gate.ledger.estimates()
        forward = known["forward_seconds"]
        # It may have been kept in the last epoch, and not served yet.
        is_kept = kept is not None and known["state"] in ("trying", "on")
        if is_kept and forward is not None and not kept.store.rounds:
            prefix = ShallowerPrefix(kept, self._connect(), self._fingerprint, self._format, forward)
            self._shallower.insert(0, prefix)
        self._keep_shallower([prefix for prefix in self._shallower[:_MOST_SHALLOWER] if prefix.rests])
        for prefix in self._shallower:
            prefix.hold(self._modules)

    def _keep_shallower(self, prefixes: list[ShallowerPrefix], spare: bytes = b"") -> None:
        """Forgets what is kept of other prefixes than these, but for the one of the name `spare`."""
        for prefix in self._shallower:
            if prefix not in prefixes:
                prefix.close(forget=prefix.name != spare)
        self._shallower = prefixes

    def _note_rounding(self) -> None:
        if self._skipper is not None and self._skipper.rounding is not None:
            self._rounding = dataclasses.asdict(self._skipper.rounding)

    def _leave(self, forget: bool) -> None:
        if self._skipper is not None:
            self._note_rounding()
            self._skipper.close()
            self._skipper = None
        if forget:
            self._forget()
        self._search = self._part = None
        self._settling.await_change()
        self._gate.follow()

    def _forget(self) -> None:
        self._keep_shallower([])
        if self._store is not None:
            self._store.forget()
            self._store = None


def _upcoming() -> list[list[int]]:
    return current().upcoming()[:_AHEAD]
