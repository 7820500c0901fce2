"""A tagged loader carries the indices of each batch's samples along with the batch, from where its dataset is read to
where its batches arrive."""

from __future__ import annotations

import copy
import functools
from collections import UserDict
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from egeria.data.drawing import Drawing, either, generator_states, same_states
from egeria.data.lookahead import Handing, LookAhead
from egeria.data.sample_ids import indices_of
from egeria.data.skip_loading import Loaded, Part, load
from egeria.data.variants import Variants, VariantSampler

# The indices have this key in batches that are dicts and go through hands that would not know a TaggedBatch.
KEY = "egeria_sample_indices"


class TaggedBatch:
    """Holds a batch, as the loader's collate_fn made it, and the indices of its samples, as the sampler drew them; None
    where they are not known. Nothing that takes it for the batch itself gets far.

    Attributes:
      part: which of the samples the batch has; None: all of them, and nobody leaves any out.
      drew: whether the batch was made with random numbers; None: not known.
      move: what moves the batch to a device once it is complete; None where that is done, or not wanted.
    """

    __slots__ = ("indices", "batch", "part", "drew", "move")

    def __init__(self, indices: tuple[Any, ...] | None, batch: Any, part: Part | None = None, drew: bool | None = None):
        self.indices = indices
        self.batch = batch
        self.part = part
        self.drew = drew
        self.move: Callable[[Any], Any] | None = None

    def pin_memory(self) -> TaggedBatch:
        """A loader with pin_memory=True calls this."""
        return TaggedBatch(self.indices, pin_memory(self.batch), self.part, self.drew)

    def to(self, device: Any, non_blocking: bool = False) -> TaggedBatch:
        """A loader that accelerate has prepared calls this, so that accelerate is loaded."""
        from accelerate.utils import send_to_device  # pylint: disable=import-outside-toplevel

        if self.part is None:
            moved = send_to_device(self.batch, device, non_blocking=non_blocking)
            return TaggedBatch(self.indices, moved, drew=self.drew)
        moved = TaggedBatch(self.indices, self.batch, self.part, self.drew)
        moved.move = functools.partial(send_to_device, device=device, non_blocking=non_blocking)
        return moved


class Indices:
    """Holds indices under KEY in a batch, in a shape that nothing converts, pins or moves to a device; and whether the
    batch was made with random numbers."""

    __slots__ = ("indices", "drew")

    def __init__(self, indices: tuple[Any, ...], drew: bool | None):
        self.indices = indices
        self.drew = drew


class _Fetched(NamedTuple):
    """Holds the samples that a loader hands to its collate_fn; and whether they were made with random numbers."""

    indices: tuple[Any, ...] | None
    samples: Any
    drew: bool | None
    loaded: Loaded | None = None


class _TaggedDataset(Dataset):
    """Gives the samples of another dataset with their indices. A loader reads it as it would read the other.

    Attributes:
      users: the dataset whose attributes, length among them, are this one's.
      skips: whether it is given a Skip in place of the indices; "whole": of batches of which all is loaded, or nothing.
    """

    def __init__(self, dataset: Any, users: Any, skips: bool | str = False):
        self.dataset = dataset
        self.users = users
        self.skips = skips
        self._drawing = Drawing(dataset)

    def __getitem__(self, index: Any) -> _Fetched:
        indices = indices_of(index, batched=False)
        with self._drawing.watching():
            samples = self.dataset[index]
        return _Fetched(indices, samples, self._drawing.drew)

    def __getitems__(self, batch: Any) -> _Fetched:
        if self.skips and (loaded := load(self.dataset, batch, self.skips == "whole")) is not None:
            return _Fetched(loaded.indices, loaded.samples, None, loaded)
        indices = indices_of(batch, batched=True)
        with self._drawing.watching():
            if getattr(self.dataset, "__getitems__", None):
                samples = self.dataset.__getitems__(batch)
            else:
                samples = [self.dataset[index] for index in batch]
        return _Fetched(indices, samples, self._drawing.drew)

    def __len__(self) -> int:
        return len(self.users)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("dataset", "users", "skips", "_drawing"):
            raise AttributeError(name)
        return getattr(self.users, name)


class _TaggedCollate:
    """Calls another collate_fn, and gives its batch with the indices."""

    def __init__(self, collate_fn: Callable[[Any], Any], in_dict: bool):
        self.collate_fn = collate_fn
        self.in_dict = in_dict
        self._drawing = Drawing(collate_fn)

    def __call__(self, fetched: _Fetched) -> Any:
        samples, loaded = fetched.samples, fetched.loaded
        if loaded is not None and not loaded.part.positions:
            return TaggedBatch(fetched.indices, None, loaded.part)
        before = list(samples) if isinstance(samples, list) else []
        with self._drawing.watching():
            batch = self.collate_fn(samples)
        drew = either(fetched.drew, self._drawing.drew)
        indices = fetched.indices
        if isinstance(samples, list) and (
            len(samples) != len(before) or any(one is not other for one, other in zip(samples, before))
        ):
            indices = None  # it has sorted or filtered them
        if loaded is not None:
            return _with_part(indices, batch, loaded)
        return with_indices(indices, batch, drew) if self.in_dict else TaggedBatch(indices, batch, drew=drew)


def with_indices(indices: tuple[Any, ...] | None, batch: Any, drew: bool | None) -> Any:
    """Returns a batch that has its indices under KEY, if it is a dict and they are known."""
    if indices is not None and isinstance(batch, (dict, UserDict)):
        batch = copy.copy(batch)  # it may be a sample that the dataset keeps
        batch[KEY] = Indices(indices, drew)
    return batch


def _with_part(indices: tuple[Any, ...] | None, batch: Any, loaded: Loaded) -> TaggedBatch:
    drew = not same_states(loaded.states, generator_states())
    return TaggedBatch(indices, batch, loaded.part._replace(drew=drew), drew)


class _WorkerInit:
    """Lets a loader's worker_init_fn, and its dataset, see the user's dataset."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None):
        self.worker_init_fn = worker_init_fn

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, _TaggedDataset):
            object.__setattr__(info, "dataset", info.dataset.users)  # it is frozen
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)


def sampler_of(loader: DataLoader) -> Any:
    """Returns what `loader` takes indices from."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def order_of(
    loader: DataLoader,
    ids_of: Callable[[tuple[Any, ...]], list[int] | None],
    chosen: VariantSampler | None,
    handing: Handing | None = None,
) -> LookAhead:
    """Returns the order in which `loader` will deliver, by its sampler.

    Args:
      chosen: draws variants of the samples that the loader's sampler draws; None: there are none.
      handing: makes what the loader gets of what the sampler has drawn.
    """
    batched = loader.batch_sampler is not None
    return LookAhead(
        sampler_of(loader),
        ids_of,
        batched,
        getattr(loader, "in_order", True),
        loader.num_workers * (loader.prefetch_factor or 0),
        chosen,
        handing,
    )


def tag(
    loader: DataLoader, order: LookAhead, in_dict: bool, variants: Variants | None = None, skips: bool | str = False
) -> dict[str, Any]:
    """Lets `loader`, which nobody has iterated over, deliver tagged batches, in place.

    Args:
      order: its order_of(); the loader draws from it.
      in_dict: the indices are in the batches that are dicts, under KEY; else batches are TaggedBatch.
      variants: of the loader's dataset, where `order` draws those.
      skips: see _TaggedDataset.

    Returns:
      The attributes that have been replaced.
    """
    sampler = "sampler" if loader.batch_sampler is None else "batch_sampler"
    tagged = {
        "dataset": _TaggedDataset(loader.dataset if variants is None else variants, loader.dataset, skips),
        "collate_fn": _TaggedCollate(loader.collate_fn, in_dict),
        "worker_init_fn": _WorkerInit(loader.worker_init_fn),
        sampler: order,
    }
    replaced = {name: loader.__dict__[name] for name in tagged}
    loader.__dict__.update(tagged)  # a DataLoader lets nobody set these once it is made
    return replaced


def iterates_itself(loader: DataLoader) -> bool:
    """Returns whether its batches come from torch's own loop over a sampler and a dataset."""
    kind = type(loader)
    return kind.__iter__ is DataLoader.__iter__ and kind._get_iterator is DataLoader._get_iterator
