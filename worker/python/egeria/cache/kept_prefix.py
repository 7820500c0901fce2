"""A KeptPrefix is a frozen prefix that has been proven, with the store of what it computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from egeria.cache.frozen_part import Part
from egeria.cache.model_call import Call
from egeria.cache.padded_lengths import cleared
from egeria.cache.prefix_cut import Cut
from egeria.cache.prefix_store import PrefixStore
from egeria.cache.proofs_by_shape import Proofs
from egeria.cache.proven import Proven
from egeria.cache.waiting_texts import WaitingTexts

# The ids in the store are remembered for so many samples.
_MOST_FOUND_AS = 1 << 20


@dataclasses.dataclass
class KeptSamples:
    """Holds how the samples of a batch are kept.

    Attributes:
      ids, hashes: for each.
      kept: of how many tokens; None: nothing is kept by tokens.
      by_token: which tensors are.
    """

    ids: list[int]
    hashes: list[int]
    kept: list[int] | None
    by_token: Sequence[bool]

    def put(self, store: PrefixStore, rows: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """Offers what crosses the cut for the samples in these rows."""
        if not rows:
            return
        ids, hashes = [self.ids[row] for row in rows], [self.hashes[row] for row in rows]
        if self.kept is None:
            store.put(ids, hashes, tensors)
        else:
            lengths = [[self.kept[row] for row in rows] if by_token else [] for by_token in self.by_token]
            store.put(ids, hashes, tensors, lengths)

    def without_padding(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Returns the tensors of the batch with zeros where nothing is kept."""
        if self.kept is None:
            return tensors
        return [cleared(tensor, self.kept) if by else tensor for tensor, by in zip(tensors, self.by_token)]


class KeptPrefix:
    """Keeps samples of one frozen prefix in a store, and finds them there.

    Owned by the training thread.

    Attributes:
      part: of the model.
      proofs: that it may be skipped.
      store: has what it computes.
      waiting: what it has computed in calls that are not proven yet.
    """

    def __init__(self, part: Part, proofs: Proofs, store: PrefixStore):
        self.waiting = WaitingTexts()
        self.part = part
        self.proofs = proofs
        self.store = store
        proofs.may_shorten = store.may_shorten
        self._found_as: dict[int, int] = {}  # samples that have other ids in the store, as they came last

    def through(self, store: PrefixStore) -> KeptPrefix:
        """Returns this prefix as it is read through another store of the same entries."""
        other = KeptPrefix(self.part, self.proofs, store)
        other._found_as.update(self._found_as)
        return other

    def samples(self, call: Call, proven: Proven, ids: list[int]) -> KeptSamples:
        """Returns how the samples of this call are kept. The store is told where rows may have different lengths."""
        kept = proven.kept(call)
        if kept is not None:
            self.store.shorten()
        return KeptSamples(*self._keys(call, proven, ids), kept, proven.by_token)

    def _keys(self, call: Call, proven: Proven, samples: list[int]) -> tuple[list[int], list[int]]:
        """Returns the ids by which what is kept of the samples is found, and their input hashes. Once a sample that was
        not to be loaded again has come as another one, or the dataset is another one, what is stored is dropped."""
        hashes, marks = proven.keys(call, Call.hashes)
        if call.source is not None and call.source.was_outdated():
            self.store.forget()
            hashes, marks = proven.keys(call, Call.hashes)
        if not any(marks):
            return samples, hashes
        ids = [_marked(sample, mark) for sample, mark in zip(samples, marks)]
        if len(self._found_as) < _MOST_FOUND_AS:
            self._found_as.update(zip(samples, ids))
        return ids, hashes

    def expect(self, upcoming: Sequence[Sequence[int]]) -> None:
        """Reads the samples of the batches to come ahead, as far as they are known."""
        if self._found_as:
            upcoming = [[self._found_as.get(sample, sample) for sample in batch] for batch in upcoming]
        self.store.expect(upcoming)

    def fetch(self, cut: Cut, asked: KeptSamples, patience: float) -> tuple[Sequence[Tensor], Sequence[str], bool]:
        """Asks the store for what crosses the cut.

        Returns:
          The tensors, in which the rows of misses hold anything; for each sample why it is a miss, "" for a hit; and
          whether the tensors are such as cross the cut.
        """
        if asked.kept is None:
            tensors, reasons = self.store.get(asked.ids, asked.hashes, patience)
        else:
            widths = [spec.shape[1] if len(spec.shape) > 1 else 0 for spec in cut.tensors]
            tensors, reasons = self.store.get(asked.ids, asked.hashes, patience, widths)
        if len(reasons) != len(asked.ids):
            raise RuntimeError(f"the store answers {len(reasons)} of {len(asked.ids)} samples")
        specs = cut.tensors
        fits = len(tensors) == len(specs) and all(spec.fits(tensor) for spec, tensor in zip(specs, tensors))
        return tensors, reasons, fits


def _marked(sample: int, mark: int) -> int:
    """Returns the id of a sample as it is with this mark: 64 bits, which differ for most others."""
    return ((sample + mark * 0x9E3779B97F4A7C15 + (1 << 63)) & (1 << 64) - 1) - (1 << 63)
