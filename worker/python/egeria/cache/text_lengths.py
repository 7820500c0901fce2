"""This file shows for which texts the length that they are padded to makes no difference, to the bit."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from torch import Tensor

from egeria.cache.model_call import Call
from egeria.cache.padded_lengths import Alike, find_by_token, numbers_computed
from egeria.cache.padding import Padding, Text
from egeria.cache.row_independence import Alone, Compute
from egeria.cache.text_references import Range, References, chosen_texts, digests_of, narrowed, ranges_of

# Kernels that treat the last numbers of a vector otherwise change few results: one in 10^4 or less. Texts are compared
# until so many numbers have been computed of them, in so many batches at most. Where that is too few, nothing is
# proven.
_ENOUGH_NUMBERS = 1 << 24
_MOST_TURNS = 64
# So many texts of a range are compared at least.
_FEWEST_TEXTS = 2
# One place of so many in a batch has a sample, and the others have texts.
_PLACES = 4


@dataclasses.dataclass
class Mixture:
    """Holds a batch of texts that are compared, some samples of a call being among them.

    Attributes:
      call: looks as the samples' does.
      length: that it is padded to.
      ranges: those of the texts.
      texts: by their places in the batch, and the ranges that they are of.
      samples: by their places, the rows of the samples in their own call, which are others.
    """

    call: Call
    length: int
    ranges: list[Range]
    texts: dict[int, tuple[Range, Text]]
    samples: dict[int, int]

    @functools.cached_property
    def padding(self) -> Padding:
        """It belongs to the call. TextLengths.mix() returns no batch without any."""
        padding = Padding.of(self.call)
        assert padding is not None
        return padding


class TextLengths:
    """Holds what is known of calls that differ in the length that texts are padded to. Owned by the training thread.

    Attributes:
      known: the lengths that are proven.
      told: it has been said that a length counts.
      passes_alone: so many passes of the first one came before there was another.
      alone: by a length that others are compared at, whether so many samples may be computed alone.
    """

    def __init__(self) -> None:
        self.known: list[int] = []
        self.told = False
        self.passes_alone = 0
        self.alone: dict[int, Alone] = collections.defaultdict(Alone)
        self._numbers = 0  # so many are computed for a token; 0: that is not known
        self._by_token: list[bool] | None = None
        self._references: References | None = None

    def mix(self, call: Call, padding: Padding, longest: float) -> Mixture | None:
        """Returns a batch by which calls like this one are compared with others, with some of its samples.

        Args:
          longest: texts may be padded to so many tokens.

        Returns:
          None where texts cannot be compared.
        """
        ranges = [one for one in ranges_of(padding.longest) if one.length <= longest]
        if not ranges:
            return None
        if self._references is None or self._references.size < call.batch:
            self._references = References(padding, call, call.batch)
            self.alone.clear()
        mixture = self._mixed(call, call.batch, padding.longest, ranges, turn=0)
        return mixture if mixture.call.conditions() == call.conditions() else None

    def by_token(self, mixture: Mixture, tensors: Sequence[Tensor], compute: Compute) -> list[bool]:
        """Returns which of the tensors, which `compute` gives for the mixture, have a row for each token."""
        if self._by_token is None or len(self._by_token) != len(tensors):
            self._by_token = find_by_token(mixture.padding, mixture.call, compute, tensors)
        rows = [tensor.size(1) if tensor.dim() > 1 else 0 for tensor in tensors]
        return [by and row == mixture.length for by, row in zip(self._by_token, rows)]

    def find_alike(
        self,
        mixture: Mixture,
        tensors: Sequence[Tensor],
        compute: Compute,
        by_token: Sequence[bool],
        may_take: Callable[[int], bool],
    ) -> list[Alike]:
        """Returns texts that have in calls like the mixture what they have at another length.

        Args:
          tensors: what `compute` gives for the mixture.
          by_token: which of them have a row for each token. Their rows for padding do not count.
          may_take: whether so many passes may be spent.
        """
        assert self._references is not None
        if self._numbers == 0:
            self._numbers = max(1, numbers_computed(mixture.padding, mixture.call, compute))
        comparison = _Comparison(self._references, compute, by_token)
        same = self._same(mixture, tensors, comparison, may_take)
        if same is None:
            return []
        failed = [one for one in mixture.ranges if one not in same]
        if left := [part for one in failed for part in narrowed(one, mixture.length)]:
            again = self._mixed(None, mixture.call.batch, mixture.length, left, turn=0)
            same += self._same(again, compute(again.call), comparison, may_take) or []
        return [Alike(*one, self._references.size) for one in same]

    def _same(
        self, mixture: Mixture, tensors: Sequence[Tensor], comparison: _Comparison, may_take: Callable[[int], bool]
    ) -> list[Range] | None:
        """Returns the ranges of which all texts that were compared are the same; None where too few can be compared."""
        same, computed, compared, turn = list(mixture.ranges), 0, collections.Counter[Range](), 0
        while same := [one for one in same if comparison.is_same(one, mixture, tensors)]:
            computed += self._numbers * sum(text.tokens for _, text in mixture.texts.values())
            compared.update(one for one, _ in mixture.texts.values())
            turns = _ENOUGH_NUMBERS * (turn + 1) / max(1, computed)
            if turns <= turn + 1 and min(compared[one] for one in same) >= _FEWEST_TEXTS:
                break
            if turns > _MOST_TURNS or turn == _MOST_TURNS or (turn == 0 and not may_take(2 * math.ceil(turns))):
                return None
            turn += 1
            mixture = self._mixed(None, mixture.call.batch, mixture.length, mixture.ranges, turn)
            tensors = comparison.compute(mixture.call)
        return same

    def _mixed(self, call: Call | None, batch: int, length: int, ranges: list[Range], turn: int) -> Mixture:
        """Makes a batch, with samples of the call if there is one."""
        references = self._references
        assert references is not None
        places = [] if call is None else range(min(_PLACES, batch) - 1, batch, _PLACES)
        samples = {place: (place + 1) % batch for place in places if batch > 1}
        texts = dict(
            zip(
                [place for place in range(batch) if place not in samples],
                chosen_texts(ranges, batch - len(samples), turn),
            )
        )
        made = references.texts([text for _, text in texts.values()], length)
        if call is not None and samples:
            both = call.rows(list(samples.values())).and_then(made)
            order = {place: row for row, place in enumerate([*samples, *texts])}
            made = both.rows([order[place] for place in range(batch)])
        return Mixture(made, length, ranges, texts, samples)


@dataclasses.dataclass
class _Comparison:
    """Compares texts with what they have at other lengths.

    Attributes:
      by_token: which of the tensors that `compute` gives have a row for each token.
    """

    references: References
    compute: Compute
    by_token: Sequence[bool]

    def is_same(self, one: Range, mixture: Mixture, tensors: Sequence[Tensor]) -> bool:
        """Returns whether all texts of a range are the same in a mixture, of which these tensors were computed."""
        texts = {place: text for place, (of, text) in mixture.texts.items() if of == one}
        mine = digests_of(tensors, texts, self.by_token)
        try:
            known = self.references.find(one, list(mine), mixture.call.conditions(), self.compute, self.by_token)
        except Exception:  # pylint: disable=broad-exception-caught  # it may be longer than the network takes
            return False
        return all(known.get(text) == digest for text, digest in mine.items())
