"""This file keeps the proofs that a frozen prefix may be skipped, one for each shape of call that comes again."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from egeria import _native
from egeria.cache.cut_proof import Proof, computes_alone, prove
from egeria.cache.gate import CacheGate
from egeria.cache.model_call import Call, Settings
from egeria.cache.prefix_cut import Cut
from egeria.cache.refused import Refused
from egeria.model.modules import LayerModule

_logger = logging.getLogger("egeria")

# At most this many shapes of calls are proven. Each proof costs a few steps' time.
_MAX_SHAPES = 8


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
      salt: a salt for Call.hashes(), which differs where a sample's activation may differ though its input does not.
      alone: whether so many samples may be computed alone, as far as that was tried.
    """

    cut: Cut
    batch: int
    circumstances: Any
    crossing: list[Tensor] | None
    confirmed: bool = False
    like: int = 0
    salt: bytes = b""
    alone: dict[int, bool] = dataclasses.field(default_factory=dict)

    def counts_as(self, size: int) -> None:
        """Notes that samples have the activations that they have in a call with this number of samples."""
        self.like = size
        self.salt = _native.fingerprint(repr((self.circumstances, size)), [])


class Proofs:
    """Keeps the proofs about one frozen prefix. Owned by the training thread.

    Attributes:
      most_shapes: so many shapes of calls are proven.
    """

    most_shapes = _MAX_SHAPES

    def __init__(self, model: nn.Module, frozen: Sequence[LayerModule], gate: CacheGate):
        """
        Args:
          gate: says how often a shape has to come before it is proven, and is told what that takes.
        """
        self._model = model
        self._frozen = list(frozen)
        self._gate = gate
        self._settings = Settings(model)
        self._submodules = list(model.modules())[1:]
        self._proven: dict[Any, Proven | None] = {}  # by shape of call and settings; None: refused
        self._calls: collections.Counter[Any] = collections.Counter()  # how often shapes without a proof came
        self._deciding: set[Any] = set()  # shapes of calls for which the conditions of a batch matter too

    def find(self, call: Call) -> Proven | None:
        """Returns the proof for calls like this one; None where there is none. The first shape of all is proven at
        once, others when they have come often enough.

        Raises:
          Refused: the first shape has no proof.
        """
        settings = self._settings.now()
        shape = call.key(), settings, self._hooks()
        key = (shape, call.conditions()) if shape in self._deciding else shape
        if key in self._proven:
            return self._proven[key]
        first = not self._proven
        if not first and not self._comes_often(key):
            return None
        begin = self._gate.ledger.now()
        proven = None
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
        finally:
            self._gate.ledger.proved(begin)
        self._proven[key] = proven
        return proven

    def size_alone(self, proven: Proven, call: Call, missing: int) -> int | None:
        """Returns how many samples to compute for so many that are missing; None: the whole batch."""
        for size in _native.sizes_alone(call.batch):
            if size < missing:
                continue
            if size not in proven.alone:
                begin = self._gate.ledger.now()
                proven.alone[size] = computes_alone(self._model, proven.cut, call, size)
                self._gate.ledger.proved(begin)
            if proven.alone[size]:
                return size
        return None

    def _prove(self, call: Call) -> Proof:
        return prove(self._model, self._frozen, call)

    def _comes_often(self, key: Any) -> bool:
        if len(self._proven) >= self.most_shapes:
            return False
        if key in self._calls or len(self._calls) < 64 * _MAX_SHAPES:
            self._calls[key] += 1
        return self._calls[key] >= self._gate.calls_before_proof

    def _hooks(self) -> int:
        """Returns the number of hooks on submodules: one that is added later may use what a frozen layer computes."""
        return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in self._submodules)

    def _among_others(self, proof: Proof, call: Call, circumstances: Any) -> Proven:
        """Finds the number of samples that stands for all others with the same activations: the largest, whichever came
        first, since in a training that is resumed that may be an epoch's last batch, which is smaller."""
        proven = Proven(proof.cut, call.batch, circumstances, proof.crossing)
        proven.counts_as(call.batch)
        alike = [other for other in self._proven.values() if other is not None and other.circumstances == circumstances]
        largest = max(alike, key=lambda other: other.like, default=proven)
        if largest.like > proven.like:
            if proof.rows.same_in(largest.like):
                proven.counts_as(largest.like)
            return proven
        for other in alike:
            if other.like < proven.like and proof.rows.same_in(other.batch):
                other.counts_as(proven.like)
        return proven
