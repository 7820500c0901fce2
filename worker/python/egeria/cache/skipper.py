"""Skips the forward pass of a frozen prefix where a store has its results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from egeria import _native
from egeria.cache import rounding_effect
from egeria.cache.forward_patches import ForwardPatches
from egeria.cache.frozen_part import Part
from egeria.cache.gate import CacheGate
from egeria.cache.model_call import Call, UnusualCall
from egeria.cache.other_forms import AS_THEY_ARE, Forms
from egeria.cache.prefix_cut import Cut, shadow_of
from egeria.cache.prefix_store import PrefixStore
from egeria.cache.proofs_by_shape import Proofs, Proven
from egeria.cache.refused import Refused
from egeria.cache.skip_checks import check_skippable
from egeria.data.stand_in import serve, stop_serving, values_in
from egeria.model.inputs import batch_of
from egeria.model.pass_hooks import EntryHook, PassHook, has_own_forward, is_capturing
from egeria.model.shadow import FirstPass, Shadow

_logger = logging.getLogger("egeria")

# A prefix is left alone after this many failures in a row.
_MAX_FAILURES = 3

_Rows = tuple[list[int], list[int], Sequence[Tensor]]  # ids, input hashes, and what crosses the cut


class PartSource(Protocol):
    """Finds the part of a model that is skipped."""

    def deepest(self, call: Call) -> Part:
        """Returns the part to begin with. Raises Refused where there is none."""

    def shallower(self, error: Refused) -> Part | None:
        """Returns another part, after one was refused; None: there is none."""

    def open(self, part: Part, form: bytes) -> PrefixStore:
        """Returns the store of a part that has been proven, and is computed in this form (Cut.form)."""


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
        """
        self.refusal: Refused | None = None
        self.rounding: rounding_effect.RoundingEffect | None = None
        self.gate = gate
        self._model = model
        self._source = source
        self._first_pass = first_pass
        self._forms = forms
        self._take_ids = take_ids
        self._upcoming = upcoming
        self._own_forward_only = own_forward_only
        self._tell = tell
        # These are there once a part has been proven.
        self._part: Part | None = None
        self._proofs: Proofs | None = None
        self._store: PrefixStore | None = None
        self._patches = ForwardPatches()
        self._entered = False
        self._skips = False  # the pass under way goes without the frozen layers
        self._has_kept = False  # anything
        self._shadow: Shadow | None = None  # computes samples alone
        self._failures = 0  # in a row
        self._handles: list[RemovableHandle] = []
        try:
            check_skippable(model, ())
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
                self._store.expect(self._upcoming())
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
        if self._proofs is None and not self._forms.settled():
            raise UnusualCall("it is not known yet in which form frozen layers are computed")
        proven = self._proof_for(call)
        if proven is None or not proven.confirmed:
            ledger.missed("unproven", call.batch)
            if proven is not None:
                begin = ledger.now()
                self._confirm(proven, call, ids, call.hashes(proven.salt))
                ledger.spent(begin)
            return
        serve(self, call.batch)
        cut, hashes = proven.cut, self._hashes(call, proven)
        tensors, missing = self._fetch(cut, ids, hashes)
        if call.source is not None and call.source.fetched(missing):
            hashes = self._hashes(call, proven)
        if self._forget_what_differs():
            ledger.missed("recomputed", len(ids) - len(missing))
            return
        rows = self._compute_alone(proven, call, missing, tensors) if missing and tensors else ()
        step = ledger.decide(not missing or bool(rows))
        if step == "compute":
            self._populate(cut, missing, ids, hashes)
            return
        crossing = [spec.placed(tensor) for spec, tensor in zip(cut.tensors, tensors)]
        fresh = [ids[i] for i in missing], [hashes[i] for i in missing], rows
        if step == "audit":
            self._audit(cut, crossing, fresh)
        else:
            if cut.forms is not None:  # frozen submodules behind the cut are computed in each pass
                cut.forms.join(cut.entries)
            cut.skip(self._patches, crossing, lambda: self._finish(lambda: self._use(fresh), call.batch))
            self._skips = True

    def _hashes(self, call: Call, proven: Proven) -> list[int]:
        """Returns the samples' input hashes. Once a sample that was not to be loaded again has come as another one, or
        the dataset is another one, what is stored is dropped."""
        hashes = call.hashes(proven.salt)
        if call.source is not None and call.source.was_outdated():
            self._store.forget()
            hashes = call.hashes(proven.salt)
        return hashes

    def _forget_what_differs(self) -> bool:
        """Forgets what was kept before it was known that samples do not come again as they were. Returns whether that
        is so."""
        if self.gate.samples_differ and self._has_kept:
            self._has_kept = False
            self._store.forget()
        return self.gate.samples_differ

    def _proof_for(self, call: Call) -> Proven | None:
        """Returns the proof for calls like this one; None where there is none. The first one decides where the model is
        cut.

        Raises:
          Refused: no part of the model may be skipped.
        """
        if self._first_pass is not None and self._first_pass.why_not is not None:
            raise Refused("NO_SHADOW", self._first_pass.why_not)
        if self._proofs is not None and self._part is not None:
            if self._part.fingerprint.trains:  # for this pass only, perhaps
                raise UnusualCall("a parameter of the frozen layers requires a gradient")
            if self._part.is_watched:
                raise UnusualCall("a hook around the frozen layers may see what goes in or out")
            return self._proofs.find(call)
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
        self._part, self._proofs, self._store = part, proofs, self._source.open(part, form)
        self.rounding = None
        return proven

    def _finish(self, act: Callable[[], None], samples: int) -> bool:
        """Acts within a pass, when the model comes to what it could skip, or from there; unless it has changed what it
        is made of by then. Returns False where something is wrong, which costs the hits of `samples`."""
        self.gate.ledger.resume()
        try:
            with self.gate.watch:
                self._part.fingerprint.check_unchanged(self._patches.added)
                act()
        except Refused as error:
            self._refuse(error)
            return False
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._fail(error, samples)
            return False
        self._failures = 0
        return True

    def _use(self, fresh: _Rows) -> None:
        """The pass is skipped; `fresh` were computed alone for that."""
        self._keep(fresh)
        self.gate.ledger.skipped()

    def _keep(self, fresh: _Rows) -> None:
        if fresh[0]:
            self._store.put(*fresh)

    def _fetch(self, cut: Cut, ids: list[int], hashes: list[int]) -> tuple[Sequence[Tensor], list[int]]:
        """Returns what crosses the cut, as far as the store has it, and the positions of the samples that it has
        not."""
        tensors, reasons = self._store.get(ids, hashes, self.gate.patience)
        self.gate.found(reasons)
        if len(reasons) != len(ids):
            raise RuntimeError(f"the store answers {len(reasons)} of {len(ids)} samples")
        specs = cut.tensors
        fits = len(tensors) == len(specs) and all(spec.fits(tensor) for spec, tensor in zip(specs, tensors))
        return tensors if fits else (), self.gate.ledger.answer(reasons, fits)

    def _compute_alone(
        self, proven: Proven, call: Call, missing: list[int], tensors: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Fills in the rows of the samples that are missing, and returns them; none if they may not be computed
        alone. They are computed with copies of one of them, up to a number that was proven to make no difference."""
        cut = proven.cut
        size = self._proofs.size_alone(proven, call, len(missing))
        if size is None:
            return ()
        alone = call.rows([*missing, *missing[:1] * (size - len(missing))])
        if cut.decides and alone.conditions() != call.conditions():
            return ()
        if self._shadow is None:
            self._shadow = shadow_of(self._model)
        computed = cut.compute(self._shadow, alone)
        rows = tuple(tensor[: len(missing)].clone() for tensor in computed)
        for tensor, row in zip(tensors, rows):
            tensor[missing] = row.to(tensor.device)
        return rows

    def _observe(self, cut: Cut, reached: Callable[[list[Tensor]], None]) -> None:
        """Lets this pass be computed as usual, and gives `reached` what crosses the cut."""

        def guarded(tensors: list[Tensor]) -> None:
            self.gate.ledger.end_compute()
            # A pass in other forms gives tensors that are neither kept nor compared.
            if cut.forms is None or cut.forms.used() == cut.form:
                self._finish(lambda: reached(tensors), 0)

        if cut.forms is not None:
            cut.forms.join(cut.live_entries)
        cut.observe(self._patches, guarded)
        self.gate.ledger.begin_compute()

    def _confirm(self, proven: Proven, call: Call, ids: list[int], hashes: list[int]) -> None:
        """Stores what crosses the cut in this pass, which has to be what a pass on the side computes."""
        expected, proven.crossing = proven.crossing, None  # once: the next pass has other samples
        if expected is None:
            expected = proven.cut.compute(shadow_of(self._model), call)
        if self._store.rounds and self.rounding is None:
            self.rounding = rounding_effect.measure(self._model, proven.cut, call, expected, self._store.as_kept)
            _logger.info("egeria: frozen activations are kept rounded, which changes them %s", self.rounding)

        def reached(tensors: list[Tensor]) -> None:
            if not _native.same_rows(tensors, expected, range(call.batch)):
                raise Refused(
                    "OUTPUT_DIFFERS",
                    "the frozen layers compute something else in the training's own pass than in one on the side",
                )
            proven.confirmed = self._has_kept = True
            self.gate.kept(ids)
            self._store.put(ids, hashes, tensors)

        self._observe(proven.cut, reached)

    def _populate(self, cut: Cut, missing: list[int], ids: list[int], hashes: list[int]) -> None:
        """Stores what crosses the cut in this pass, as far as the store has not got it."""

        def reached(tensors: list[Tensor]) -> None:
            rows = tensors if len(missing) == len(ids) else [tensor[missing] for tensor in tensors]
            self._store.put([ids[i] for i in missing], [hashes[i] for i in missing], rows)
            self.gate.ledger.kept(self._store.seconds_behind)

        self._observe(cut, reached)

    def _audit(self, cut: Cut, fetched: list[Tensor], fresh: _Rows) -> None:
        """Compares what crosses the cut in this pass with what would have been used instead."""

        def reached(tensors: list[Tensor]) -> None:
            kept = self._store.as_kept
            if not _native.same_rows(kept(tensors), kept(fetched), range(len(tensors[0]))):
                self._store.forget()
                raise Refused("STORE_DIFFERS", "the store has other activations than the frozen layers compute")
            self._keep(fresh)

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
