"""A loader's workers leave out the samples that nobody looks at: wrap(loader, skip_loading=True).

The process that trains decides, when a batch's indices are handed out, which of its samples need not be loaded
(SampleMemory), and says so by a Skip in place of the indices. This file's code runs where the dataset is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torch.utils.data import default_collate as torchs_collate

from egeria.data.drawing import generator_states
from egeria.data.sample_ids import indices_of
from egeria.data.variants import Variants


class Skip(NamedTuple):
    """Stands for a batch's indices.

    Attributes:
      indices: all of them.
      load: positions of the samples that are loaded all the same.
      stamps: what stamp_of() said of each sample when it was loaded.
    """

    indices: tuple[int, ...]
    load: tuple[int, ...]
    stamps: tuple[int, ...]


class Part(NamedTuple):
    """Says which samples of a batch a worker has loaded.

    Attributes:
      positions: theirs, ascending.
      stamps: stamp_of() each, from just before it was loaded.
      changed: positions of those whose files are others than they were.
      drew: random numbers were drawn for them.
    """

    positions: tuple[int, ...]
    stamps: tuple[int, ...]
    changed: tuple[int, ...]
    drew: bool


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
        stamps = [stamp_of(dataset, index) for index in batch.indices]
        wanted = set(batch.load)
        changed = tuple(i for i, stamp in enumerate(stamps) if i not in wanted and stamp != batch.stamps[i])
        wanted.update(changed)
        everything = whole and bool(wanted)
        positions = tuple(i for i in range(len(stamps)) if everything or i in wanted)
        indices: tuple[Any, ...] = batch.indices
    else:
        known = indices_of(batch, batched=True)
        if known is None or not all(isinstance(index, int) for index in known):
            return None
        indices, changed, positions = known, (), tuple(range(len(known)))
        stamps = [stamp_of(dataset, index) for index in indices]
    chosen = [indices[i] for i in positions]
    states = generator_states() if chosen else []
    samples = samples_of(dataset, chosen) if chosen else []
    part = Part(positions, tuple(stamps[i] for i in positions), changed, False)
    return Loaded(indices, samples, part, states)


def samples_of(dataset: Any, indices: list[Any]) -> Any:
    """Reads samples as a loader does."""
    if getattr(dataset, "__getitems__", None):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]


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


def is_torchs_collate(collate_fn: Any) -> bool:
    """Returns whether each sample's part of a batch is the same in whatever company."""
    return collate_fn is torchs_collate


# A sample's files are told by their sizes and times.


def stamp_of(dataset: Any, index: int) -> int:
    """Returns a number that changes with the sizes and times of a sample's files, as far as the dataset lists their
    paths; it costs a few microseconds a file."""
    dataset, index = _innermost(dataset, index)
    found = []
    for path in _paths(dataset, index):
        try:
            status = os.stat(path)
        except OSError:
            found.append((0, 0))
        else:
            found.append((status.st_size, status.st_mtime_ns))
    return hash(tuple(found)) if found else 0


def _innermost(dataset: Any, index: int) -> tuple[Any, int]:
    """Returns the dataset that has the sample, and the sample's index there."""
    while True:
        if isinstance(dataset, Variants):
            dataset, index = dataset.dataset, index // dataset.k
        elif isinstance(dataset, Subset):
            dataset, index = dataset.dataset, int(dataset.indices[index])
        elif isinstance(dataset, ConcatDataset):
            index = index + len(dataset) if index < 0 else index
            number = next(i for i, size in enumerate(dataset.cumulative_sizes) if index < size)
            index -= dataset.cumulative_sizes[number - 1] if number > 0 else 0
            dataset = dataset.datasets[number]
        else:
            return dataset, index


def _paths(dataset: Any, index: int) -> list[str]:
    """Returns the paths in a sample's entries of the dataset's lists, such as torchvision's `samples`."""
    try:
        lists = vars(dataset).values()
        size = len(dataset)
    except TypeError:
        return []
    paths: list[str] = []
    for entries in lists:
        if isinstance(entries, (list, tuple, np.ndarray)) and len(entries) == size:
            entry = entries[index]
            parts: Sequence[Any] = entry if isinstance(entry, (list, tuple)) else (entry,)
            paths += [os.fspath(part) for part in parts if _is_path(part)]
    return paths


def _is_path(value: Any) -> bool:
    return isinstance(value, os.PathLike) or isinstance(value, str) and os.sep in value
