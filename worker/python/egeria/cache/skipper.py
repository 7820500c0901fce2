"""Skips the forward pass of a frozen prefix where a store has its results."""

from __future__ import annotations

import collections
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from egeria.cache.activation_store import ActivationStore, Fetched
from egeria.cache.forward_patches import ForwardPatches
from egeria.cache.frozen_weights import FrozenWeights
from egeria.cache.gate import CacheGate
from egeria.cache.model_call import Call, UnusualCall
from egeria.cache.module_fingerprint import ModuleFingerprint
from egeria.cache.prefix_cut import Cut, Refused
from egeria.cache.proofs_by_shape import Proofs, Proven
from egeria.cache.sample_proof import same_rows
from egeria.cache.skip_checks import check_skippable
from egeria.cache.stopwatch import Stopwatch
from egeria.model.inputs import batch_of
from egeria.model.isolation import device_of
from egeria.model.modules import LayerModule
from egeria.model.pass_hooks import PassHook, has_own_forward

_logger = logging.getLogger("egeria")

# Every so many passes that might be skipped are computed as usual, and compared with what the store has; more
# often in the beginning.
_AUDIT_EVERY = 256
# Failures in a row after which a prefix is left alone.
_MOST_FAILURES = 3

_Rows = tuple[list[int], list[int], tuple[Tensor, ...]]  # ids, input hashes, and what crosses the cut


class Skipper:
    """One frozen prefix of a model, skipped in training passes as far as a store has what it would compute.

    A pass is skipped only in calls of a shape for which prove() has shown, on a real batch, that everything else
    comes out the same to the bit, and only as long as the frozen weights are what they were then. All else is
    computed as usual, and counted by its reason.

    Owned by the training thread. Nothing of it stays on the model after close(), or between two forward passes but
    two hooks on the model itself, of which copies do nothing.

    Attributes:
      refusal: why this prefix is not skipped at all; None if it may be.
      gate: decides in which passes the store is used at all.
      watch: what all this has taken of the training thread's time, proofs and audits included.
      counters: "hits" and "misses" in samples, and these by reason: those of the store ("miss_absent",
        "miss_late", "miss_other_input", ...), "miss_recomputed" (with others of their batch), "miss_audited",
        "miss_no_ids" (passes), "miss_off" (it does not pay), "miss_unproven" (a shape of call without a proof),
        "miss_unusual_call", "miss_unfit" (the store gave something else); "miss_failure"; "passes", "passes_skipped";
        "proofs" (each takes a few steps' time, in the pass that it is made in); "audits" (passes that were computed
        although they might have been skipped); "failures".
    """

    def __init__(
        self,
        model: nn.Module,
        frozen: Sequence[LayerModule],
        attributes: ModuleFingerprint,
        store: ActivationStore,
        *,
        take_ids: Callable[[int], Sequence[int] | None] | None = None,
        upcoming: Callable[[], Sequence[Sequence[int]]] | None = None,
        gate: CacheGate | None = None,
        own_forward_only: bool = False,
        tell: Callable[[str, Exception | None], None] | None = None,
    ):
        """
        Args:
          model: unwrapped; `frozen` are its first layer modules, and frozen.
          attributes: as they were when `store` was made for what is frozen.
          take_ids: the samples of the batch at hand, given their number; None where that is not known. Called once
            in each training forward pass. Without it, before_forward() has to be called.
          upcoming: the samples of the batches after that one, as far as they are known.
          gate: None: the store is used in all passes.
          own_forward_only: calls in which another function stands for the model's forward are none: a training
            framework's detours, with other arguments.
          tell: called with a reason why the prefix is not skipped, once, and the exception behind it.
        """
        self.refusal: Refused | None = None
        self.gate = CacheGate(device_of(model), always=True) if gate is None else gate
        self.watch = Stopwatch()
        self.counters: collections.Counter[str] = collections.Counter()
        self._model = model
        self._store = store
        self._take_ids = take_ids
        self._upcoming = upcoming
        self._own_forward_only = own_forward_only
        self._tell = tell if tell is not None else _warn
        self._weights = FrozenWeights(frozen)
        self._attributes = attributes
        self._proofs = Proofs(model, frozen, self.gate.calls_before_proof)
        self._patches = ForwardPatches()
        self._entered = False
        self._busy = False  # our own passes come through the same hooks
        self._failures = 0
        self._skippable = 0
        self._handles: list[RemovableHandle] = []
        try:
            check_skippable(model, frozen)
        except Refused as error:
            self._refuse(error)
            return
        self._handles = [
            model.register_forward_pre_hook(PassHook(self._enter), with_kwargs=True),
            model.register_forward_hook(PassHook(self._leave), with_kwargs=True, always_call=True),
        ]

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], ids: Sequence[int] | None) -> None:
        """Prepares the next forward pass of the model, which is called with these arguments.

        Args:
          ids: of the samples, in the order of the rows; None: not known.
        """
        self.disarm()
        if self.refusal is None and not self._busy:
            with self.watch:
                self._begin_pass(args, kwargs, ids)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """For passes of the model that are not training's: they are computed as usual, and not counted."""
        before, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = before

    def disarm(self) -> None:
        """The next forward pass is one as usual."""
        self._entered = False
        if self._patches:
            self._patches.release()

    def close(self) -> None:
        """Leaves the model as it was. Idempotent."""
        self.disarm()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # The two hooks.

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._busy or (self._own_forward_only and not has_own_forward(self._model)):
            return
        training = self._model.training and torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        if training and self._take_ids is not None and not self._entered:
            try:
                ids = self._take_ids(batch_of(pytree.tree_leaves((args, kwargs))))
            except Exception as error:  # pylint: disable=broad-exception-caught
                self._fail(error, 0)
                return
            self.before_forward(args, kwargs, ids)
            self._entered = bool(self._patches)
        elif training and self._patches and not self._entered:
            self._entered = True
        else:  # validation, or what a pass that was broken off has left
            self.disarm()

    def _leave(self, *_: Any) -> None:
        if not self._busy:
            self.disarm()

    # One pass.

    def _begin_pass(self, args: tuple[Any, ...], kwargs: dict[str, Any], ids: Sequence[int] | None) -> None:
        self.counters["passes"] += 1
        if ids is None:
            self._missed("no_ids", 0)
            return
        self._busy = True
        try:
            if self.gate.use(args, kwargs, ids):
                self._prepare(args, kwargs, list(ids))
                if self._upcoming is not None:
                    self._store.expect(self._upcoming())
            else:
                self._missed("off", len(ids))
        except UnusualCall as error:
            self.disarm()
            _logger.debug("egeria: %s", error)
            self._missed("unusual_call", len(ids))
        except Refused as error:
            self.disarm()
            self._refuse(error)
        except Exception as error:  # pylint: disable=broad-exception-caught
            self.disarm()
            self._fail(error, len(ids))
        finally:
            self._busy = False

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any], ids: list[int]) -> None:
        begin = time.perf_counter()
        call = Call(args, kwargs, len(ids))
        proven = self._proofs.find(call)
        if self._proofs.made != self.counters["proofs"]:
            self.counters["proofs"] = self._proofs.made
            self.gate.spent(time.perf_counter() - begin)
            begin = time.perf_counter()
        if proven is None:
            self._missed("unproven", call.batch)
            return
        hashes = call.hashes(proven.salt)
        if not proven.confirmed:
            self._confirm(proven, call, ids, hashes)
            self.gate.spent(time.perf_counter() - begin)
            return
        tensors, missing = self._fetch(proven.cut, ids, hashes)
        rows = self._compute_alone(proven.cut, call, missing, tensors) if missing and tensors else ()
        if missing and not rows:
            if len(missing) < call.batch:
                self._missed("recomputed", call.batch - len(missing))
            self._populate(proven.cut, missing, ids, hashes, time.perf_counter() - begin)
            return
        crossing = [spec.placed(tensor) for spec, tensor in zip(proven.cut.tensors, tensors)]
        fresh = [ids[i] for i in missing], [hashes[i] for i in missing], rows
        self._skippable += 1
        if self._skippable % _AUDIT_EVERY == 0 or self._skippable in (1, 4, 16, 64):
            self._missed("audited", call.batch - len(missing))
            self._audit(proven.cut, crossing, fresh)
            self.gate.spent(time.perf_counter() - begin)
            return
        seconds = time.perf_counter() - begin
        proven.cut.skip(self._patches, crossing, lambda: self._may_skip(call.batch, fresh, seconds))

    def _may_skip(self, batch: int, fresh: _Rows, seconds: float) -> bool:
        """When the model comes to what it could skip, after so many seconds of ours; `fresh` were computed alone for
        that."""
        begin = time.perf_counter()
        try:
            with self.watch:
                self._check_unchanged()
                self._keep(fresh)
        except Refused as error:
            self._refuse(error)
            return False
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._fail(error, batch)
            return False
        self.counters["hits"] += batch - len(fresh[0])
        self.counters["passes_skipped"] += 1
        self._failures = 0
        self.gate.fetched(seconds + time.perf_counter() - begin, 1 - len(fresh[0]) / batch)
        return True

    def _check_unchanged(self) -> None:
        """Within a pass, when it comes to the frozen layers or from them: it may have changed something itself."""
        if not self._weights.unchanged():
            raise Refused("WEIGHTS_CHANGED", "the weights or buffers of frozen layers are not what they were")
        if (changed := self._attributes.changed(self._patches.added)) is not None:
            raise Refused("SETTING_CHANGED", f"an attribute of the model is not what it was: {changed}")

    def _keep(self, fresh: _Rows) -> None:
        if fresh[0]:
            self._store.put(*fresh)

    def _fetch(self, cut: Cut, ids: list[int], hashes: list[int]) -> tuple[tuple[Tensor, ...], list[int]]:
        """What crosses the cut, as far as the store has it, and the positions of the samples that it has not."""
        fetched = self._store.get(ids, hashes, self.gate.patience)
        if len(fetched.reasons) != len(ids):
            raise RuntimeError(f"the store answers {len(fetched.reasons)} of {len(ids)} samples")
        pairs = zip(cut.tensors, fetched.tensors)
        fits = len(fetched.tensors) == len(cut.tensors) and all(spec.fits(tensor) for spec, tensor in pairs)
        if not fits and "" in fetched.reasons:
            fetched = Fetched((), ["unfit"] * len(ids))
        missing = [position for position, reason in enumerate(fetched.reasons) if reason]
        for position in missing:
            self._missed(fetched.reasons[position], 1)
        return fetched.tensors, missing

    @staticmethod
    def _alone(cut: Cut, call: Call, missing: list[int]) -> Call | None:
        """A call with the missing samples, and copies of one up to a number that was proven to make no difference;
        None where there is no such call."""
        size = next((size for size in cut.sub_batches if size >= len(missing)), None)
        if size is None:
            return None
        alone = call.rows([*missing, *missing[:1] * (size - len(missing))])
        return alone if not cut.decides or alone.conditions() == call.conditions() else None

    def _compute_alone(
        self, cut: Cut, call: Call, missing: list[int], tensors: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Fills in the rows of the samples that are missing, and returns them; none if they may not be computed
        alone."""
        alone = self._alone(cut, call, missing)
        if alone is None:
            return ()
        computed = cut.compute(self._model, alone, keep_buffers=False)
        rows = tuple(tensor[: len(missing)].clone() for tensor in computed)
        for tensor, row in zip(tensors, rows):
            tensor[missing] = row.to(tensor.device)
        return rows

    def _observe(self, cut: Cut, reached: Callable[[list[Tensor]], None]) -> None:
        """This pass is computed as usual, and `reached` given what crosses the cut."""

        def guarded(tensors: list[Tensor]) -> None:
            self.gate.computed(start)
            try:
                with self.watch:
                    self._check_unchanged()
                    reached(tensors)
                self._failures = 0
            except Refused as error:
                self._refuse(error)
            except Exception as error:  # pylint: disable=broad-exception-caught
                self._fail(error, 0)

        cut.observe(self._patches, guarded)
        start = self.gate.now()

    def _confirm(self, proven: Proven, call: Call, ids: list[int], hashes: list[int]) -> None:
        """What crosses the cut in this pass has to be what a pass on the side computes; then it is stored."""
        expected = proven.cut.compute(self._model, call)

        def reached(tensors: list[Tensor]) -> None:
            if not same_rows(tensors, expected, range(call.batch)):
                raise Refused(
                    "OUTPUT_DIFFERS",
                    "the frozen layers compute something else in the training's own pass than in one on the side",
                )
            proven.confirmed = True
            self.gate.kept(ids)
            self._store.put(ids, hashes, tuple(tensors))

        self._observe(proven.cut, reached)

    def _populate(self, cut: Cut, missing: list[int], ids: list[int], hashes: list[int], spent: float) -> None:
        """What crosses the cut in this pass is stored, as far as the store has not got it."""

        def reached(tensors: list[Tensor]) -> None:
            begin = time.perf_counter()
            rows = tensors if len(missing) == len(ids) else [tensor[missing] for tensor in tensors]
            self._store.put([ids[i] for i in missing], [hashes[i] for i in missing], tuple(rows))
            self.gate.filled(spent + time.perf_counter() - begin)

        self._observe(cut, reached)

    def _audit(self, cut: Cut, fetched: list[Tensor], fresh: _Rows) -> None:
        """What crosses the cut in this pass has to be what would have been used instead."""
        self.counters["audits"] += 1

        def reached(tensors: list[Tensor]) -> None:
            kept = self._store.as_kept
            if not same_rows(kept(tensors), kept(fetched), range(len(tensors[0]))):
                self._store.forget()
                raise Refused("STORE_DIFFERS", "the store has other activations than the frozen layers compute")
            self._keep(fresh)

        self._observe(cut, reached)

    def _missed(self, reason: str, samples: int) -> None:
        self.counters["misses"] += samples
        self.counters[f"miss_{reason}"] += max(samples, 1)

    def _refuse(self, error: Refused) -> None:
        self.refusal = error
        self.close()
        self._tell("the forward pass of the frozen layers is not skipped", error)

    def _fail(self, error: Exception, samples: int) -> None:
        """Something of ours, or of the store, went wrong; this pass is computed as usual."""
        self.counters["failures"] += 1
        self._missed("failure", samples)
        self._failures += 1
        if self._failures >= _MOST_FAILURES:
            self._refuse(Refused("FAILED", f"{_MOST_FAILURES} times in a row: {type(error).__name__}: {error}"))


def _warn(what: str, error: Exception | None) -> None:
    _logger.warning("egeria: %s%s", what, f": {error}" if error is not None else "")
