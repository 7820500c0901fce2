"""Variants makes random augmentation come again: each sample has K variants.

loader = egeria.data.wrap(DataLoader(train_set, 32, shuffle=True), variants=4)

The same in pieces, for a loop that hands a loader on:

images = egeria.data.Variants(train_set, k=4)
loader = egeria.data.wrap(DataLoader(images, 32, sampler=images.one_each(RandomSampler(train_set))))
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from egeria.data.sample_ids import indices_of
from egeria.errors import EgeriaError

_BITS = (1 << 64) - 1


class Variants(Dataset):
    """Gives each sample of a dataset with a random transform K variants that never change.

    Variant v of sample i is what the dataset gives for i when Python's, NumPy's and torch's generators have been
    seeded from (seed, i, v). So it is the same in each epoch, worker, rank and process. Afterwards they are as
    they were before: the training's own random numbers stay what they are. It takes about 0.1 ms a sample, most
    of it NumPy's. A transform with a generator of its own, or one on an accelerator, gives something else each
    time; then what has been kept for the variant is not used.

    Its index tells variants apart, index = i * k + v, and so do sample ids, wherever they come from the index.
    All of them make an epoch k times as long; one_each() gives each sample once, in another variant each epoch.
    """

    def __init__(self, dataset: Any, k: int, seed: int = 0):
        """
        Args:
          dataset: with __getitem__ for integers 0..n-1, and __len__.
          k: variants of a sample. A cached variant comes again after k epochs.

        Raises:
          EgeriaError: [BAD_VARIANTS] there are no samples by number, or none would be given.
        """
        if (
            isinstance(dataset, IterableDataset)
            or not hasattr(dataset, "__getitem__")
            or not hasattr(dataset, "__len__")
        ):
            raise EgeriaError(
                "BAD_VARIANTS",
                f"the samples of the {type(dataset).__name__} have no numbers; give "
                "Variants() a dataset with __getitem__ and __len__",
            )
        if isinstance(dataset, Variants):
            raise EgeriaError(
                "BAD_VARIANTS", "the dataset is one of variants already; say once how many, to Variants() or to wrap()"
            )
        if not isinstance(k, int) or k < 1:
            raise EgeriaError(
                "BAD_VARIANTS",
                f"a sample cannot have {k!r} variants; give Variants() an integer of at least 1, such as 4",
            )
        self.dataset = dataset
        self.k = k
        self.seed = seed
        self._strides = [stride for stride in range(1, k + 1) if math.gcd(stride, k) == 1]

    def __len__(self) -> int:
        return len(self.dataset) * self.k

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} variants")
        with _drawing_from(_mix(self.seed, int(index))):
            return self.dataset[int(index) // self.k]

    def index(self, sample: int, epoch: int) -> int:
        """Returns the index of the sample's variant of this epoch. In k epochs all of them come, for each sample in an
        order of its own."""
        mixed = _mix(self.seed, sample)
        stride = self._strides[mixed // self.k % len(self._strides)]
        return sample * self.k + (mixed + epoch * stride) % self.k

    def one_each(self, sampler: Iterable[Any]) -> VariantSampler:
        """Draws as `sampler` does, which draws samples of the dataset inside, or batches of them, and one variant of
        each."""
        return VariantSampler(self, sampler)

    def id_of(self, sample_id: Callable[[Any], int] | None) -> Callable[[Any], int] | None:
        """Turns a function that gives samples their ids into one that gives them to the indices of variants."""
        if sample_id is None:
            return None
        k = self.k  # the function lives longer than this object
        return lambda index: sample_id(index // k) * k + index % k


class VariantSampler(Sampler[Any]):
    """Draws one variant of each sample that another sampler draws. It does so in the process that trains, so that
    workers need not know of epochs.

    The epoch is what set_epoch(), here or of a sampler inside, has said before a pass; each further pass counts
    one more. A training that is resumed sets it, or begins with other variants than it would have had.

    Attributes:
      loader_epoch: the epoch of the next pass by the loader's count, for samplers that know none.
    """

    def __init__(self, variants: Variants, sampler: Iterable[Any]):
        self.variants = variants
        self.sampler = sampler
        self.loader_epoch: int | None = None
        self._epoch = 0  # the epoch of the next pass
        self._told: int | None = None  # the epoch of the sampler inside at the last pass

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next pass is."""
        inside = next((one for one in _within(self.sampler) if hasattr(one, "set_epoch")), None)
        if inside is not None:
            inside.set_epoch(epoch)
        self._told = self._told_epoch()
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        told = self._told_epoch()
        if told is not None and told != self._told:
            self._told, self._epoch = told, told
        return self._draws(iter(self.sampler), self._epoch)

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def _draws(self, iterator: Iterator[Any], epoch: int) -> Iterator[Any]:
        # A loader with workers calls iter() twice for a pass, and draws from the second one.
        self._epoch = epoch + 1
        for drawn in iterator:
            yield self._variant(drawn, epoch)

    def _told_epoch(self) -> int | None:
        epochs = (getattr(one, "epoch", None) for one in _within(self.sampler))
        return next((epoch for epoch in epochs if isinstance(epoch, int)), self.loader_epoch)

    def _variant(self, drawn: Any, epoch: int) -> Any:
        """Returns the index, or the list of them, that stands for what the sampler has drawn."""
        batch = indices_of(drawn, batched=True)
        samples = indices_of(drawn, batched=False) if batch is None else batch
        if samples is None or not all(isinstance(sample, int) for sample in samples):
            raise EgeriaError(
                "BAD_VARIANTS",
                f"the sampler draws {drawn!r}, and only a sample with a number has variants; let it draw integers, "
                "or leave the variants out",
            )
        chosen = [self.variants.index(sample, epoch) for sample in samples]
        return chosen[0] if batch is None else chosen


def _within(sampler: Any) -> Iterator[Any]:
    """Gives a sampler, the one that it takes from, and so on."""
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)


@contextlib.contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    """Inside, the generators that everybody uses begin at `seed`; afterwards they are as before."""
    python, numpy_, torch_ = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
    try:
        random.seed(seed)
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
        torch.default_generator.manual_seed(seed)  # torch.manual_seed() would seed accelerators too
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_)
        torch.set_rng_state(torch_)


def _mix(seed: int, number: int) -> int:
    """Returns 64 bits made of both by two rounds of splitmix64."""
    value = seed & _BITS
    for part in (number, 0):
        value = (value + part + 0x9E3779B97F4A7C15) & _BITS
        value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _BITS
        value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _BITS
        value ^= value >> 31
    return value
