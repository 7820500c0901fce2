"""A SampleMemory knows, in the process that trains, what a loader's samples were, so that they need not be loaded."""

from __future__ import annotations

import collections
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor

from egeria import _native
from egeria.data import stand_in
from egeria.data.dataset_look import DatasetLook
from egeria.data.drawing import generator_states, same_states
from egeria.data.sample_stamp import read, stamp_of
from egeria.data.skip_loading import Part, Skip, collates_by_sample
from egeria.data.skipped_batch import SkippedBatch
from egeria.data.stand_in import serving

_logger = logging.getLogger("egeria")

# A tensor with rows of fewer bytes is kept here, not left out.
_SMALL = 1024
# The parts that are kept may take so much memory.
_MOST_KEPT = 256 * 2**20
# One of 48 samples that need not be loaded is loaded all the same, and compared: one of six, in one of eight batches,
# since what a worker hands over for a batch costs more than a sample.
_AUDITED_BATCHES, _AUDITED_SAMPLES = 8, 6
# The values of a tensor that the loop uses in more than a fourth of at least so many batches are not left out.
_TOUCHED = 4
# So does a loop that needs what was left out in more than a fourth of at least so many.
_LATE = 32
# So does a dataset that becomes another one time and again, which is said after so many times.
_CHANGES = 3
# One of so many samples may change without emptying the store, which replaces none.
_FEW = 20
# A sample that was offered to the cache counts as there until too many of so many were left out in vain.
_IN_VAIN = 64

# These say whether the cache has a sample's prefix output, as far as is known.
_UNKNOWN, _OFFERED, _SERVED, _MISSED = range(4)


class _Leaf:
    """Describes one part of a batch: a tensor with a row for each sample, or a list with an entry for each.

    Attributes:
      like: a row of the tensor without memory; None for a list.
      kept: all rows, or entries, that have come; None for a tensor that is left out.
      has: which those are.
    """

    def __init__(self, value: Any, samples: int):
        self.like = value[0].to("meta") if isinstance(value, Tensor) else None
        self.row_bytes = value.nbytes // len(value) if isinstance(value, Tensor) else 64
        self.kept: Any = None
        self.has = np.zeros(samples, bool)
        self.touches = 0
        if self.row_bytes < _SMALL:
            self.keep(samples)

    def keep(self, samples: int) -> None:
        self.kept = (
            [None] * samples if self.like is None else torch.empty((samples, *self.like.shape), dtype=self.like.dtype)
        )

    def fits(self, value: Any) -> bool:
        if self.like is None:
            return not isinstance(value, Tensor)
        return (
            isinstance(value, Tensor)
            and value.shape[1:] == self.like.shape
            and value.dtype == self.like.dtype
            and value.is_contiguous()
        )

    def same(self, index: int, row: Any) -> bool:
        """Whether a row is what has come before, if any has."""
        if self.kept is None or not self.has[index]:
            return True
        if self.like is None:
            return type(row) is type(self.kept[index]) and row == self.kept[index]
        return _native.same_bits(row.contiguous(), self.kept[index])


class SampleMemory:
    """Decides which samples of a loader's batches are loaded, and makes the batches.

    Owned by the training thread. All of this is on the user's word that an index names the same sample for ever;
    where that turns out to be wrong, everything is loaded from there on, and the log says so.

    Attributes:
      off: why nothing is left out any more, for people; None if something may be.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        in_worker: Callable[..., Any] | None = None,
        version: Any = None,
    ):
        """
        Args:
          dataset: with __getitem__ for 0..n-1; Variants, where there are any.
          in_worker: see in_worker_of(), for datasets that can only be read there; None: they are read here.
          version: see wrap().
        """
        self.off: str | None = None
        self.counts: collections.Counter[str] = collections.Counter()  # as egeria.data.stand_in.counts
        self._dataset = dataset
        self._collate = collate_fn
        self._in_worker = in_worker
        self.whole = not collates_by_sample(collate_fn)
        self._look = DatasetLook(dataset, version)
        self._changes = 0  # the dataset has become another one so often
        self._handed_out = 0  # batches that might have been left out
        self._outdated = False  # the store has what samples were, not what they are
        self._forget()

    def _forget(self) -> None:
        samples = len(self._dataset)
        self._structure: Any = None
        self._leaves: list[_Leaf] = []
        self._batches = 0  # with stand-ins
        self._hashes = np.zeros(samples, np.uint64)
        self._others = np.zeros(samples, np.uint64)
        self._context = np.zeros(samples, np.int32)  # 0: the hash is not known
        self._company = np.zeros(samples, np.int64)  # the batch in which the hash was found
        self._confirmed = np.zeros(samples, bool)  # it was the same in another batch
        self._batches_seen: set[int] = set()
        self._late = 0  # batches of which values were needed that were not loaded
        self._contexts: dict[bytes, int] = {}
        self._stamps = np.zeros(samples, np.int64)
        self._changed = 0  # so many samples have changed since the store was emptied
        self._files: dict[int, tuple[str, ...]] = {}  # a sample's that are opened for it, and not listed
        self._state = np.zeros(samples, np.int8)
        self._number = 0  # the Serving's that _state is about
        self._trusts_offers = True
        self._offers = [0, 0]  # samples that were offered: all that were left out, and those that were missing then
        self._paused = False  # the cache has nothing

    # This is handed out to workers: a Handing.

    def begin_pass(self) -> None:
        self._look_at_dataset()

    def _look_at_dataset(self) -> None:
        """Forgets all samples where the dataset has become another one."""
        if self._structure is None or (name := self._look.change()) is None:
            return
        self._changes += 1
        what = f"'{name}' of the dataset" if name else "the dataset"
        level = logging.WARNING if self._changes == _CHANGES else logging.INFO
        _logger.log(level, "egeria: %s has changed, so that all samples are loaded once more", what)
        self._forget()
        self._outdated = True

    def turn_off(self, why: str) -> None:
        """Loads everything from now on."""
        if self.off is None:
            self.off = why
            self._context = np.zeros_like(self._context)
            _logger.warning("egeria: all samples are loaded from here on, in spite of skip_loading: %s", why)

    def _count(self, what: str, samples: int) -> None:
        self.counts[what] += samples
        stand_in.counts[what] += samples

    def hand_out(self, drawn: Any, indices: tuple[Any, ...] | None) -> Any:
        """Returns what stands for the indices of a batch: themselves, or a Skip."""
        if self.off is not None or indices is None:
            return drawn
        if self._in_worker is None:  # workers have a copy, and get another one with the next pass
            self._look_at_dataset()
        now = serving()
        if now is None or len(indices) not in now.sizes or now.number != self._number or not self._are_ours(indices):
            return drawn
        if self._paused:
            return drawn
        known = [self._may_leave_out(index) for index in indices]
        self._handed_out += 1
        is_audited = _one_of(_AUDITED_BATCHES * (_AUDITED_SAMPLES if self.whole else 1), self._handed_out)
        if self.whole and (is_audited or not all(known) or not self._comes_out_the_same(indices)):
            return drawn
        audited = [
            ready and is_audited and _one_of(_AUDITED_SAMPLES, index, self._handed_out)
            for ready, index in zip(known, indices)
        ]
        load = tuple(i for i in range(len(indices)) if not known[i] or audited[i] and not self.whole)
        if len(load) == len(indices):
            return drawn
        self._count("left_out", len(indices) - len(load))
        self._count("audited", 0 if self.whole else sum(audited))
        stamps = tuple(int(self._stamps[index]) for index in indices)
        return Skip(indices, load, stamps, tuple(self._files.get(index, ()) for index in indices))

    def _are_ours(self, indices: Sequence[Any]) -> bool:
        return all(isinstance(index, int) and 0 <= index < len(self._state) for index in indices)

    def _may_leave_out(self, index: int) -> bool:
        state = self._state[index]
        return bool(
            (state == _SERVED or state == _OFFERED and self._trusts_offers)
            and self._context[index] > 0
            and all(leaf.kept is None or leaf.has[index] for leaf in self._leaves)
        )

    def _comes_out_the_same(self, indices: tuple[int, ...]) -> bool:
        """Whether the user's collate_fn has made the same of these samples in other batches, or has made this batch: it
        may sort them, or make something of all of them."""
        return hash(indices) in self._batches_seen or all(self._confirmed[index] for index in indices)

    # This comes back from them.

    def deliver(self, indices: tuple[Any, ...], batch: Any, part: Part) -> Any:
        """Returns the batch that the loop gets.

        Args:
          batch: of the samples that were loaded; anything where there are none.
        """
        if self._in_worker is None and part.positions:
            self._look.settle()
        if part.drew:
            self.turn_off(
                "the dataset, or the collate_fn, draws random numbers, so that a sample is another one each time; "
                "egeria.data.wrap(loader, skip_loading=True, variants=4) gives each sample four fixed ones"
            )
        whole = len(part.positions) == len(indices)
        now = serving()
        if whole and (self.off is not None or now is None or len(indices) not in now.sizes):
            return batch
        if now is not None and now.number != self._number:
            self._number = now.number
            self._state = np.zeros_like(self._state)
            self._paused = False
        if whole and not self._are_ours(indices):
            return batch
        source = SkippedBatch(self, indices)
        if part.positions:
            leaves = self._note(indices, part, batch)
            if leaves is None:
                if whole:
                    return batch
                part = Part((), (), (), False)  # all are loaded again, with those that were left out
            else:
                source.has(part.positions, leaves)
        self._batches += 1
        return source.batch()

    def _note(self, indices: Sequence[int], part: Part, batch: Any) -> list[Any] | None:
        """Keeps what is to be kept of loaded samples; returns the parts of their batch, None where it does not fit."""
        leaves, structure = _taken_apart(batch, len(part.positions))
        if leaves is None:
            self.turn_off("a batch has something in it that is neither a tensor nor a list with a part for each sample")
            return None
        if self._structure is None:
            self._structure = structure
            self._leaves = [_Leaf(leaf, len(self._state)) for leaf in leaves]
            small = [leaf.row_bytes for leaf in self._leaves if leaf.kept is not None]
            if len(small) == len(leaves) or sum(small) * len(self._state) > _MOST_KEPT:
                self.turn_off(
                    f"no tensor of a batch has {_SMALL} bytes a sample, or the others take more than "
                    f"{_MOST_KEPT >> 20} MiB"
                )
                return None
        if structure != self._structure or not all(map(_Leaf.fits, self._leaves, leaves)):
            self.turn_off("batches have different structures, types or shapes of samples, or strides")
            return None
        for row, position in enumerate(part.positions):
            index = indices[position]
            files = part.files[row] if part.files else ()
            is_other = self._stamps[index] not in (0, part.stamps[row]) and self._files.get(index, ()) == files
            if position in part.changed or is_other:
                self._count("changed", 1)
                self._note_changed()
                self._drop(index)
            self._stamps[index] = part.stamps[row]
            if files or index in self._files:
                self._files[index] = files
            if not all(leaf.same(index, value[row]) for leaf, value in zip(self._leaves, leaves)):
                self.differs(index)
                self._drop(index)
            self._keep(index, [value[row] for value in leaves])
        return leaves

    def _keep(self, index: int, rows: Sequence[Any]) -> None:
        for leaf, row in zip(self._leaves, rows):
            if leaf.kept is not None and not leaf.has[index]:
                leaf.kept[index] = row
                leaf.has[index] = True

    def _note_changed(self) -> None:
        """A sample has changed: the store holds what it was, which stands in the way of what it is."""
        self._changed += 1
        if self._changed * _FEW > len(self._state):
            self._changed, self._outdated = 0, True

    def _drop(self, index: int) -> None:
        """The sample is another one than before."""
        self._context[index] = 0
        self._state[index] = _UNKNOWN
        for leaf in self._leaves:
            leaf.has[index] = False

    def differs(self, index: int) -> None:
        """A sample has come as another one."""
        self._outdated = self._outdated or self.off is None
        self.turn_off(
            f"sample {index} has changed; leave skip_loading out, or let an index always name the same sample"
        )

    def was_outdated(self) -> bool:
        """Returns, once, whether a sample has come as another one, or the dataset has become another one."""
        was, self._outdated = self._outdated, False
        return was

    # A SkippedBatch needs these.

    def load(self, indices: Sequence[int]) -> list[Any]:
        """Loads samples in this process, and leaves the generators as they are. Returns the parts of their batch."""
        self._count("loaded_late", len(indices))
        before = generator_states()
        batch, part = self._load_here(list(indices))
        if not same_states(before, generator_states()):
            python, numpys, torchs = before
            random.setstate(python)
            np.random.set_state(numpys)
            torch.set_rng_state(torchs)
            self.turn_off(
                "the dataset, or the collate_fn, draws random numbers, so that a sample is another one each time"
            )
        self._look.settle()
        leaves = self._note(indices, part, batch)
        if leaves is None:
            leaves, _ = _taken_apart(batch, len(indices))
            if leaves is None or len(leaves) != len(self._leaves):
                raise RuntimeError("egeria: a batch has another structure than those before, and skip_loading is on")
        return leaves

    def _load_here(self, indices: list[int]) -> tuple[Any, Part]:
        """Makes a batch as a worker would, with one thread; in a worker where that is the only place for it."""
        positions, threads = tuple(range(len(indices))), torch.get_num_threads()
        try:
            if self._in_worker is not None:
                torch.set_num_threads(1)
            samples, stamps, files = read(self._dataset, indices)
            return self._collate(samples), Part(positions, stamps, (), False, files)
        except Exception as error:  # pylint: disable=broad-exception-caught  # whatever the user's dataset raises
            if self._in_worker is None:
                raise
            self.turn_off(f"samples can only be loaded by workers; here it is a {type(error).__name__}: {error}")
            stamps = tuple(stamp_of(self._dataset, index) for index in indices)
            return self._in_worker(self._dataset, self._collate, indices), Part(positions, stamps, (), False)
        finally:
            torch.set_num_threads(threads)

    def needed(self) -> None:
        """Values of a batch were needed that were not loaded."""
        self._late += 1
        if self._late >= _LATE and self._late * 4 > self._batches:
            self.turn_off("values of samples that were left out are needed all the same, in most batches")

    def touched(self, leaf: int, by: str) -> None:
        """The loop has used the values of a tensor of a batch."""
        if leaf >= len(self._leaves):  # the dataset is another one meanwhile
            return
        described = self._leaves[leaf]
        described.touches += 1
        if self.off is not None or described.touches < _TOUCHED or described.touches * 4 <= self._batches:
            return
        kept = sum(other.row_bytes for other in self._leaves if other.kept is not None) + described.row_bytes
        others = any(other.kept is None and other is not described for other in self._leaves)
        if not others or kept * len(self._state) > _MOST_KEPT:
            self.turn_off(f"values of part {leaf} of the batches are used besides the frozen layers, in '{by}'")
        elif described.kept is None:
            described.keep(len(self._state))

    def hashes(
        self,
        indices: tuple[int, ...],
        context: bytes,
        others: Sequence[int],
        computed: Callable[[list[int]], list[int]],
        loaded: set[int],
    ) -> list[int]:
        """Returns the input hashes of a batch's samples, as they were, or computed where that is not known, or where a
        sample has been loaded and can be compared."""
        number = self._contexts.setdefault(context, len(self._contexts) + 1)
        company = hash(indices)
        if len(loaded) == len(indices):
            self._batches_seen.add(company)
        is_known = [
            self._context[index] == number and int(self._others[index]) == other
            for index, other in zip(indices, others)
        ]
        wanted = [i for i in range(len(indices)) if i in loaded or not is_known[i]]
        found = {i: int(self._hashes[index]) for i, index in enumerate(indices)}
        for i, value in zip(wanted, computed(wanted) if wanted else ()):
            index = indices[i]
            if is_known[i] and found[i] != value:
                self.differs(index)
            found[i] = value
            if not is_known[i]:
                self._company[index], self._confirmed[index] = company, False
            elif self._company[index] != company:
                self._confirmed[index] = True
            if self.off is None:
                self._context[index], self._others[index], self._hashes[index] = number, others[i], value
        return [found[i] for i in range(len(indices))]

    def fetched(self, indices: Sequence[int], missing: set[int], loaded: set[int]) -> None:
        """The cache had the prefix outputs of these samples, but for those at `missing`."""
        left_out = len(indices) - len(loaded)
        in_vain = len(missing - loaded)
        self._offers[0] += left_out
        self._offers[1] += in_vain
        if self._offers[0] >= _IN_VAIN:
            self._trusts_offers = self._trusts_offers and self._offers[1] * 20 <= self._offers[0]
            self._offers = [0, 0]
        for i, index in enumerate(indices):
            if i not in missing:
                self._state[index] = _SERVED
            elif i not in loaded:
                self._state[index] = _MISSED
            elif self._state[index] != _MISSED:
                self._state[index] = _OFFERED
        if left_out > 0 and in_vain * 2 > left_out:
            self._paused = True
        elif not missing:
            self._paused = False

    def kept_rows(self, leaf: int, indices: Sequence[int]) -> Any:
        """Returns a batch's part that is kept; None where it is left out, or not complete."""
        described = self._leaves[leaf]
        if described.kept is None or not all(described.has[index] for index in indices):
            return None
        if described.like is None:
            return [described.kept[index] for index in indices]
        return described.kept[torch.tensor(list(indices))]

    def like(self, leaf: int, size: int) -> Tensor:
        row = self._leaves[leaf].like
        return torch.empty((size, *row.shape), dtype=row.dtype, device="meta")

    def is_left_out(self, leaf: int) -> bool:
        return self._leaves[leaf].kept is None

    def put_together(self, leaves: Sequence[Any]) -> Any:
        return pytree.tree_unflatten(list(leaves), self._structure)

    def __len__(self) -> int:
        return len(self._leaves)


def _taken_apart(batch: Any, size: int) -> tuple[list[Any] | None, Any]:
    """Returns a batch's parts, and how they are nested; None where one of them is not by sample."""

    def is_list(value: Any) -> bool:
        plain = (str, bytes, int, float, type(None))
        return type(value) is list and len(value) == size and all(isinstance(entry, plain) for entry in value)

    leaves, structure = pytree.tree_flatten(batch, is_leaf=is_list)
    by_sample = all(
        is_list(leaf) or type(leaf) is Tensor and leaf.dim() >= 1 and leaf.size(0) == size and leaf.device.type == "cpu"
        for leaf in leaves
    )
    return (leaves if by_sample and leaves else None), structure


def _one_of(number: int, *what: int) -> bool:
    """Returns True for one of so many numbers, which look drawn at random and are not."""
    return hash((*what, 0x5EED)) % number == 0
