"""RootInputs keeps what a model was called with, for a probe."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

# Arguments that a recording may take for constants.
SIMPLE = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout, slice)


class GraphError(Exception):
    """Why a model or a layer module has no graph; the text is for people."""


class ShapeMismatch(Exception):
    """These inputs have other sizes than the exported graph."""


class RootInputs:
    """The arguments that the model was called with, cut to their first b samples.

    The tensors whose first dimension is the batch are cut; those of another first size (a table, a mask over
    positions) stay whole. Tensors and objects are copies, so that a training step may change its own in place, and a
    pass of ours the others.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], samples: int):
        leaves, self._structure = pytree.tree_flatten((tuple(args), dict(sorted(kwargs.items()))))
        self.batch = batch_of(leaves)
        self.samples = min(samples, self.batch)
        self.batched = tuple(
            leaf.dim() >= 1 and leaf.size(0) == self.batch for leaf in leaves if isinstance(leaf, Tensor)
        )
        self.leaves = leaves
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
        self.leaves = [
            leaf.detach().narrow(0, 0, self.samples) if isinstance(leaf, Tensor) and next(batched) else leaf
            for leaf in self.leaves
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


def batch_of(leaves: Iterable[Any]) -> int:
    """The first size that most tensors share; of the first tensor where none is more common."""
    sizes = [leaf.size(0) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() >= 1]
    if not sizes:
        raise GraphError("the model is called without a tensor that has a batch dimension")
    return max(sizes, key=lambda size: (sizes.count(size), -sizes.index(size)))
