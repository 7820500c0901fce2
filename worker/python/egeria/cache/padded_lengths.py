"""This file shows for which texts the padded length makes no difference, to the bit."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from egeria import _native
from egeria.cache.model_call import Call
from egeria.cache.padding import Padding, Texts

# Kernels add up vectors of at most so many numbers, so that lengths between two multiples are mostly alike.
_STEP = 16
# Kernels that treat the last numbers of a vector otherwise change few results: one in 10^4 or less. Texts are compared
# until so many numbers have been computed of them, in so many batches at most. Where that is too few, nothing is
# proven.
_ENOUGH_NUMBERS = 1 << 24
_MOST_TURNS = 64

Compute = Callable[[Call], Sequence[Tensor]]


@dataclasses.dataclass(frozen=True)
class Alike:
    """Says that texts have what they have with other padding.

    Attributes:
      least, most: texts of so many tokens.
      length: the length that they may be padded to instead.
      size: the number of samples in such a batch.
      salt: as that of Proven (egeria.cache.proofs_by_shape), of these.
    """

    least: int
    most: int
    length: int
    size: int
    salt: bytes = b""


class LengthProof:
    """A proof, on one real batch and on texts made of it, that texts are the same at other lengths.

    Attributes:
      alike: texts of which it holds. They are compared at lengths that do not depend on the batch. Other texts have
        their own at each length.
    """

    def __init__(
        self,
        padding: Padding,
        call: Call,
        compute: Compute,
        whole: Sequence[Tensor],
        *,
        size: int,
        longest: float,
        by_token: Sequence[bool],
        numbers: int,
        may_take: Callable[[int], bool],
    ):
        """
        Args:
          compute: computes the tensors of a call.
          whole: what it computes of this one.
          size: the number of samples in the batches that are compared with; at least the call's.
          longest: texts are padded to no more.
          by_token: which of the tensors have a row for each token. Their rows for padding do not count.
          numbers: so many are computed for a token: see numbers_computed().
          may_take: whether so many passes may be spent.
        """
        self._padding = padding
        self._call = call
        self._compute = compute
        self._whole = whole
        self._size = size
        self._by_token = by_token
        self._numbers = max(1, numbers)
        self._may_take = may_take
        self.alike: list[Alike] = []
        step = max(_STEP, 1 << (padding.longest - 1).bit_length() >> 2)
        end = padding.longest // step * step + step - 1
        ranges: dict[int, tuple[int, int]] = {}  # least and most tokens, by the length to compare at
        for least in range((min(padding.lengths) - 1) // step * step + 1, padding.longest + 1, step):
            most = min(least + step - 1, padding.longest)
            length = min(end, least + 2 * step - 2)
            ranges[length] = min(least, *ranges.get(length, (least,))), most
        for length, (least, most) in ranges.items():
            # A last vector that is not full is often added up otherwise.
            tops = [top for top in (most, (most - 1) // step * step) if length <= longest and top >= least]
            if (top := next((top for top in tops if self._same_at(length, top)), None)) is not None:
                self.alike.append(Alike(least, top, length, size))

    def _same_at(self, length: int, top: int) -> bool:
        """Returns whether texts of up to `top` tokens are the same at this length. A function that fails there has no
        such result."""
        computed, turn = 0, 0
        with contextlib.suppress(Exception):  # it may be longer than the network takes
            while computed < _ENOUGH_NUMBERS:
                texts = self._padding.texts(self._call, top, turn)
                if not self._same_texts(texts, length):
                    return False
                turn += 1
                computed += sum(texts.lengths) * self._numbers
                turns = turn * _ENOUGH_NUMBERS / computed
                if turns > _MOST_TURNS or (turn == 1 < turns and not self._may_take(2 * int(turns))):
                    return False
            return True
        return False

    def _same_texts(self, texts: Texts, length: int) -> bool:
        batch = self._call.batch
        repeated = [place % batch for place in range(self._size)]
        other = self._padding.padded_to(texts.call, length)
        other = other if self._size == batch else other.rows(repeated)
        if not self._call.conditions() == texts.call.conditions() == other.conditions():
            return False
        here = self._compute(texts.call)
        known = [place for place, row in enumerate(texts.origins) if row >= 0]
        of = [texts.origins[place] for place in known]
        if known and not _native.same_rows([tensor[known] for tensor in here], self._whole, of):
            return False
        there = self._compute(other)
        here = self.without_padding(here, texts.lengths, length)
        there = self.without_padding(there, [texts.lengths[place] for place in repeated], self._padding.longest)
        return len(here) == len(there) and _native.same_rows(there, here, repeated)

    def without_padding(self, tensors: Sequence[Tensor], lengths: Sequence[int], width: int) -> list[Tensor]:
        """Returns them with zeros in the padding, and no wider than that."""
        return [
            cleared(tensor[:, :width], lengths) if by_token else tensor
            for tensor, by_token in zip(tensors, self._by_token)
        ]


def cleared(tensor: Tensor, lengths: Sequence[int], value: float = 0) -> Tensor:
    """Returns a copy of b x tokens x ..., in which `value` stands behind so many tokens of each sample."""
    places = torch.arange(tensor.size(1), device=tensor.device)
    behind = places >= torch.tensor(lengths, device=tensor.device)[:, None]
    return tensor.masked_fill(behind.reshape(*behind.shape, *[1] * (tensor.dim() - 2)), value)


class _Counter(TorchDispatchMode):
    """Counts the floating-point numbers that operators compute."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and not leaf._is_view():
                self.numbers += leaf.numel()
        return value


def numbers_computed(padding: Padding, call: Call, compute: Compute) -> int:
    """Returns how many numbers are computed for each token of a call."""
    counter = _Counter()

    class Counted(Call):
        def run(self, function: Callable[..., Any]) -> Any:
            with counter:
                return super().run(function)

    counted = copy.copy(call)
    counted.__class__ = Counted
    compute(counted)
    return counter.numbers // (call.batch * padding.longest)


def as_wide_as(tensor: Tensor, rows: Tensor) -> Tensor:
    """Returns a copy of `rows` with as many tokens as `tensor` has, and zeros behind what they have."""
    if rows.shape[1:] == tensor.shape[1:]:
        return rows.clone()
    made = rows.new_zeros(len(rows), *tensor.shape[1:])
    width = min(rows.size(1), tensor.size(1))
    made[:, :width] = rows[:, :width]
    return made


def padding_counts(
    tensors: Sequence[Tensor], padding: Padding, by_token: Sequence[bool], ignores: Callable[[Sequence[Tensor]], bool]
) -> bool:
    """Returns whether it makes a difference what stands in the padding of these tensors: zeros, and large numbers.

    Args:
      ignores: whether other tensors make none.
    """
    random = torch.Generator().manual_seed(padding.longest)
    zeros, noise = list(tensors), list(tensors)
    for number, tensor in enumerate(tensors):
        if by_token[number]:
            if not tensor.is_floating_point():
                return True
            zeros[number] = cleared(tensor, padding.lengths)
            large = 4 * tensor.abs().max() * torch.randn(tensor.shape, generator=random).to(tensor)
            behind = cleared(torch.zeros_like(tensor), padding.lengths, 1).bool()
            noise[number] = torch.where(behind, large, tensor)
    return not (ignores(zeros) and ignores(noise))


def find_by_token(padding: Padding, call: Call, compute: Compute, whole: Sequence[Tensor]) -> list[bool]:
    """Returns which of the tensors have a row for each token: their second dimension follows the length."""
    if not any(tensor.dim() > 1 and tensor.size(1) == padding.longest for tensor in whole):
        return [False] * len(whole)
    shorter = compute(padding.padded_to(call, padding.longest - 1))
    return [tensor.dim() > 1 and tensor.size(1) > other.size(1) for tensor, other in zip(whole, shorter)]


def row_keys(
    padding: Padding, call: Call, alike: Sequence[Alike], salt: bytes, keys_of: Callable[[Call, bytes], list[Any]]
) -> tuple[list[Any], list[int]]:
    """Returns a key for each sample, over what it is without its padding where that makes no difference; and the length
    that it counts as, 0 where that is its own.

    Args:
      alike: texts of which it makes none.
      salt: for the others.
      keys_of: makes keys of the samples of a call, with a salt.
    """
    groups: dict[Alike | None, list[int]] = {}
    for row, length in enumerate(padding.lengths):
        group = next((one for one in alike if one.least <= length <= one.most), None)
        groups.setdefault(group, []).append(row)
    keys: list[Any] = [None] * call.batch
    lengths = [0] * call.batch
    for group, rows in groups.items():
        part = call if len(rows) == call.batch else call.rows(rows)
        if group is None:
            found = keys_of(part, salt)
        else:
            found = keys_of(padding.padded_to(part, group.length), group.salt)
        for row, key in zip(rows, found):
            keys[row] = key
            lengths[row] = 0 if group is None else group.length
    return keys, lengths
