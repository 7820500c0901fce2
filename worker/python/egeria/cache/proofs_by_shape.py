"""This file keeps the proofs that a frozen prefix may be skipped, one for each shape of call that comes again."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

from torch import nn

from egeria import _native
from egeria.cache.cut_proof import prove
from egeria.cache.gate import CacheGate
from egeria.cache.model_call import Call, Settings
from egeria.cache.prefix_cut import Cut, shadow_of
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
      like: a number of samples of a call in which they have the same activations, to the bit.
      salt: a salt for Call.hashes(), which differs where a sample's activation may differ though its input does not.
      confirmed: a pass of the training itself has computed what one on the side does.
    """

    cut: Cut
    batch: int
    circumstances: Any
    like: int = 0
    salt: bytes = b""
    confirmed: bool = False

    def counts_as(self, size: int) -> None:
        """Notes that samples have the activations that they have in a call with this number of samples."""
        self.like = size
        self.salt = _native.fingerprint(repr((self.circumstances, size)), [])


class Proofs:
    """Keeps the proofs about one frozen prefix. Owned by the training thread."""

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
            cut = prove(self._model, self._frozen, call)
            conditions = call.conditions() if cut.decides else None
            if cut.decides:
                self._deciding.add(shape)
                key = shape, conditions
            proven = self._among_others(cut, call, settings, conditions)
        except Refused as error:
            if first:
                raise
            _logger.debug("egeria: calls of another shape are not skipped: %s", error)
        finally:
            self._gate.ledger.proved(begin)
            self._gate.ledger.ask()
        self._proven[key] = proven
        return proven

    def _comes_often(self, key: Any) -> bool:
        if len(self._proven) >= _MAX_SHAPES:
            return False
        if key in self._calls or len(self._calls) < 64 * _MAX_SHAPES:
            self._calls[key] += 1
        return self._calls[key] >= self._gate.calls_before_proof

    def _hooks(self) -> int:
        """Returns the number of hooks on submodules: one that is added later may use what a frozen layer computes."""
        return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in self._submodules)

    def _among_others(self, cut: Cut, call: Call, settings: Any, conditions: Any) -> Proven:
        """Finds the number of samples that stands for all others with the same activations: the largest, whichever came
        first, since in a training that is resumed that may be an epoch's last batch, which is smaller."""
        proven = Proven(cut, call.batch, (settings, conditions, call.sample_key()))
        proven.counts_as(call.batch)
        alike = [
            other
            for other in self._proven.values()
            if other is not None and other.circumstances == proven.circumstances
        ]
        largest = max(alike, key=lambda other: other.like, default=proven)
        if largest.like > proven.like:
            if self._same_in(cut, call, largest.like, conditions):
                proven.counts_as(largest.like)
            return proven
        for other in alike:
            if other.like < proven.like and self._same_in(cut, call, other.batch, conditions):
                other.counts_as(proven.like)
        return proven

    def _same_in(self, cut: Cut, call: Call, size: int, conditions: Any) -> bool:
        """Returns whether samples have the same activations, to the bit, in a batch of this size."""
        index = [position % call.batch for position in range(size)]
        if cut.decides and call.rows(index).conditions() != conditions:
            return False
        shadow = shadow_of(self._model)
        return all(
            _native.same_rows(cut.compute(shadow, tried.rows(index)), cut.compute(shadow, tried), index)
            for tried in (call, call.disturbed())
            if tried is not None
        )
