"""This file has the texts that padded lengths are compared by, and what they have at the lengths to compare with."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from egeria import _native
from egeria.cache.model_call import Call
from egeria.cache.padding import Padding, Text
from egeria.cache.row_independence import Compute

# Kernels add up vectors of at most so many numbers, so that lengths between two multiples are mostly alike. A processor
# with 256 bits has vectors of half as many.
_STEP = 16
_SHORT_STEP = 8


class Range(NamedTuple):
    """Names the texts of `least` to `most` tokens, which are compared with themselves as they are at `length`."""

    least: int
    most: int
    length: int


def ranges_of(longest: int) -> list[Range]:
    """Returns the ranges of the texts of a call that is padded to this length. They do not depend on its samples, so
    that ranks share what is kept."""
    step = _step_of(longest)
    end = longest // step * step + step - 1
    ranges: dict[int, Range] = {}
    for begin in range(1, longest + 1, step):
        length = min(end, begin + 2 * step - 2)
        least = ranges[length].least if length in ranges else begin
        ranges[length] = Range(least, min(begin + step - 1, longest), length)
    return list(ranges.values())


def narrowed(one: Range, longest: int) -> list[Range]:
    """Returns what is left to be compared of a range that is not the same: without the texts that end in a last vector
    which is not full, and which is often added up otherwise; and these at the next length, if it is another one."""
    step = _step_of(longest)
    full = (one.most - 1) // step * step
    end = longest // _SHORT_STEP * _SHORT_STEP + _SHORT_STEP - 1
    parts = []
    if full >= one.least:
        parts.append(one._replace(most=full))
    if one.most <= end < one.length:
        parts.append(Range(max(one.least, full + 1), one.most, end))
    return parts


def chosen_texts(ranges: Sequence[Range], count: int, turn: int) -> list[tuple[Range, Text]]:
    """Returns so many texts, which are others in each turn. Every other one is of the last range, and in each range the
    longest come first: they are the ones that most probably differ."""
    chosen = []
    *others, last = ranges
    for number in range(turn * count, (turn + 1) * count):
        half = number // 2
        if not others:
            one, position = last, number
        elif number % 2 == 0:
            one, position = last, half
        else:
            one, position = others[-1 - half % len(others)], half // len(others)
        again, place = divmod(position, one.most - one.least + 1)
        chosen.append((one, Text(one.most - place, again)))
    return chosen


class References:
    """Keeps what texts have at the lengths to compare with. Owned by the training thread.

    The texts are made of the samples of one call, and computed in batches of one size.
    """

    def __init__(self, padding: Padding, call: Call, size: int):
        """
        Args:
          padding: of the call.
          size: the number of samples in the batches.
        """
        self.size = size
        self._padding = padding
        self._call = call.copied()
        # By the length, and what batches of that length were asked (Call.conditions()).
        self._digests: dict[Any, dict[Text, bytes]] = {}

    def texts(self, texts: Sequence[Text], length: int) -> Call:
        """Returns a call of these texts, padded to this length."""
        return self._padding.texts(self._call, texts, length)

    def find(
        self, one: Range, wanted: Sequence[Text], conditions: Any, compute: Compute, by_token: Sequence[bool]
    ) -> Mapping[Text, bytes]:
        """Returns digests of what texts of a range have. Those that are missing are computed, and others with them that
        may be asked for later; none where a batch of theirs answers something else than these conditions.

        Args:
          by_token: which of the computed tensors have a row for each token.

        Raises:
          Exception: what the network raises: it may not take texts of such a length.
        """
        known = self._digests.setdefault((one.length, conditions), {})
        missing = [text for text in dict.fromkeys(wanted) if text not in known]
        while missing:
            batch, missing = missing[: self.size], missing[self.size :]
            more = (Text(tokens, batch[-1].turn) for tokens in range(one.length, one.least - 1, -1))
            unknown = (text for text in more if text not in known and text not in batch)
            batch += itertools.islice(unknown, self.size - len(batch))
            # A batch of the longest texts alone has no padding, and networks ask for that.
            some = [*batch, Text(one.least, batch[-1].turn)]
            filled = [some[place % len(some)] for place in range(self.size)]
            call = self.texts(filled, one.length)
            if call.conditions() != conditions:
                return {}
            known.update(digests_of(compute(call), dict(enumerate(batch)), by_token))
        return known


def digests_of(tensors: Sequence[Tensor], texts: Mapping[int, Text], by_token: Sequence[bool]) -> dict[Text, bytes]:
    """Returns digests of what texts have in the rows of these tensors, without that of their padding."""
    host = [tensor.detach().cpu() for tensor in tensors]

    def rows(place: int, tokens: int) -> list[Tensor]:
        of_text = [tensor[place] for tensor in host]
        cut = [row[:tokens] if by else row for row, by in zip(of_text, by_token, strict=True)]
        return [row.contiguous() for row in cut]

    return {text: _native.fingerprint("", rows(place, text.tokens)) for place, text in texts.items()}


def _step_of(longest: int) -> int:
    return max(_STEP, 1 << (longest - 1).bit_length() >> 2)
