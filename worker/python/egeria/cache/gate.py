"""The gate decides whether a forward pass goes through the cache, which it does only where that saves time."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

import torch

from egeria import _native
from egeria.cache.repeated_samples import Repeats

# A proof takes about as long as this many passes: a shape of call that has come as often may be expected to come as
# often again.
_PASSES_OF_A_PROOF = 8


class Stopwatch:
    """Adds up the time spent in `with` blocks, of which none contains another.

    Attributes:
      seconds: so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begin = 0.0

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._begin


class CacheGate:
    """Tells the ledger of a training's passes (worker/cache/client/pass_ledger.h) what only Python knows.

    Owned by the training thread.

    Attributes:
      ledger: decides, and keeps the books.
      watch: measures what the cache takes of the training thread's time, proofs and audits included.
      longest_patience: seconds that a pass, or a lookup, may wait for the store at most.
    """

    longest_patience: float = _native.PassLedger.longest_patience

    def __init__(self, device: torch.device, repeats: Repeats, always: bool = False):
        """
        Args:
          device: the model's.
          repeats: is told of all batches until it is known whether samples come again; nothing is done before.
          always: all passes go through the cache, whatever it costs.
        """
        self.ledger = _native.PassLedger(functools.partial(_now, device), always)
        self.watch = Stopwatch()
        self._on_host = device.type == "cpu"
        self._repeats = repeats
        self._always = always
        self.follow()

    def follow(self) -> None:
        """Another prefix is frozen, or none: what is measured begins anew."""
        self.ledger.follow()
        self._first_batch: set[int] = set()  # the samples that were kept first
        self._seen_again = 0  # how many of those
        if self._repeats.known is not None:
            self.ledger.samples_repeat(self._repeats.known)

    @property
    def calls_before_proof(self) -> int:
        """How often a shape of call other than the first has to come before it is proven."""
        return 2 if self._always else _PASSES_OF_A_PROOF

    @property
    def patience(self) -> float:
        """Seconds that a pass may wait for the store."""
        return self.ledger.patience(self.longest_patience)

    def use(self, args: tuple[Any, ...], kwargs: dict[str, Any], ids: Sequence[int] | None) -> bool:
        """A pass of these samples begins; returns whether it goes through the cache."""
        if ids is not None and not self._always:
            self._repeats.note(args, kwargs, ids)
            if self._repeats.known is not None:
                self.ledger.samples_repeat(self._repeats.known)
            self._count_epochs(ids)
        return self.ledger.begin(None if ids is None else len(ids), self._on_host)

    def kept(self, ids: Sequence[int]) -> None:
        """These samples have been offered to the store."""
        self._first_batch = self._first_batch or set(ids)

    def _count_epochs(self, ids: Sequence[int]) -> None:
        if not self._first_batch:
            return
        self._seen_again += sum(sample in self._first_batch for sample in ids)
        if self._seen_again >= len(self._first_batch):
            self._seen_again -= len(self._first_batch)
            self.ledger.epoch_passed()


def _now(device: torch.device, wait: bool) -> float:
    """The ledger's clock."""
    if wait and device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
