"""The gate decides whether a forward pass goes through the cache, which it does only where that saves time."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from egeria import _native
from egeria.cache.repeated_samples import Repeats

# Proofs but the first one of a prefix take this part of the time that passes at most, and what the first one took.
_SHARE_OF_PROOFS = 0.1
# Texts of many lengths need as many proofs, and later epochs have all of them again.
_SHARE_OF_LENGTHS = 0.25


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
      on_host: the model is there.
      watch: measures what the cache takes of the training thread's time, proofs and audits included.
      epochs: so many times all samples have come again since this prefix was first kept.
      longest_patience: seconds that a pass, or a lookup, may wait for the store at most.
    """

    longest_patience: float = _native.PassLedger.longest_patience

    def __init__(
        self,
        device: torch.device,
        repeats: Repeats,
        always: bool = False,
        drew: Callable[[], bool | None] = lambda: None,
        steps_left: Callable[[], int | None] = lambda: None,
    ):
        """
        Args:
          device: the model's.
          repeats: is told of all batches until it is known whether samples come again.
          always: all passes go through the cache, whatever it costs.
          drew: whether batches are made with random numbers, so that samples most probably do not come again as they
            were; None: not known.
          steps_left: of the training; None: not known.
        """
        self.ledger = _native.PassLedger(functools.partial(_now, device), always)
        self.watch = Stopwatch()
        self.on_host = device.type == "cpu"
        self._repeats = repeats
        self._always = always
        self._drew = drew
        self._steps_left = steps_left
        self._began = self.ledger.now()
        self._first_proof_seconds = 0.0  # the first one of this prefix took
        self._proofs_seconds = 0.0  # all others took
        self.follow()

    def follow(self) -> None:
        """Another prefix is frozen, or none: what is measured begins anew."""
        self.ledger.follow()
        self._first_batch: set[int] = set()  # the samples that were kept first
        self._seen_again = 0  # how many of those
        self.epochs = 0
        if self._repeats.known is not None:
            self.ledger.samples_repeat(self._repeats.known)

    def proving(self, first: bool) -> Proving:
        """Returns a context for a proof, the `first` one of a prefix or a later one."""
        return Proving(self, first)

    def may_prove(self, seconds: float, passes: float, is_text: bool = False) -> bool:
        """Whether a proof that takes about so many seconds may be made, and is likely to save more.

        Args:
          passes: of the whole batch that it is likely to save, as far as the past tells.
          is_text: it is about another length of texts, which pays where samples come again.
        """
        if self._always:
            return True
        forward = self.ledger.estimates()["forward_seconds"]
        share = _SHARE_OF_LENGTHS if is_text and self.expects_repeats else _SHARE_OF_PROOFS
        most = share * (self.ledger.now() - self._began) + self._first_proof_seconds
        return forward is not None and forward * passes > seconds and self._proofs_seconds + seconds <= most

    def passes_left(self, default: float) -> float:
        """Returns how many passes are expected to come; `default` where that is not known."""
        left = self._steps_left()
        return default if left is None else float(left)

    @property
    def patience(self) -> float:
        """Seconds that a pass may wait for the store."""
        return self.ledger.patience(self.longest_patience)

    def use(self, args: tuple[Any, ...], kwargs: dict[str, Any], ids: Sequence[int] | None) -> bool:
        """A pass of these samples begins; returns whether it goes through the cache."""
        if ids is not None and not self._always:
            self._repeats.note(args, kwargs, ids)
            self._tell_whether_samples_repeat()
            self._count_epochs(ids)
        return self.ledger.begin(None if ids is None else len(ids), self.on_host)

    def found(self, reasons: Sequence[str]) -> None:
        """The store says why samples are misses, "" for hits."""
        if not self._always:
            self._repeats.found(reasons)
            self._tell_whether_samples_repeat()

    @property
    def expects_repeats(self) -> bool:
        """Whether samples come again as they were, or most probably do."""
        return bool(self._always or self._repeats.known or (self._repeats.known is None and self._drew() is False))

    @property
    def samples_differ(self) -> bool:
        """Whether samples are known not to come again as they were."""
        return not self._always and self._repeats.known is False

    def kept(self, ids: Sequence[int]) -> None:
        """These samples have been offered to the store."""
        self._first_batch = self._first_batch or set(ids)

    def _tell_whether_samples_repeat(self) -> None:
        if self._repeats.known is not None:
            self.ledger.samples_repeat(self._repeats.known)
        else:
            drew = self._drew()
            self.ledger.samples_may_repeat(None if drew is None else not drew)

    def _count_epochs(self, ids: Sequence[int]) -> None:
        if not self._first_batch:
            return
        self._seen_again += sum(map(self._first_batch.__contains__, ids))
        if self._seen_again >= len(self._first_batch):
            self._seen_again -= len(self._first_batch)
            self.epochs += 1
            self.ledger.epoch_passed()


class Proving:
    """Measures a proof.

    Attributes:
      seconds: that it took, at its end.
    """

    def __init__(self, gate: CacheGate, first: bool):
        self.seconds = 0.0
        self._gate = gate
        self._first = first

    def __enter__(self) -> Proving:
        self._begin = self._gate.ledger.now()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = self._gate.ledger.now() - self._begin
        self._gate.ledger.proved(self._begin)
        if self._first:
            self._gate._first_proof_seconds = self.seconds
        else:
            self._gate._proofs_seconds += self.seconds


def _now(device: torch.device, wait: bool) -> float:
    """The ledger's clock."""
    if wait and device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
