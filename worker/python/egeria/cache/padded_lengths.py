"""This file treats texts as the same where the length that they are padded to makes no difference."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from egeria.cache.model_call import Call
from egeria.cache.padding import Padding
from egeria.cache.row_independence import Compute


@dataclasses.dataclass(frozen=True)
class Alike:
    """Says that texts have what they have with other padding.

    Attributes:
      least, most: texts of so many tokens.
      length: the length that they may be padded to instead.
      size: the number of samples in such a batch.
      salt: as that of Proven (egeria.cache.proven), of these.
    """

    least: int
    most: int
    length: int
    size: int
    salt: bytes = b""


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


def rows_by_alike(alike: Sequence[Alike], lengths: Sequence[int], rows: Sequence[int]) -> dict[Alike | None, list[int]]:
    """Groups rows of a batch by what is said of texts like them; None: nothing is.

    Args:
      lengths: of how many tokens each sample of the batch consists.
    """
    groups: dict[Alike | None, list[int]] = {}
    for row in rows:
        group = next((one for one in alike if one.least <= lengths[row] <= one.most), None)
        groups.setdefault(group, []).append(row)
    return groups


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
    groups = rows_by_alike(alike, padding.lengths, range(call.batch))
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
