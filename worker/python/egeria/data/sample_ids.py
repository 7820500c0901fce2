"""SampleIds knows which samples the batch at hand is made of; data loader and model meet here.

An id is the address under which something about a sample is kept, never the proof that it belongs to it: whoever
uses one compares a hash of the sample's input too. Where it is not certain that the ids are those of the batch
that the model is called with, there are none.
"""

from __future__ import annotations

import logging
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from egeria.data.drawing import Drawing
from egeria.errors import EgeriaError
from egeria.model.isolation import in_shadow_pass

_logger = logging.getLogger("egeria")
_told: set[str] = set()

# This many passes in a row without ids are no warm-up.
_SAY_AFTER = 4


class Order(Protocol):
    """Knows what a loader will deliver next."""

    def upcoming(self) -> list[list[int]]:
        """Returns the ids of the next batches, the next one first."""

    def batches(self) -> int | None:
        """Returns how many batches a pass over the loader has; None where that is not known."""


class Pass:
    """Stands for one pass over a loader. The ids that it has delivered are worth nothing once it is gone.

    Attributes:
      runs_ahead: the loop has taken a batch before it worked on the one before (it prefetches, or has skipped one,
        or zips two loaders), so that for the rest of this pass nobody knows which batch the model works on.
    """

    runs_ahead = False


class _Announcement(NamedTuple):
    ids: list[int] | None  # None: a batch of unknown samples
    source: weakref.ref[Pass] | None  # None: the user's own announcement

    def gone(self) -> bool:
        return self.source is not None and self.source() is None


class SampleIds:
    """Knows the ids of the batch that the training loop works on. Thread-safe; current() is this process's.

    Loaders announce, once a batch; the model's forward pre-hook takes, once a batch: it must call take() in every
    forward pass in training mode, whether it needs the ids or not, since a batch that was never taken looks like a
    loop that runs ahead of the model.
    """

    def __init__(self) -> None:
        self._loader_drew: bool | None = None
        self._loop = Drawing(devices=True)  # between a batch's delivery and the model's call, as augmentation there is
        self._loop_drew = False
        self._lock = threading.Lock()
        self._at_hand: _Announcement | None = None
        self._order: Callable[[], Order | None] = lambda: None
        self._nobody_announces = "the training's loader is not wrapped; loader = egeria.data.wrap(loader)"
        self._announced = False  # ever
        self._without = 0  # passes in a row that have taken nothing
        self._is_fed = False
        self._waiting: list[weakref.WeakMethod[Callable[[], None]]] = []

    def announce(self, ids: Sequence[int] | Tensor) -> None:
        """Says of which samples the next batch is that the model is called with in training mode.

        For loops without a DataLoader. It replaces what was announced before, also by a wrapped loader.

        Args:
          ids: as many as the batch has samples, in their order; each stands for the same sample throughout the
            training. A tensor is one-dimensional, of an integer type.

        Raises:
          EgeriaError: [BAD_SAMPLE_IDS] they are not integers of 64 bits.
        """
        values = ids_of(ids.tolist() if isinstance(ids, Tensor) else ids)
        if values is None:
            raise EgeriaError(
                "BAD_SAMPLE_IDS",
                "announce() takes the ids of a batch's samples, a sequence of "
                "integers of 64 bits; give each sample a number, such as its index in the dataset",
            )
        with self._lock:
            self._at_hand = _Announcement(values, None)
            self._announced = True
        self._loop.begin()
        self.feed()

    def take(self, batch: int) -> list[int] | None:
        """Returns the ids of the batch at hand, in its order, once for each announcement. The model's forward pre-hook
        calls it in training mode. Where there are none in several passes, it says once a process why. A model that
        calls it itself leaves them where they are in a shadow's pass.

        Args:
          batch: size of the batch that the model is called with.

        Returns:
          None where no batch was announced, or one of another size, or where it is not certain to be this one.
        """
        with self._lock:
            at_hand = self._at_hand
            if not in_shadow_pass():
                self._at_hand = None
                self._loop.end()
                if self._loop.drew is not None:
                    self._loop_drew = self._loop.drew
            why = self._why_none(at_hand, batch)
            self._without = 0 if why is None else self._without + 1
            without = self._without
        if why is None:
            return list(at_hand.ids)  # type: ignore[union-attr,arg-type]
        if without == _SAY_AFTER:
            tell("no ids", logging.INFO, f"batches have no sample ids, so nothing is cached: {why}")
        return None

    def _why_none(self, at_hand: _Announcement | None, batch: int) -> str | None:
        """Returns why nothing may be taken now, for people; None if it may."""
        if at_hand is None:
            return "the model is called more than once for a batch" if self._announced else self._nobody_announces
        source = at_hand.source() if at_hand.source is not None else None
        if at_hand.source is not None and source is None:
            return "the model is called with a batch of a loop that has been left"
        if source is not None and source.runs_ahead:
            return (
                "the loop takes batches ahead of the model, or leaves some out; call "
                "egeria.data.current().announce(ids) just before the model"
            )
        if at_hand.ids is None:
            return (
                "the batch's indices are no integers of 64 bits (give wrap() a sample_id), or collate_fn "
                "moves or leaves out samples"
            )
        if len(at_hand.ids) != batch:
            return f"the model is called with {batch} samples, the loader's batch has {len(at_hand.ids)}"
        return None

    @property
    def drew(self) -> bool | None:
        """Whether the newest batch of which that is known was made with random numbers, by its loader or in the loop;
        None: of none it is."""
        return True if self._loop_drew else self._loader_drew

    @property
    def is_fed(self) -> bool:
        """Whether batches are announced, or going to be."""
        return self._is_fed

    def nobody_announces(self, why: str) -> None:
        """Sets what to tell people where there are no ids because no batch is announced."""
        self._nobody_announces = why

    def feed(self) -> None:
        """Batches are going to be announced, or one has been."""
        self._is_fed, waiting, self._waiting = True, self._waiting, []
        for method in waiting:
            if (call := method()) is not None:
                call()

    def when_fed(self, method: Callable[[], None]) -> None:
        """Calls a method of an object, which this does not keep alive, once batches are going to be announced; at once
        where that is known."""
        self._waiting.append(weakref.WeakMethod(method))
        if self._is_fed:
            self.feed()

    def forget(self) -> None:
        """Drops what is announced."""
        with self._lock:
            self._at_hand = None

    def upcoming(self) -> list[list[int]]:
        """Returns the ids of the batches that the loader will deliver next, the next one first: at least 5 where its
        order is known so far ahead. This is a hint, and may be wrong or empty at any time."""
        order = self._order()
        return [] if order is None else order.upcoming()

    def batches_of_epoch(self) -> int | None:
        """Returns how many batches a pass over the newest loader has; None where that is not known."""
        order = self._order()
        return None if order is None else order.batches()

    # Loaders call these.

    def follow(self, order: Order) -> None:
        """Lets upcoming() ask `order` from now on, as long as it lives."""
        self._order = weakref.ref(order)

    def deliver(self, source: Pass, ids: list[int] | None) -> None:
        """A loader hands its next batch to the loop; None: it does not know of which samples."""
        with self._lock:
            waiting = self._at_hand
            if waiting is not None and not waiting.gone():
                source.runs_ahead = True
                other = waiting.source() if waiting.source is not None else None
                if other is not None:
                    other.runs_ahead = True
            self._at_hand = _Announcement(None if source.runs_ahead else ids, weakref.ref(source))
            self._announced = True
            self._loop.begin()

    def note_drawing(self, drew: bool | None) -> None:
        """A batch is delivered that was made with random numbers, or without; None: that is not known."""
        self._loader_drew = self._loader_drew if drew is None else drew

    def end(self, source: Pass) -> None:
        """A loader has delivered its last batch, and the loop has come back from it."""
        self._loop.look_again()
        with self._lock:
            if (
                self._at_hand is not None
                and self._at_hand.source is not None
                and self._at_hand.source() in (source, None)
            ):
                self._at_hand = None


_current = SampleIds()


def current() -> SampleIds:
    """Returns this process's. In a loader's worker it is empty: ids meet the model in the process that trains."""
    return _current


def indices_of(drawn: Any, batched: bool) -> tuple[Any, ...] | None:
    """Returns the samples' indices in what a sampler has drawn, integers (also NumPy's, or tensors) as Python's.

    Args:
      drawn: what it has drawn for one batch.
      batched: whether it is a batch's indices in any case. If not, since a loader collates nothing, a list or an
        array is a batch's, and anything else one sample's.

    Returns:
      None where it cannot be told without using it up.
    """
    if getattr(drawn, "ndim", 0) == 1 and hasattr(drawn, "tolist"):
        drawn = drawn.tolist()
    if isinstance(drawn, list) or batched and isinstance(drawn, tuple):
        return tuple(_plain(index) for index in drawn)
    return None if batched else (_plain(drawn),)


def _plain(index: Any) -> Any:
    try:
        return operator.index(index)
    except (TypeError, ValueError):
        return index


def ids_of(indices: Iterable[Any] | None, sample_id: Callable[[Any], int] | None = None) -> list[int] | None:
    """Returns the ids of the samples with these indices: sample_id's, or the indices themselves.

    Returns:
      None where one of them is not an integer of 64 bits, or sample_id fails.
    """
    if indices is None or isinstance(indices, (str, bytes)):
        return None
    try:
        ids = list(map(operator.index, indices if sample_id is None else map(sample_id, indices)))
    except Exception as error:  # pylint: disable=broad-exception-caught
        if sample_id is not None:
            tell("sample_id", logging.WARNING, f"sample_id() failed, so a batch has no ids: {error}")
        return None
    return ids if min(ids, default=0) >= -(2**63) and max(ids, default=0) < 2**63 else None


def tell(what: str, level: int, text: str) -> None:
    """Says it once a process, as far as `what` tells such texts apart."""
    if what not in _told:
        _told.add(what)
        _logger.log(level, "egeria: %s", text)
