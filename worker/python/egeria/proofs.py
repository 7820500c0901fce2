"""The proofs that a frozen prefix may be skipped, one for each shape of call that comes again."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from egeria.calls import Call, Settings
from egeria.cut import Cut, Refused
from egeria.cut_proof import prove
from egeria.modules import LayerModule
from egeria.replicas import hash_tensors
from egeria.sample_proof import same_rows

_logger = logging.getLogger("egeria")

# Shapes of calls for which a proof is made. Each costs a few steps' time.
_MOST_SHAPES = 8


@dataclasses.dataclass
class Proven:
    """A cut that is proven for calls of one shape.

    Attributes:
      salt: for Call.hashes(): differs where a sample's activation may differ though its input does not.
      confirmed: a pass of the training itself has computed what one on the side does.
    """

    cut: Cut
    salt: int
    confirmed: bool = False


class Proofs:
    """Of one frozen prefix. Owned by the training thread.

    Attributes:
      made: how many proofs were tried.
    """

    def __init__(self, model: nn.Module, frozen: Sequence[LayerModule]):
        self.made = 0
        self._model = model
        self._frozen = list(frozen)
        self._settings = Settings(model)
        self._submodules = list(model.modules())[1:]
        self._proven: dict[Any, Proven | None] = {}  # by shape of call and settings; None: refused
        self._seen: set[Any] = set()
        self._deciding: set[Any] = set()  # shapes of calls for which the conditions of a batch matter too
        self._batch_sizes: dict[Any, int] = {}  # of the first proof, by shape of the samples

    def find(self, call: Call) -> Proven | None:
        """The proof for calls like this one. The first shape of all is proven at once, others when they come
        again; None for those that have no proof.

        Raises:
          Refused: of the first shape.
        """
        settings = self._settings.now()
        shape = call.key(), settings, self._hooks()
        key = (shape, call.conditions()) if shape in self._deciding else shape
        if key in self._proven:
            return self._proven[key]
        first = not self._proven
        if not first and (key not in self._seen or len(self._proven) >= _MOST_SHAPES):
            if len(self._seen) < 64 * _MOST_SHAPES:
                self._seen.add(key)
            return None
        self.made += 1
        proven = None
        try:
            cut = prove(self._model, self._frozen, call)
            conditions = call.conditions() if cut.decides else None
            if cut.decides:
                self._deciding.add(shape)
                key = shape, conditions
            salt = repr((settings, conditions, self._batch_class(cut, call, settings, conditions)))
            proven = Proven(cut, hash_tensors([torch.frombuffer(bytearray(salt.encode()), dtype=torch.uint8)]))
        except Refused as error:
            if first:
                raise
            _logger.debug("egeria: calls of another shape are not skipped: %s", error)
        self._proven[key] = proven
        return proven

    def _hooks(self) -> int:
        """Number of hooks on submodules: one that is added later may use what a frozen layer computes."""
        return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in self._submodules)

    def _batch_class(self, cut: Cut, call: Call, settings: Any, conditions: Any) -> int:
        """A batch size at which samples have the same activations, to the bit, as in a batch of this size."""
        size = self._batch_sizes.setdefault((call.sample_key(), settings, conditions), call.batch)
        if size == call.batch:
            return size
        index = [position % call.batch for position in range(size)]
        if cut.decides and call.rows(index).conditions() != conditions:
            return call.batch
        for tried in (call, call.disturbed()):
            if tried is not None and not same_rows(cut.compute(self._model, tried.rows(index)),
                                                   cut.compute(self._model, tried), index):
                return call.batch
        return size
