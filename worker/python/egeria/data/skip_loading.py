"""A loader's workers leave out the samples that nobody looks at: wrap(loader, skip_loading=True).

The process that trains decides, when a batch's indices are handed out, which of its samples need not be loaded
(SampleMemory), and says so by a Skip in place of the indices. This file's code runs where the dataset is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader
from torch.utils.data import default_collate as torchs_collate

from egeria.data.drawing import generator_states
from egeria.data.sample_ids import indices_of
from egeria.data.sample_stamp import read, stamp_of


class Skip(NamedTuple):
    """Stands for a batch's indices.

    Attributes:
      indices: all of them.
      load: positions of the samples that are loaded all the same.
      stamps: what stamp_of() said of each sample when it was loaded; 0: that is not known.
      files: what read() said of it then.
    """

    indices: tuple[int, ...]
    load: tuple[int, ...]
    stamps: tuple[int, ...]
    files: tuple[tuple[str, ...], ...]


class Part(NamedTuple):
    """Says which samples of a batch a worker has loaded.

    Attributes:
      positions: theirs, ascending.
      stamps: see Reading.
      changed: positions of those that are others than they were, by their stamps.
      drew: random numbers were drawn for them.
      files: see Reading; () where no sample has any.
    """

    positions: tuple[int, ...]
    stamps: tuple[int, ...]
    changed: tuple[int, ...]
    drew: bool
    files: tuple[tuple[str, ...], ...] = ()


class Loaded(NamedTuple):
    """Holds the samples that a loader hands to its collate_fn."""

    indices: tuple[Any, ...]
    samples: Any
    part: Part
    states: list[Any]  # the generators', from before


def load(dataset: Any, batch: Any, whole: bool) -> Loaded | None:
    """Reads the samples of a batch.

    Args:
      batch: a Skip, or indices.
      whole: all samples of a batch are loaded if one is.

    Returns:
      None where the samples have no numbers, or none are known to be read.
    """
    if isinstance(batch, Skip):
        stamps = map(stamp_of, [dataset] * len(batch.indices), batch.indices, batch.files)
        changed = tuple(i for i, (now, was) in enumerate(zip(stamps, batch.stamps)) if was not in (0, now))
        wanted = {*batch.load, *changed}
        everything = whole and bool(wanted)
        positions = tuple(i for i in range(len(batch.indices)) if everything or i in wanted)
        indices: tuple[Any, ...] = batch.indices
    else:
        known = indices_of(batch, batched=True)
        if known is None or not all(isinstance(index, int) for index in known):
            return None
        indices, changed, positions = known, (), tuple(range(len(known)))
    if not positions:
        return Loaded(indices, [], Part((), (), (), False), [])
    states = generator_states()
    samples, stamps_now, files = read(dataset, [indices[i] for i in positions])
    return Loaded(indices, samples, Part(positions, stamps_now, changed, False, files if any(files) else ()), states)


def in_worker_of(loader: DataLoader) -> Callable[[Any, Any, list[int]], Any] | None:
    """Returns a function that makes a batch as a worker of `loader` does, of a dataset, a collate_fn and indices, in a
    process of its own; None where there are no workers."""
    if loader.num_workers == 0:
        return None
    options = {"worker_init_fn": loader.worker_init_fn, "multiprocessing_context": loader.multiprocessing_context}

    def load_there(dataset: Any, collate_fn: Any, indices: list[int]) -> Any:
        generator = torch.Generator()  # the seed of the worker comes from there
        one = DataLoader(
            dataset, batch_sampler=[indices], collate_fn=collate_fn, num_workers=1, generator=generator, **options
        )
        return next(iter(one))

    return load_there


def collates_by_sample(collate_fn: Any) -> bool:
    """Returns whether each sample's part of a batch is the same in whatever company."""
    kind = type(collate_fn)
    if f"{kind.__module__}.{kind.__qualname__}" == "transformers.trainer_utils.RemoveColumnsCollator":
        return collates_by_sample(collate_fn.data_collator)
    name = f"{getattr(collate_fn, '__module__', '')}.{getattr(collate_fn, '__qualname__', '')}"
    return collate_fn is torchs_collate or name == "transformers.data.data_collator.default_data_collator"
