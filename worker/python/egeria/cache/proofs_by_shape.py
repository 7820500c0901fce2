"""This file keeps the proofs that a frozen prefix may be skipped, one for each shape of call that comes again."""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from egeria import _native
from egeria.cache.cut_proof import Proof, computes_alone, prove
from egeria.cache.gate import CacheGate
from egeria.cache.model_call import Call, Settings
from egeria.cache.other_forms import AS_THEY_ARE, Forms
from egeria.cache.prefix_cut import Cut
from egeria.cache.refused import Refused
from egeria.model.modules import LayerModule

_logger = logging.getLogger("egeria")

# At most this many shapes of calls are proven. Each proof costs a few steps' time.
_MAX_SHAPES = 8
# A shape of an epoch's last batch is expected in so many epochs, where nobody knows how many come.
_EPOCHS = 8
# In the next epoch, a sample that is not kept makes a batch of others, in which it is missing, cost this part of the
# forward pass.
_COST_OF_A_MISS = 0.25
# A proof takes about so many forward passes, and what its other work takes is no more than so many.
_PASSES = 4
_MOST_FIXED = 3
# A number of samples that is missing is expected to be missing as often.
_MISSES = 8


@dataclasses.dataclass
class Proven:
    """Holds a cut that is proven for calls of one shape.

    Attributes:
      batch: how many samples such a call has.
      circumstances: what a sample's activation depends on besides its input and the number of samples.
      crossing: what a pass on the side has computed for the call that it was proven on; None once a pass of the
        training itself has computed the same, or another one is to be compared.
      confirmed: a pass of the training itself has computed what one on the side does.
      like: a number of samples of a call in which they have the same activations, to the bit.
      form: what Cut.form is in that call.
      salt: a salt for Call.hashes(), which differs where a sample's activation may differ though its input does not.
      alone: whether so many samples may be computed alone, as far as that was tried.
    """

    cut: Cut
    batch: int
    circumstances: Any
    crossing: list[Tensor] | None
    confirmed: bool = False
    like: int = 0
    form: bytes = b""
    salt: bytes = b""
    alone: dict[int, bool] = dataclasses.field(default_factory=dict)

    def counts_as(self, size: int, form: bytes) -> None:
        """Notes that samples have the activations that they have in a call with this number of samples, computed in
        this form."""
        self.like, self.form = size, form
        self.salt = _native.fingerprint(
            repr((self.circumstances, size, form) if form else (self.circumstances, size)), []
        )


class Proofs:
    """Keeps the proofs about one frozen prefix. Owned by the training thread.

    Attributes:
      most_shapes: so many shapes of calls are proven.
    """

    most_shapes = _MAX_SHAPES

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
        self._submodules = list(model.modules())[1:]
        self._proven: dict[Any, Proven | None] = {}  # by shape of call and settings; None: refused
        self._calls: collections.Counter[Any] = collections.Counter()  # how often shapes without a proof came
        self._passes = 0
        # The first shape that was proven: its number of samples, what these look like, and the seconds that it took.
        self._shape_of_first: tuple[int, Any] = 0, None
        self._first_seconds = 0.0
        self._deciding: set[Any] = set()  # shapes of calls for which the conditions of a batch matter too

    def find(self, call: Call) -> Proven | None:
        """Returns the proof for calls like this one; None where there is none. The first shape of all is proven at
        once, others where that is likely to save more time than it takes.

        Raises:
          Refused: the first shape has no proof.
        """
        settings = self._settings.now()
        shape = call.key(), settings, self._hooks()
        key = (shape, call.conditions()) if shape in self._deciding else shape
        self._passes += 1
        if key in self._proven:
            return self._proven[key]
        first = not self._proven
        if not first and not self._pays(key, call):
            return None
        proven = None
        with self._gate.proving(first) as proving:
            try:
                proof = self._prove(call)
                conditions = call.conditions() if proof.cut.decides else None
                if proof.cut.decides:
                    self._deciding.add(shape)
                    key = shape, conditions
                proven = self._among_others(proof, call, (settings, conditions, call.sample_key()))
            except Refused as error:
                if first:
                    raise
                _logger.debug("egeria: calls of another shape are not skipped: %s", error)
        if first:
            self._shape_of_first, self._first_seconds = (call.batch, call.sample_key()), proving.seconds
        self._proven[key] = proven
        return proven

    def size_alone(self, proven: Proven, call: Call, missing: int) -> int | None:
        """Returns how many samples to compute for so many that are missing; None: the whole batch."""
        sizes = [size for size in _native.sizes_alone(call.batch) if size >= missing]
        new = [size for size in sizes if size not in proven.alone]
        if new and not any(proven.alone.get(size) for size in sizes if size < new[0]):
            forward = self._gate.ledger.estimates()["forward_seconds"] or 0.0
            share = new[0] / call.batch
            if not self._gate.may_prove(forward * (1 + 2 * share), _MISSES * (1 - share)):
                return None
            with self._gate.proving(first=False):
                proven.alone.update(computes_alone(self._model, proven.cut, call, new))
        return next((size for size in sizes if proven.alone.get(size)), None)

    def _prove(self, call: Call) -> Proof:
        return prove(self._model, self._frozen, call, self._forms)

    def _pays(self, key: Any, call: Call) -> bool:
        """Whether to prove a shape that comes again, by what is known of the training."""
        if len(self._proven) >= self.most_shapes:
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
            return self._gate.may_prove(_PASSES * forward + fixed, coming)
        # That samples are the same in whole batches is shown on one of those.
        share = call.batch / batch
        misses = _COST_OF_A_MISS * call.batch if coming >= 1 else 0
        return self._gate.may_prove((_PASSES * share + 1) * forward + fixed, coming * share + misses)

    def _hooks(self) -> int:
        """Returns the number of hooks on submodules: one that is added later may use what a frozen layer computes."""
        return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in self._submodules)

    def _among_others(self, proof: Proof, call: Call, circumstances: Any) -> Proven | None:
        """Finds the number of samples that stands for all others with the same activations: the largest, whichever came
        first, since in a training that is resumed that may be an epoch's last batch, which is smaller. Returns None for
        a smaller batch with other activations: what is kept of its samples would stand in the way of whole batches'.
        """
        proven = Proven(proof.cut, call.batch, circumstances, proof.crossing)
        proven.counts_as(call.batch, getattr(proof.cut, "form", b""))
        alike = [other for other in self._proven.values() if other is not None and other.circumstances == circumstances]
        largest = max(alike, key=lambda other: other.like, default=proven)
        if largest.like > proven.like:
            if not proof.rows.same_in(largest.like):
                return None
            proven.counts_as(largest.like, largest.form)
            return proven
        for other in alike:
            if other.like < proven.like and proof.rows.same_in(other.batch):
                other.counts_as(proven.like, proven.form)
        return proven
