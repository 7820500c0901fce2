"""This file keeps the proofs that a frozen prefix may be skipped, one for each shape of call that comes again."""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
import statistics
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from egeria import _native
from egeria.cache.computed_alone import Part
from egeria.cache.cut_proof import Proof, prove, try_alone
from egeria.cache.gate import CacheGate
from egeria.cache.model_call import Call, Settings
from egeria.cache.other_forms import AS_THEY_ARE, Forms
from egeria.cache.padded_lengths import Alike, padding_counts
from egeria.cache.padding import Padding
from egeria.cache.prefix_cut import Cut
from egeria.cache.proven import Computed, Proven
from egeria.cache.refused import Refused
from egeria.cache.row_independence import Alone
from egeria.cache.text_lengths import Mixture, TextLengths
from egeria.model.modules import LayerModule

_logger = logging.getLogger("egeria")

# At most this many shapes of calls are proven, and so many that differ from others in padding only. Each proof costs a
# few steps' time.
_MAX_SHAPES = 8
_MAX_LENGTHS = 64
# The first length is compared with others as long as no more passes had it: its entries are given up for that.
_FEW_PASSES = 8
# A shape of an epoch's last batch is expected in so many epochs, where nobody knows how many come.
_EPOCHS = 8
# A proof takes about so many forward passes, and what its other work takes is no more than so many.
_PASSES = 4
_MOST_FIXED = 3
# Among so many passes one may be an epoch's last batch, with fewer samples.
_PASSES_OF_A_REST = 8
# A number of samples that is missing is expected to be missing as often.
_MISSES = 8


class _Shape(NamedTuple):
    """Calls are alike, for a proof, if these are equal."""

    call: Any
    settings: tuple[Any, ...]
    hooks: int


class Proofs:
    """Keeps the proofs about one frozen prefix. Owned by the training thread.

    Attributes:
      most_shapes: so many shapes of calls are proven.
      compares_first: texts of the first length that comes are compared with other lengths before there are others.
      may_shorten: what has a row for each token may be kept without those of the padding.
    """

    most_shapes = _MAX_SHAPES
    compares_first = False
    may_shorten = False

    def __init__(self, model: nn.Module, frozen: Sequence[LayerModule], gate: CacheGate, forms: Forms = AS_THEY_ARE):
        """
        Args:
          gate: says whether a proof may be made, and is told what it takes.
          forms: see prove().
        """
        self._forms = forms
        self._model = model
        self._frozen = list(frozen)
        self._gate = gate
        self._settings = Settings(model)
        submodules = list(model.modules())[1:]
        self._hooks = [table for one in submodules for table in (one._forward_hooks, one._forward_pre_hooks)]
        # The proof for each shape of call, and for the batch's conditions where they matter; None: refused.
        self._proven: dict[tuple[_Shape, Any], Proven | None] = {}
        self._calls: collections.Counter[Any] = collections.Counter()  # how often shapes without a proof came
        self._passes = 0
        self._filled_up = 0  # calls
        # The first shape that was proven: its number of samples, what these look like, and the seconds that it took.
        self._shape_of_first: tuple[int, Any] = 0, None
        self._first_seconds = 0.0
        # Cut.unread in the first proof for each Call.structure under the same settings.
        self._unread: dict[tuple[str, Any], frozenset[int]] = {}
        self._deciding: set[Any] = set()  # shapes of calls for which the conditions of a batch matter too
        self._lengths: dict[Any, TextLengths] = collections.defaultdict(TextLengths)  # by the kind of call
        self._text_seconds: list[float] = []  # that proofs of other lengths took

    def find(self, call: Call) -> Proven | None:
        """Returns the proof for calls like this one; None where there is none. The first shape of all is proven at
        once, others where that is likely to save more time than it takes.

        Raises:
          Refused: the first shape has no proof.
        """
        settings = self._settings.now()
        # A hook on a submodule that is added later may use what a frozen layer computes.
        shape = _Shape(call.key(), settings, sum(map(len, self._hooks)))
        key = shape, call.conditions() if shape in self._deciding else None
        self._passes += 1
        if key in self._proven:
            proven = self._proven[key]
            if proven is not None and proven.kind is not None and proven.alike is None:
                self._compare_later(proven, call)
            return proven
        first = not self._proven
        if not first and not self._pays(key, call):
            return None
        proven = None
        with self._gate.proving(first) as proving:
            try:
                padding = Padding.of(call)
                mixture = None if first or padding is None else self._mix(call, settings, padding)
                proof = self._prove(call if mixture is None else mixture.call, first or padding is None)
                conditions = call.conditions() if proof.cut.decides else None
                if proof.cut.decides:
                    self._deciding.add(shape)
                key = shape, conditions
                proven = self._among_others(proof, call, (settings, conditions, call.sample_key()), padding, mixture)
            except Refused as error:
                if first:
                    raise
                _logger.debug("egeria: calls of another shape are not skipped: %s", error)
        if first:
            self._shape_of_first, self._first_seconds = (call.batch, call.sample_key()), proving.seconds
        elif padding is not None:
            self._text_seconds.append(proving.seconds)
        self._proven[key] = proven
        return proven

    def known(self, call: Call, resting: Collection[nn.Module]) -> Proven | None:
        """Returns the first proof that was confirmed for calls like this one before these modules came to rest. Their
        modes, and the number of hooks, do not count."""
        key, settings = call.key(), self._settings.without_modes_of(resting, self._settings.now())
        for (shape, conditions), proven in self._proven.items():
            if (
                proven is not None
                and proven.confirmed
                and shape.call == key
                and self._settings.without_modes_of(resting, shape.settings) == settings
                and (conditions is None or conditions == call.conditions())
            ):
                return proven
        return None

    def whole(self, call: Call) -> tuple[Call, Proven] | None:
        """Returns a call that has copies of its first sample behind those of this one, so that there are as many as in
        one that was proven and confirmed, with that proof. Few calls are so: mostly an epoch's last one. Returns None
        for others."""
        if call.source is not None or self._filled_up * _PASSES_OF_A_REST > self._passes:
            return None
        looks = call.sample_key()
        proven = (one for one in self._proven.values() if one is not None and one.circumstances[-1] == looks)
        most = max((one.batch for one in proven), default=0)
        if most <= call.batch:
            return None
        filled = call.filled_up(list(range(call.batch)), most)
        if (known := self.known(filled, ())) is None:
            return None
        self._filled_up += 1
        return filled, known

    def awaited(self, call: Call) -> tuple[Any, Cut] | None:
        """Returns, for texts of a shape that was not tried yet, what is equal for calls of which one proof will hold
        (the kind of the proof and Call.key()), and the cut that is to be expected; None for other calls."""
        if not self._lengths or (padding := Padding.of(call)) is None:
            return None
        settings, key = self._settings.now(), call.key()
        kind = self._kind(call, settings, padding)
        known = (one for one in self._proven.values() if one is not None and one.kind == kind)
        proven = next((one for one in known if one.confirmed and one.alike), None)
        tried = any((shape.call, shape.settings) == (key, settings) for shape, _ in self._proven)
        if proven is None or tried:
            return None
        return (kind, key), proven.cut

    def alone(self, proven: Proven, call: Call, missing: Sequence[int]) -> list[Part]:
        """Returns the parts of a call that are to be computed for the samples in these rows; none where the whole batch
        is. Parts of a batch that decides answer what it answers (Call.conditions())."""
        parts = []
        for rows, padded, length in proven.by_length(call, missing):
            tried = proven.alone if length is None else self._lengths[proven.kind].alone[length]
            size = self._size_alone(tried, proven.cut, padded, len(rows))
            if size is None:
                return []
            parts.append(Part(rows, padded.filled_up(rows, size)))
        if proven.cut.decides and any(part.call.conditions() != call.conditions() for part in parts):
            return []
        return parts

    def _size_alone(self, tried: Alone, cut: Cut, call: Call, count: int) -> int | None:
        """Returns how many samples of such a call are to be computed for so many; None where that may not be."""
        sizes = [size for size in _native.sizes_alone(call.batch) if size >= count]
        new = [size for size in sizes if size not in tried.found]
        if new and not any(tried.found.get(size) for size in sizes if size < new[0]):
            forward = self._gate.ledger.estimates()["forward_seconds"] or 0.0
            share = new[0] / call.batch
            seconds = forward * (2 * share + (0 if tried.has_batch else 1))
            if not self._gate.may_prove(seconds, _MISSES * (1 - share), is_text=bool(self._lengths)):
                return None
            with self._gate.proving(first=False):
                try_alone(tried, self._model, cut, call, new)
        return next((size for size in sizes if tried.found.get(size)), None)

    def _prove(self, call: Call, rows: bool) -> Proof:
        kind = call.structure, self._settings.now()
        proof = prove(self._model, self._frozen, call, self._forms, rows, self._unread.get(kind))
        self._unread.setdefault(kind, proof.cut.unread)
        return proof

    def _compare_later(self, proven: Proven, call: Call) -> None:
        """Compares texts of the first length with others once there are others; unless that is so late that much is
        kept of this length already."""
        lengths = self._lengths[proven.kind]
        if len(set(lengths.known)) < 2:
            lengths.passes_alone += 1
            return
        if lengths.passes_alone > _FEW_PASSES:
            return
        forward = self._gate.ledger.estimates()["forward_seconds"] or 0.0
        if (padding := Padding.of(call)) is None or not self._gate.may_prove(
            3 * forward, self._gate.passes_left(_MISSES), is_text=True
        ):
            return
        with self._gate.proving(first=False):
            proven.alike = []
            if (mixture := self._mix(call, proven.circumstances[0], padding)) is not None:
                try:
                    proof = self._prove(mixture.call, rows=False)
                except Refused as error:
                    _logger.debug("egeria: texts of other lengths are not compared: %s", error)
                else:
                    proven.alike = self._find_alike(proven, proof, mixture, proof.crossing)

    def _kind(self, call: Call, settings: Any, padding: Padding) -> Any:
        return settings, call.conditions(), padding.kind(call)

    def _mix(self, call: Call, settings: Any, padding: Padding) -> Mixture | None:
        """Returns a batch like this call by which texts are compared; None where they cannot be. On an accelerator a
        length that the model does not take (positions without an embedding) may end the process, so that none is tried
        that the training has not had."""
        lengths = self._lengths[self._kind(call, settings, padding)]
        longest = math.inf if self._gate.on_host else max(*lengths.known, padding.longest)
        return lengths.mix(call, padding, longest)

    def _find_alike(self, proven: Proven, proof: Proof, mixture: Mixture, tensors: Sequence[Tensor]) -> list[Alike]:
        """Returns the texts that have at other lengths what they have in a mixture, of which these are computed."""
        if proven.form:  # other forms may be used at other lengths
            return []
        settings, conditions, _ = proven.circumstances
        lengths = self._lengths[proven.kind]
        proven.by_token = lengths.by_token(mixture, tensors, proof.compute)
        if any(proven.by_token):
            if not self.may_shorten or proof.ignores is None:
                return []
            padding = Padding.of(proof.call)
            if padding is None or padding_counts(proof.crossing, padding, proven.by_token, proof.ignores):
                _logger.info("egeria: what stands in the padding of a text counts, which is kept for each length")
                return []
        forward = self._gate.ledger.estimates()["forward_seconds"] or 0.0
        found = lengths.find_alike(
            mixture,
            tensors,
            proof.compute,
            proven.by_token,
            lambda passes: self._gate.may_prove(passes * forward, self._gate.passes_left(math.inf), is_text=True),
        )
        for number, alike in enumerate(found):
            looks = mixture.padding.padded_to(mixture.call, alike.length).sample_key()
            like = settings, conditions, looks, alike.size
            found[number] = dataclasses.replace(alike, salt=_native.fingerprint(repr(like), []))
        if not found and not lengths.told:
            lengths.told = True
            _logger.info(
                "egeria: the cache serves texts that were padded to %d tokens at that length only, since other lengths "
                "change their last bits. Pad to multiples of 16 (pad_to_multiple_of=16), so that lengths come again",
                mixture.length,
            )
        return found

    def _pays(self, key: Any, call: Call) -> bool:
        """Whether to prove a shape that comes again, by what is known of the training."""
        if len(self._proven) >= (_MAX_LENGTHS if self._lengths else self.most_shapes):
            return False
        if key in self._calls or len(self._calls) < 64 * _MAX_SHAPES:
            self._calls[key] += 1
        comings, (batch, sample_key) = self._calls[key], self._shape_of_first
        is_rest = call.batch < batch and call.sample_key() == sample_key  # the last batch of an epoch, mostly
        coming = self._gate.passes_left(math.inf) * comings / self._passes
        if math.isinf(coming):
            coming = max(comings, _EPOCHS) if is_rest else comings
        forward = self._gate.ledger.estimates()["forward_seconds"] or 0.0
        # A small proof mostly takes what no number of samples changes, and the first one in a process takes more.
        fixed = min(max(0.0, self._first_seconds - _PASSES * forward), _MOST_FIXED * forward)
        if not is_rest:
            seconds = statistics.fmean(self._text_seconds) if self._text_seconds else _PASSES * forward + fixed
            return self._gate.may_prove(seconds, coming, is_text=bool(self._lengths))
        # That samples are the same in whole batches is shown on one of those.
        share = call.batch / batch
        return self._gate.may_prove((_PASSES * share + 1) * forward + fixed, coming * share)

    def _among_others(
        self, proof: Proof, call: Call, circumstances: Any, padding: Padding | None, mixture: Mixture | None
    ) -> Proven | None:
        """Finds the calls in which samples have the same activations."""
        computed = Computed(range(call.batch), proof.crossing)
        if mixture is not None:
            places = list(mixture.samples)
            computed = Computed(list(mixture.samples.values()), [tensor[places] for tensor in proof.crossing])
        proven = Proven(proof.cut, call.batch, circumstances, computed if computed.rows else None)
        proven.counts_as(call.batch, getattr(proof.cut, "form", b""))
        looks = call.sample_key()
        if self._shape_of_first[1] not in (None, looks):
            proven.mark = int.from_bytes(_native.fingerprint(repr(looks), [])[:8])
        if padding is not None:
            proven.kind = self._kind(call, circumstances[0], padding)
            lengths = self._lengths[proven.kind]
            lengths.known.append(padding.longest)
            tensors = proof.crossing
            if mixture is None and self.compares_first:
                mixture = self._mix(call, circumstances[0], padding)
                tensors = proof.crossing if mixture is None else proof.compute(mixture.call)
            if mixture is not None:
                proven.alike = self._find_alike(proven, proof, mixture, tensors)
                if sum(alike.most - alike.least + 1 for alike in proven.alike) >= padding.longest:
                    return proven
            elif len(set(lengths.known)) > 1:
                proven.alike = []
        return self._among_sizes(proof, proven)

    def _among_sizes(self, proof: Proof, proven: Proven) -> Proven | None:
        """Finds the number of samples that stands for all others with the same activations: the largest, whichever came
        first, since in a training that is resumed that may be an epoch's last batch, which is smaller. Returns None for
        a smaller batch with other activations: what is kept of its samples would stand in the way of whole batches'.
        """
        rows, circumstances = proof.rows, proven.circumstances
        alike = [other for other in self._proven.values() if other is not None and other.circumstances == circumstances]
        largest = max(alike, key=lambda other: other.like, default=proven)
        if largest.like > proven.like:
            if not rows.same_in(largest.like):
                return None
            proven.counts_as(largest.like, largest.form)
            return proven
        for other in alike:
            if other.like < proven.like and rows.same_in(other.batch):
                other.counts_as(proven.like, proven.form)
        return proven
