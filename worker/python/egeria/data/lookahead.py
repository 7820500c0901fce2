"""This file learns what a loader will deliver next, by drawing from its sampler a few batches early.

A training must not notice. Drawing early leaves the order as it is, but a sampler may use a random generator that
others use too, or do something when it is exhausted. So only samplers are drawn from early that are known to do
all this with the first index or at their end, and their last batch is never drawn early. For all others,
the loader's own draws are noted as they pass.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from egeria.data.sample_ids import indices_of

AHEAD = 8  # batches

# These draw random numbers at most once, with the first index (or when iter() is called).
_SAMPLERS = {
    "builtins.list",
    "builtins.tuple",
    "builtins.range",
    "torch.utils.data.sampler.SequentialSampler",
    "torch.utils.data.sampler.SubsetRandomSampler",
    "torch.utils.data.sampler.WeightedRandomSampler",
    "torch.utils.data.distributed.DistributedSampler",
    "egeria.data.node_sampler.NodeSampler",
    "lightning.fabric.utilities.distributed.DistributedSamplerWrapper",
    "lightning_fabric.utilities.distributed.DistributedSamplerWrapper",
    "transformers.trainer_pt_utils.LengthGroupedSampler",
}
# These draw a permutation with the first index and another one at the end.
_RANDOM_SAMPLERS = {"torch.utils.data.sampler.RandomSampler", "accelerate.data_loader.SeedableRandomSampler"}
# These draw nothing themselves; the attribute holds what they take from.
_AROUND = {
    "torch.utils.data.sampler.BatchSampler": "sampler",
    "accelerate.data_loader.BatchSamplerShard": "batch_sampler",
    "accelerate.data_loader.SkipBatchSampler": "batch_sampler",
    "egeria.data.variants.VariantSampler": "sampler",
}


def may_draw_early(sampler: Any) -> bool:
    """Returns whether drawing some batches early, but not the last one, changes nothing else."""
    name = f"{type(sampler).__module__}.{type(sampler).__qualname__}"
    if name in _AROUND:
        return may_draw_early(getattr(sampler, _AROUND[name]))
    if name in _RANDOM_SAMPLERS:
        once = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
        # Without a generator given, each pass has one of its own, with a seed that is drawn with the first index.
        return once or (sampler.generator is None and not name.startswith("accelerate."))
    return name in _SAMPLERS


class Handing(Protocol):
    """Stands between a sampler and the loader that draws from it."""

    def begin_pass(self) -> None:
        """A pass over the loader begins; a loader with workers may say so twice."""

    def hand_out(self, drawn: Any, indices: tuple[Any, ...] | None) -> Any:
        """Returns what the loader gets of what the sampler has drawn, and of the indices in that."""


class LookAhead:
    """Stands for a sampler of batches (or of whatever a loader indexes its dataset with), and gives what that gives.

    Everything but the iteration is the other's, attributes that are set on it too.

    Owned by the thread that iterates over the loader; upcoming() may be called from any.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        ids_of: Callable[[tuple[Any, ...]], list[int] | None],
        batched: bool,
        in_order: bool,
        loading: int,
        draws_from: Iterable[Any] | None = None,
        handing: Handing | None = None,
    ):
        """
        Args:
          sampler: the loader's.
          ids_of: makes ids of the indices of a batch.
          batched: see indices_of().
          in_order: whether the loader delivers in the order of the sampler.
          loading: how many batches the loader's workers may have at a time.
          draws_from: a sampler around `sampler` that is iterated over in its place.
          handing: makes what is given of what was drawn; None: that is the same.
        """
        self.__dict__.update(
            _sampler=sampler,
            _draws_from=sampler if draws_from is None else draws_from,
            _ids_of=ids_of,
            _batched=batched,
            _in_order=in_order,
            _most=loading + 64,
            _handing=handing,
            _draws=None,
        )

    def __iter__(self) -> Iterator[Any]:
        if self._handing is not None:
            self._handing.begin_pass()
        # It calls iter() of the sampler now, as the loader would.
        draws = _Draws(self._draws_from, self._batched, self._in_order, self._most, self._handing)
        self.__dict__["_draws"] = draws
        return draws

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]

    def upcoming(self) -> list[list[int]]:
        """Returns the ids of the batches that have been drawn and not been delivered."""
        draws = self._draws
        ids = [] if draws is None else [batch.ids(self._ids_of) for batch in draws.undelivered()]
        return [entry for entry in ids if entry is not None]

    def batches(self) -> int | None:
        """Returns how many batches a pass has; None where the sampler does not say."""
        try:
            return len(self)
        except (TypeError, NotImplementedError):
            return None

    def delivered(self, indices: tuple[Any, ...] | None) -> None:
        """The loader has delivered the batch of these indices."""
        if indices is not None and self._draws is not None:
            self._draws.delivered(indices)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_sampler" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._sampler, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._sampler, name, value)


class _Batch:
    """Holds what the sampler has drawn for one batch. Its ids are asked for in each step until it is delivered."""

    def __init__(self, drawn: Any, batched: bool):
        self.drawn = drawn
        self.indices = indices_of(drawn, batched)
        self._ids: list[int] | None = None
        self._known = False

    def ids(self, ids_of: Callable[[tuple[Any, ...]], list[int] | None]) -> list[int] | None:
        if not self._known and self.indices is not None:
            self._ids = ids_of(self.indices)
        self._known = True
        return self._ids


class _Draws:
    """Iterates over the sampler once."""

    def __init__(self, sampler: Iterable[Any], batched: bool, in_order: bool, most: int, handing: Handing | None):
        self._sampler = sampler
        self._batched = batched
        self._iterator = iter(sampler)
        self._in_order = in_order
        self._handing = handing
        self._lock = threading.Lock()
        self._early: deque[_Batch] = deque()  # drawn, and not given to the loader; by this thread
        self._loading: deque[_Batch] = deque(maxlen=most)  # given to the loader, and not delivered
        self._may_draw: int | None = None  # batches that may still be drawn early

    def __iter__(self) -> _Draws:
        return self

    def __next__(self) -> Any:
        drawn = self._next()
        if self._may_draw is None:  # only after the first index is the length the one of this pass
            self._may_draw = _length(self._sampler) - 2 if may_draw_early(self._sampler) else 0
        while len(self._early) < AHEAD and self._may_draw > 0:
            self._may_draw -= 1
            following = next(self._iterator, self)
            if following is self:  # the length was wrong
                self._may_draw = 0
                break
            with self._lock:
                self._early.append(_Batch(following, self._batched))
        return drawn

    def _next(self) -> Any:
        batch = None if self._early else _Batch(next(self._iterator), self._batched)
        with self._lock:
            batch = self._early.popleft() if batch is None else batch
            if batch.indices is not None:
                self._loading.append(batch)
        return batch.drawn if self._handing is None else self._handing.hand_out(batch.drawn, batch.indices)

    def undelivered(self) -> list[_Batch]:
        with self._lock:
            return [*self._loading, *self._early]

    def delivered(self, indices: tuple[Any, ...]) -> None:
        with self._lock:
            place = next((place for place, batch in enumerate(self._loading) if batch.indices == indices), None)
            if place is None:
                return
            for _ in range(place if self._in_order else 0):
                self._loading.popleft()
            del self._loading[0 if self._in_order else place]


def _length(sampler: Any) -> int:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return 0
