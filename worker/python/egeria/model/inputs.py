"""RootInputs keeps what a model was called with, for a probe."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

# Arguments that a recording may take for constants.
SIMPLE = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout, slice)


@dataclasses.dataclass
class _Leaf:
    """A value among the arguments, and whether its first dimension is the batch."""

    value: Any
    batched: bool


class GraphError(Exception):
    """Why a model or a layer module has no graph; the text is for people."""


class ShapeMismatch(Exception):
    """These inputs have other sizes than the exported graph."""


class RootInputs:
    """The arguments that the model was called with, cut to their first b samples.

    The tensors whose first dimension is the batch are cut, and so are lists with an entry for each sample; tensors of
    another first size (a table, a mask over positions) stay whole. Tensors and objects are copies, so that a training
    step may change its own in place, and a pass of ours the others.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], samples: int):
        named = _named(args, kwargs)
        self.batch = batch_of(args, kwargs)
        self.samples = min(samples, self.batch)
        self._lists = _lists_of_samples(named, self.batch)  # names of arguments
        self.leaves, self._structure = pytree.tree_flatten((tuple(args), dict(sorted(kwargs.items()))))
        self.batched = tuple(
            name not in self._lists and leaf.dim() >= 1 and leaf.size(0) == self.batch
            for name, value in (*enumerate(args), *sorted(kwargs.items()))
            for leaf in pytree.tree_leaves(value)
            if isinstance(leaf, Tensor)
        )
        self._cut()
        self.leaves = [_copied(leaf) for leaf in self.leaves]

    def narrowed(self, samples: int) -> RootInputs:
        """The same inputs with fewer samples."""
        other = copy.copy(self)
        other.samples = min(samples, self.samples)
        other._cut()
        return other

    def _cut(self) -> None:
        batched = iter(self.batched)
        entries = [_Leaf(leaf, isinstance(leaf, Tensor) and next(batched)) for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(entries, self._structure)
        named = {
            name: value[: self.samples] if name in self._lists else value
            for name, value in (*enumerate(args), *kwargs.items())
        }
        cut = tuple(named.pop(index) for index in range(len(args))), named
        entries, self._structure = pytree.tree_flatten(cut)
        self.batched = tuple(entry.batched for entry in entries if isinstance(entry.value, Tensor))
        self.leaves = [
            entry.value.detach().narrow(0, 0, self.samples) if entry.batched else entry.value for entry in entries
        ]

    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(tensor.shape) for tensor in self.tensors())

    def call(self, function: Callable[..., Any], tensors: Sequence[Tensor] | None = None) -> Any:
        """Calls `function` as the model was called, with other tensors where they are given."""
        leaves = self.leaves
        if tensors is not None:
            remaining = iter(tensors)
            leaves = [next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        return function(*args, **kwargs)

    def check_simple(self) -> None:
        """Raises GraphError for an argument that a recording would silently take for a constant."""
        for leaf in self.leaves:
            if not isinstance(leaf, (Tensor, *SIMPLE)):
                raise GraphError(
                    f"the model takes a {type(leaf).__name__}, which is not a tensor, a number, or a "
                    "list, tuple or dict of those"
                )

    def same_call(self, other: RootInputs) -> bool:
        """Whether everything but the contents and sizes of tensors is as in `other`."""
        return (
            self._structure == other._structure
            and len(self.leaves) == len(other.leaves)
            and all(_same_leaf(mine, theirs) for mine, theirs in zip(self.leaves, other.leaves))
        )


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.clone()
    if isinstance(leaf, SIMPLE):
        return leaf
    try:
        return copy.deepcopy(leaf)
    except Exception as error:  # pylint: disable=broad-exception-caught  # whatever an object's copying raises
        raise GraphError(f"the model takes a {type(leaf).__name__} that cannot be copied") from error


def _same_leaf(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, Tensor) or isinstance(theirs, Tensor):
        return (
            isinstance(mine, Tensor)
            and isinstance(theirs, Tensor)
            and mine.dtype == theirs.dtype
            and mine.dim() == theirs.dim()
        )
    return type(mine) is type(theirs) and bool(mine == theirs)


# The arguments of a call tell how many samples there are.


def batch_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The number of samples that a model is called with: as many as a list has entries that is known to have one for
    each (targets of a detection, texts of unlike lengths), else the first size that most arguments share.

    Raises:
      GraphError: no argument tells.
    """
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and args[0].dim() >= 1:
        return args[0].size(0)  # in every step of most trainings
    named = _named(args, kwargs)
    sizes = _sizes(named)
    if (listed := next((len(value) for value in named.values() if _is_by_sample(value)), None)) is not None:
        others = _sizes({name: value for name, value in named.items() if not isinstance(value, list)})
        if not others or listed in others:
            return listed
    if not sizes:
        raise GraphError("the model is called without a tensor that has a batch dimension")
    return max(sizes, key=lambda size: (sizes.count(size), -sizes.index(size)))


def _named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int | str, Any]:
    return {**dict(enumerate(args)), **kwargs}


def _sizes(value: Any) -> list[int]:
    """The first sizes of what is in a mapping; a list or tuple tells one, as it may be of layers (hidden states)."""
    if isinstance(value, Tensor):
        return [value.size(0)] if value.dim() >= 1 else []
    if isinstance(value, Mapping):
        return [size for entry in value.values() for size in _sizes(entry)]
    if isinstance(value, (list, tuple)):
        return next((found[:1] for entry in value if (found := _sizes(entry))), [])
    return [leaf.size(0) for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor) and leaf.dim() >= 1]


def _is_by_sample(value: Any) -> bool:
    """Whether this is a list with an entry for each sample, as far as its entries show."""
    if not isinstance(value, list) or not value:
        return False
    if all(isinstance(entry, Mapping) for entry in value):
        return bool(_sizes(value))
    return all(isinstance(entry, Tensor) for entry in value) and len({entry.shape[:1] for entry in value}) > 1


def _lists_of_samples(named: Mapping[int | str, Any], batch: int) -> set[int | str]:
    """The names of the arguments that are lists with an entry for each sample."""
    if not any(_is_by_sample(value) and len(value) == batch for value in named.values()):
        return set()
    return {name for name, value in named.items() if isinstance(value, list) and len(value) == batch}
