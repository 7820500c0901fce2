"""The gate decides whether a forward pass goes through the cache, which it does only where that saves time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from egeria import _native
from egeria.cache.repeated_samples import Repeats

# On an accelerator times are taken of every so many passes only, since the device has to be waited for.
_MEASURE_EVERY = 16
# A proof takes about as long as so many passes: a shape of call that has come so often may be expected to come as
# often again.
_PASSES_OF_A_PROOF = 8


class CacheGate:
    """Weighs the costs of one frozen prefix: feeds the cost model (worker/cache/client/cost_model.h) with times.

    Owned by the training thread.

    Attributes:
      longest_patience: seconds that a pass, or a lookup, may wait for the store at most.
    """

    longest_patience: float = _native.CostModel.longest_patience

    def __init__(self, device: torch.device, repeats: Repeats | None = None, always: bool = False):
        """
        Args:
          device: of the model.
          repeats: told of all batches until it is known whether samples come again; nothing is done before.
          always: go through the cache whatever it costs.
        """
        self._device = device
        self._repeats = repeats
        self._always = always
        self._model = _native.CostModel()
        self._passes = 0
        self._first_batch: set[int] = set()  # samples of the first one that was kept
        self._seen_again = 0  # of those
        if repeats is None or repeats.known is not None:
            self._model.samples_repeat(repeats is None or bool(repeats.known))

    @property
    def calls_before_proof(self) -> int:
        """Of a shape of call other than the first."""
        return 2 if self._always else _PASSES_OF_A_PROOF

    @property
    def patience(self) -> float:
        """Seconds that a pass may wait for the store."""
        return self.longest_patience if self._always else self._model.patience

    def use(self, args: tuple[Any, ...], kwargs: dict[str, Any], ids: Sequence[int]) -> bool:
        """At the beginning of a pass of these samples: whether it goes through the cache."""
        self._passes += 1
        if self._always:
            return True
        if self._repeats is not None:
            self._repeats.note(args, kwargs, ids)
            if self._repeats.known is not None:
                self._model.samples_repeat(self._repeats.known)
        self._count_epochs(ids)
        return self._model.use()

    def kept(self, ids: Sequence[int]) -> None:
        """These samples have been offered to the store."""
        self._first_batch = self._first_batch or set(ids)

    def now(self) -> float | None:
        """The time when all that the device was given has been done; None where this pass is not measured."""
        if self._device.type == "cpu":
            return time.perf_counter()
        if self._passes % _MEASURE_EVERY:
            return None
        torch.accelerator.synchronize(self._device)
        return time.perf_counter()

    def computed(self, start: float | None) -> None:
        """The frozen layers' forward pass began at `start`, of now(), and has ended."""
        end = self.now()
        if start is None or end is None:
            return
        self._model.computed(end - start)

    def filled(self, seconds: float) -> None:
        """So much was spent in a pass whose frozen layers were computed nevertheless."""
        self._model.filled(seconds)

    def fetched(self, seconds: float, hit_share: float) -> None:
        """So much was spent in a skipped pass; this share of its samples was there."""
        self._model.fetched(seconds, hit_share)

    def spent(self, seconds: float) -> None:
        """So much was spent on proofs and audits."""
        self._model.spent(seconds)

    def estimates(self) -> dict[str, Any]:
        """ "state" ("unknown", "trying", "on", "off"), "reason", "saved_seconds" (so far, less what was spent), and
        "forward_seconds" and "fetch_seconds" of a pass (None: not known)."""
        return self._model.estimates()

    def _count_epochs(self, ids: Sequence[int]) -> None:
        if not self._first_batch:
            return
        self._seen_again += sum(sample in self._first_batch for sample in ids)
        if self._seen_again >= len(self._first_batch):
            self._seen_again -= len(self._first_batch)
            self._model.epoch_passed()
