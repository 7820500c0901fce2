"""Skips the forward pass of a frozen prefix where a store has its results."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from egeria import _native
from egeria.cache import rounding_effect
from egeria.cache.computed_alone import fill_in
from egeria.cache.early_batches import EarlyBatches
from egeria.cache.forward_patches import ForwardPatches
from egeria.cache.frozen_part import Part
from egeria.cache.gate import CacheGate
from egeria.cache.kept_prefix import KeptPrefix, KeptSamples
from egeria.cache.model_call import Call, UnusualCall, rows_of
from egeria.cache.other_forms import AS_THEY_ARE, Forms
from egeria.cache.prefix_cut import Cut, shadow_of
from egeria.cache.prefix_store import PrefixStore
from egeria.cache.proofs_by_shape import Proofs
from egeria.cache.proven import Proven
from egeria.cache.refused import Refused
from egeria.cache.shallower_prefix import ShallowerPrefix
from egeria.cache.skip_checks import check_skippable, check_wrappers
from egeria.data.stand_in import serve, stop_serving, values_in
from egeria.model.inputs import batch_of
from egeria.model.pass_hooks import EntryHook, PassHook, has_own_forward, is_capturing
from egeria.model.shadow import FirstPass, Shadow

_logger = logging.getLogger("egeria")

# A prefix is left alone after this many failures in a row.
_MAX_FAILURES = 3
# So many passes are computed from the start before one begins behind a shallower prefix: the ledger measures them.
_MEASURED_FIRST = 8

_Fresh = tuple[list[int], Sequence[Tensor]]  # rows of a batch, and what crosses the cut for these


class PartSource(Protocol):
    """Finds the part of a model that is skipped."""

    def deepest(self, call: Call) -> Part:
        """Returns the part to begin with. Raises Refused where there is none."""

    def shallower(self, error: Refused) -> Part | None:
        """Returns another part, after one was refused; None: there is none."""

    def open(self, part: Part, form: bytes) -> PrefixStore:
        """Returns the store of a part that has been proven, and is computed in this form (Cut.form)."""

    def shallower_prefixes(self) -> Sequence[ShallowerPrefix]:
        """Returns what was kept of parts of this part before it was frozen, the deepest first."""

    def drop(self, prefix: ShallowerPrefix) -> None:
        """Forgets one of those, which is wrong."""


class Skipper:
    """Skips one frozen part of a model in training passes as far as a store has what it would compute.

    A pass is skipped only in calls of a shape for which prove() has shown, on a real batch, that everything else
    comes out the same to the bit, and only as long as the frozen weights are what they were then. All else is
    computed as usual, and counted by its reason.

    Owned by the training thread. Nothing of it stays on the model after close(), or between two forward passes but
    two hooks on the model itself, of which copies do nothing.

    Attributes:
      refusal: why this prefix is not skipped at all; None if it may be.
      gate: decides in which passes the store is used, and what becomes of them.
      rounding: what it does to the model that the store rounds; None where it does not, or that is not known yet.
    """

    def __init__(
        self,
        model: nn.Module,
        source: PartSource,
        *,
        take_ids: Callable[[int], Sequence[int] | None],
        upcoming: Callable[[], Sequence[Sequence[int]]],
        gate: CacheGate,
        own_forward_only: bool,
        tell: Callable[[str, Exception | None], None],
        first_pass: FirstPass | None = None,
        forms: Forms = AS_THEY_ARE,
        early: EarlyBatches | None = None,
    ):
        """
        Args:
          model: unwrapped.
          source: finds the part in the first pass that may use the store.
          take_ids: the samples of the batch at hand, given their number; None where that is not known. Called once
            in each training forward pass.
          upcoming: the samples of the batches after that one, as far as they are known.
          gate: decides in which passes the store is used.
          own_forward_only: calls in which another function stands for the model's forward are none: a training
            framework's detours, with other arguments.
          tell: called with a reason why the prefix is not skipped, once, and the exception behind it.
          first_pass: of the model's shadow; without it there is none before the first proof.
          forms: in which submodules are computed whose outputs are kept.
          early: batches from before anything was frozen.
        """
        self.refusal: Refused | None = None
        self.rounding: rounding_effect.RoundingEffect | None = None
        self.gate = gate
        self._model = model
        self._source = source
        self._first_pass = first_pass
        self._forms = forms
        self._early = early
        self._take_ids = take_ids
        self._upcoming = upcoming
        self._own_forward_only = own_forward_only
        self._tell = tell
        self._kept: KeptPrefix | None = None  # once a part has been proven
        self._patches = ForwardPatches()
        self._entered = False
        self._skips = False  # the pass under way goes without the frozen layers
        self._has_kept = False  # anything
        self._computed = 0  # passes, to be kept
        self._fills = False  # the last pass was one of those
        self._shadow: Shadow | None = None  # computes samples alone
        self._failures = 0  # in a row
        self._handles: list[RemovableHandle] = []
        try:
            check_skippable(model, ())
            check_wrappers(model)
        except Refused as error:
            self._refuse(error)
            return
        self._handles = [
            model.register_forward_pre_hook(EntryHook(self._enter), with_kwargs=True),
            model.register_forward_hook(PassHook(self._leave), with_kwargs=True, always_call=True),
        ]

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], ids: Sequence[int] | None) -> None:
        """Prepares the next forward pass of the model, which is called with these arguments.

        Args:
          ids: the samples', in the order of the rows; None: not known.
        """
        self.disarm()
        if self.refusal is None:
            with self.gate.watch:
                self._begin_pass(args, kwargs, ids)

    @property
    def kept(self) -> KeptPrefix | None:
        """The prefix that is kept now; None where nothing is, or may be."""
        return self._kept if self.refusal is None and self._has_kept else None

    @property
    def uses_pass(self) -> bool:
        """Whether the pass under way is skipped or looked at."""
        return bool(self._patches)

    def disarm(self) -> None:
        """Leaves the next forward pass as it would be."""
        self._entered = self._skips = False
        if self._patches:
            self._forms.leave()
            self._patches.release()

    def close(self) -> None:
        """Leaves the model as it was. Idempotent."""
        self.disarm()
        stop_serving(self)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # These methods are the two hooks.

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns other arguments where the frozen layers run on samples that were not loaded."""
        self._prepare_pass(args, kwargs)
        return None if self._skips else values_in(args, kwargs)

    def _prepare_pass(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_capturing() or (self._own_forward_only and not has_own_forward(self._model)):
            return
        training = self._model.training and torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        if training and not self._entered:
            try:
                ids = self._take_ids(batch_of(args, kwargs))
            except Exception as error:  # pylint: disable=broad-exception-caught
                self._fail(error, 0)
                return
            self.before_forward(args, kwargs, ids)
            self._entered = bool(self._patches)
        else:  # validation, or what a pass that was broken off has left
            self.disarm()

    def _leave(self, *_: Any) -> None:
        self.disarm()

    # The methods below are about one pass.

    def _begin_pass(self, args: tuple[Any, ...], kwargs: dict[str, Any], ids: Sequence[int] | None) -> None:
        samples = 0 if ids is None else len(ids)
        try:
            used = self.gate.use(args, kwargs, ids)
            self._forget_what_differs()
            if used:
                self._prepare(args, kwargs, list(ids or ()))
                upcoming = self._upcoming()
                self._kept.expect(upcoming)
                for prefix in self._source.shallower_prefixes():
                    prefix.expect(upcoming if self._fills else ())
            elif ids is not None:
                stop_serving(self)
        except UnusualCall as error:
            self.disarm()
            _logger.debug("egeria: %s", error)
            self.gate.ledger.missed("unusual_call", samples)
        except Refused as error:
            self.disarm()
            self._refuse(error)
        except Exception as error:  # pylint: disable=broad-exception-caught
            self.disarm()
            self._fail(error, samples)

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any], ids: list[int]) -> None:
        ledger = self.gate.ledger
        ledger.ask()
        call = Call(args, kwargs, len(ids))
        if nn.modules.module._has_any_global_hook():
            raise UnusualCall("a hook for all modules may see what the frozen layers compute")
        if self._kept is None and not self._forms.settled():
            raise UnusualCall("it is not known yet in which form frozen layers are computed")
        proven = self._proof_for(call)
        if proven is None or not proven.confirmed:
            ledger.missed("unproven", call.batch)
            begin = ledger.now()
            if proven is not None:
                self._confirm(proven, call, self._kept.samples(call, proven, ids), ids)
            elif (awaited := self._kept.proofs.awaited(call)) is not None:
                self._let_wait(*awaited, call, ids)
            else:
                self._keep_rest(call, ids)
            ledger.spent(begin)
            return
        serve(self, call.batch)
        cut, asked = proven.cut, self._kept.samples(call, proven, ids)
        tensors, reasons, fits = self._kept.fetch(cut, asked, self.gate.patience)
        self.gate.found(reasons)
        tensors, missing = tensors if fits else (), ledger.answer(reasons, fits)
        if call.source is not None and call.source.fetched(missing):
            asked = self._kept.samples(call, proven, ids)
        if self._forget_what_differs():
            ledger.missed("recomputed", len(ids) - len(missing))
            return
        rows = self._compute_alone(proven, call, missing, tensors) if missing and tensors else ()
        step = ledger.decide(not missing or bool(rows))
        self._fills = step == "compute"
        if step == "compute":
            self._keep_early(ids)
            self._populate(cut, missing, asked, self._begin_behind_shallower(call, proven, ids))
            return
        crossing = cut.placed(tensors)
        fresh = (missing, rows) if rows else ([], ())
        if step == "audit":
            self._audit(cut, crossing, asked, fresh)
        else:
            if cut.forms is not None:  # frozen submodules behind the cut are computed in each pass
                cut.forms.join(cut.entries)
            cut.skip(self._patches, crossing, lambda: self._finish(lambda: self._use(asked, fresh), call.batch))
            self._skips = True

    def _forget_what_differs(self) -> bool:
        """Forgets what was kept before it was known that samples do not come again as they were. Returns whether that
        is so."""
        if self.gate.samples_differ and self._has_kept:
            self._has_kept = False
            self._kept.store.forget()
            self._kept.waiting.clear()
        return self.gate.samples_differ

    def _proof_for(self, call: Call) -> Proven | None:
        """Returns the proof for calls like this one; None where there is none. The first one decides where the model is
        cut.

        Raises:
          Refused: no part of the model may be skipped.
        """
        if self._first_pass is not None and self._first_pass.why_not is not None:
            raise Refused("NO_SHADOW", self._first_pass.why_not)
        if self._kept is not None:
            if self._kept.part.fingerprint.trains:  # for this pass only, perhaps
                raise UnusualCall("a parameter of the frozen layers requires a gradient")
            if self._kept.part.is_watched:
                raise UnusualCall("a hook around the frozen layers may see what goes in or out")
            return self._kept.proofs.find(call)
        begin = self.gate.ledger.now()
        part = self._source.deepest(call)
        self.gate.ledger.spent(begin)
        while True:
            proofs = Proofs(self._model, part.frozen, self.gate, self._forms)
            try:
                proven = proofs.find(call)
                break
            except Refused as error:
                other = self._source.shallower(error)
                if other is None:
                    raise
                part = other
        form = b"" if proven is None else proven.cut.form
        self._kept = KeptPrefix(part, proofs, self._source.open(part, form))
        self.rounding = None
        return proven

    def _finish(self, act: Callable[[], None], samples: int) -> bool:
        """Acts within a pass, when the model comes to what it could skip, or from there; unless it has changed what it
        is made of by then. Returns False where something is wrong, which costs the hits of `samples`."""
        self.gate.ledger.resume()
        try:
            with self.gate.watch:
                self._kept.part.fingerprint.check_unchanged(self._patches.added)
                act()
        except Refused as error:
            self._refuse(error)
            return False
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._fail(error, samples)
            return False
        self._failures = 0
        return True

    def _use(self, asked: KeptSamples, fresh: _Fresh) -> None:
        """The pass is skipped; `fresh` were computed alone for that."""
        asked.put(self._kept.store, *fresh)
        self.gate.ledger.skipped()

    def _compute_alone(
        self, proven: Proven, call: Call, missing: list[int], tensors: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Fills in the rows of the samples that are missing, and returns them; none if they may not be computed
        alone."""
        parts = self._kept.proofs.alone(proven, call, missing)
        if not parts:
            return ()
        return fill_in(tensors, missing, parts, lambda part: self._compute_beside(proven.cut, part))

    def _compute_beside(self, cut: Cut, call: Call) -> list[Tensor]:
        """Computes what crosses the cut in another call than the pass under way, on a shadow."""
        if self._shadow is None:
            self._shadow = shadow_of(self._model)
        return cut.compute(self._shadow, call)

    def _keep_early(self, ids: list[int]) -> None:
        """Keeps what a batch has that came before anything was frozen, beside a pass of these samples."""
        if self._early is None or not self.gate.expects_repeats or (batch := self._early.take(ids)) is None:
            return
        proven = self._kept.proofs.known(batch.call, ())
        if proven is None:
            self._early.give_back(batch)
            return
        begin = self.gate.ledger.now()
        asked = self._kept.samples(batch.call, proven, batch.ids)
        self._keep_beside(proven, batch.call, asked, list(range(batch.call.batch)))
        self.gate.ledger.spent(begin)

    def _keep_rest(self, call: Call, ids: list[int]) -> None:
        """Keeps the samples of an epoch's last batch, which has fewer of them, as they are in a whole one. In the next
        epoch each of them is in another batch, and would make that one cost a pass."""
        if not self.gate.expects_repeats or self.gate.passes_left(math.inf) <= 1:
            return
        if (whole := self._kept.proofs.whole(call)) is None:
            return
        filled, proven = whole
        asked = self._kept.samples(filled, proven, [*ids, *ids[:1] * (filled.batch - call.batch)])
        _, reasons, _ = self._kept.fetch(proven.cut, asked, self.gate.patience)
        if missing := [row for row, reason in enumerate(reasons[: call.batch]) if reason]:
            self._keep_beside(proven, filled, asked, missing)

    def _keep_beside(self, proven: Proven, call: Call, asked: KeptSamples, rows: list[int]) -> None:
        """Computes another call than the pass under way, and keeps these rows of it."""
        self._kept.part.fingerprint.check_unchanged(self._patches.added)
        tensors = self._compute_beside(proven.cut, call)
        if proven.cut.is_in_its_form:
            asked.put(self._kept.store, rows, rows_of(tensors, rows))

    def _begin_behind_shallower(self, call: Call, proven: Proven, ids: list[int]) -> float | None:
        """Lets a pass that is computed to be kept begin behind a shallower prefix that has its samples. Returns the
        seconds that this saves; None: it begins at the model's start."""
        self._computed += 1
        if self._computed <= _MEASURED_FIRST or proven.cut.forms is not None:
            return None
        ledger, patience = self.gate.ledger, self.gate.patience
        begin = ledger.now()
        for prefix in self._source.shallower_prefixes():
            try:
                if prefix.begin_behind(self._patches, self._model, call, ids, proven, patience, self._unchanged):
                    return prefix.forward_seconds - (ledger.now() - begin)
            except Refused as error:
                _logger.info("egeria: what is frozen is computed from the start: %s", error)
                self._source.drop(prefix)
                break
        return None

    def _unchanged(self) -> bool:
        return self._finish(lambda: None, 0)

    def _observe(self, cut: Cut, reached: Callable[[list[Tensor]], None], whole: bool = True) -> None:
        """Lets this pass be computed as usual, and gives `reached` what crosses the cut. It is measured if it is
        `whole`: it begins at the model's start."""

        def guarded(tensors: list[Tensor]) -> None:
            if whole:
                self.gate.ledger.end_compute()
            # A pass in other forms gives tensors that are neither kept nor compared.
            if cut.is_in_its_form:
                self._finish(lambda: reached(tensors), 0)

        if cut.forms is not None:
            cut.forms.join(cut.live_entries)
        cut.observe(self._patches, guarded)
        if whole:
            self.gate.ledger.begin_compute()

    def _confirm(self, proven: Proven, call: Call, asked: KeptSamples, ids: list[int]) -> None:
        """Stores what crosses the cut in this pass, which has to be what a pass on the side computes."""
        measured = self._kept.store.rounds and self.rounding is None
        expected = proven.take_computed(call, lambda: proven.cut.compute(shadow_of(self._model), call), whole=measured)
        if measured:
            self.rounding = rounding_effect.measure(
                self._model, proven.cut, call, expected.tensors, self._kept.store.as_kept
            )
            _logger.info("egeria: frozen activations are kept rounded, which changes them %s", self.rounding)

        def reached(tensors: list[Tensor]) -> None:
            if not expected.is_in(tensors):
                raise Refused(
                    "OUTPUT_DIFFERS",
                    "the frozen layers compute something else in the training's own pass than in one on the side",
                )
            proven.confirmed = self._has_kept = True
            self.gate.kept(ids)
            asked.put(self._kept.store, range(call.batch), tensors)
            for batch in self._kept.waiting.take((proven.kind, call.key()), proven.cut.names):
                found = self._kept.samples(batch.call, proven, batch.ids)
                found.put(self._kept.store, range(batch.call.batch), batch.tensors)

        self._observe(proven.cut, reached)

    def _let_wait(self, key: Any, cut: Cut, call: Call, ids: list[int]) -> None:
        """Keeps what this pass computes until its length is proven."""

        def reached(tensors: list[Tensor]) -> None:
            self._kept.waiting.add(key, call, ids, cut.names, tensors)

        self._observe(cut, reached, whole=False)

    def _populate(self, cut: Cut, missing: list[int], asked: KeptSamples, saved: float | None) -> None:
        """Stores what crosses the cut in this pass, as far as the store has not got it. The pass may begin behind a
        shallower prefix, which has `saved` so many seconds."""

        def reached(tensors: list[Tensor]) -> None:
            asked.put(self._kept.store, missing, rows_of(tensors, missing))
            self.gate.ledger.kept(self._kept.store.seconds_behind)
            if saved is not None:
                self.gate.ledger.spared(saved)

        self._observe(cut, reached, whole=saved is None)

    def _audit(self, cut: Cut, fetched: list[Tensor], asked: KeptSamples, fresh: _Fresh) -> None:
        """Compares what crosses the cut in this pass with what would have been used instead."""

        def reached(tensors: list[Tensor]) -> None:
            mine, theirs = (self._kept.store.as_kept(asked.without_padding(each)) for each in (tensors, fetched))
            if not _native.same_rows(mine, theirs, range(len(tensors[0]))):
                self._kept.store.forget()
                raise Refused("STORE_DIFFERS", "the store has other activations than the frozen layers compute")
            asked.put(self._kept.store, *fresh)

        self._observe(cut, reached)

    def _refuse(self, error: Refused) -> None:
        self.refusal = error
        self.close()
        self._tell("the forward pass of the frozen layers is not skipped", error)

    def _fail(self, error: Exception, samples: int) -> None:
        """Notes that something of ours, or of the store, went wrong; this pass is computed as usual."""
        self.gate.ledger.failed(samples)
        self._failures += 1
        if self._failures >= _MAX_FAILURES:
            self._refuse(Refused("FAILED", f"{_MAX_FAILURES} times in a row: {type(error).__name__}: {error}"))
