"""Variants makes random augmentation come again: each sample has K variants.

images = egeria.data.Variants(train_set, k=4)
loader = egeria.data.wrap(DataLoader(images, 32, sampler=images.one_each(RandomSampler(train_set))))
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

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

    def one_each(self, sampler: Iterable[int]) -> VariantSampler:
        """Draws as `sampler` does, which draws samples of the dataset inside, and one variant of each."""
        return VariantSampler(self, sampler)


class VariantSampler(Sampler[int]):
    """Draws one variant of each sample that another sampler draws. It does so in the process that trains, so that
    workers need not know of epochs.

    The epoch is what set_epoch(), here or of the sampler inside, has said before a pass; each further pass counts
    one more. A training that is resumed sets it, or begins with other variants than it would have had.
    """

    def __init__(self, variants: Variants, sampler: Iterable[int]):
        self.variants = variants
        self.sampler = sampler
        self._epoch = 0  # the epoch of the next pass
        self._told: Any = None  # the epoch of the sampler inside at the last pass

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next pass is."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        self._told = getattr(self.sampler, "epoch", None)
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        told = getattr(self.sampler, "epoch", None)
        if isinstance(told, int) and told != self._told:
            self._told, self._epoch = told, told
        epoch = self._epoch
        self._epoch += 1
        return (self.variants.index(int(sample), epoch) for sample in self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


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
