"""Which values a forward pass computes from which others, operator by operator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

# They look at a tensor's shape and type only.
_SHAPE_ONLY = {
    "aten::empty_like", "aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::rand_like",
    "aten::randn_like", "aten::randint_like", "aten::new_empty", "aten::new_zeros", "aten::new_ones",
    "aten::new_full", "aten::new_empty_strided", "aten::sym_size", "aten::sym_stride", "aten::sym_numel",
}
_COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor")
_SHAPE_FROM_DATA = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


class Collective(Exception):
    """The forward pass was about to talk to other ranks, which do not run it now."""


class Dataflow(TorchDispatchMode):
    """Marks memory, and carries the marks on to all that is computed from it. In doubt a mark is carried on.

    Attributes:
      decided: marks of values that became Python numbers or the shapes of others, so that anything may depend on
        them.
      paused: nothing is carried on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.decided: set[int] = set()
        self.paused = False
        # By address of the memory's owner, which is not given to another as long as it is referred to weakly.
        self._marks: dict[int, tuple[StorageWeakRef, frozenset[int]]] = {}

    def mark(self, tensors: Iterable[Tensor], marks: Iterable[int]) -> None:
        """These tensors now have exactly these marks."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._marks[storage._cdata] = StorageWeakRef(storage), frozenset(marks)

    def marks(self, tensors: Iterable[Tensor]) -> frozenset[int]:
        found: frozenset[int] = frozenset()
        for tensor in tensors:
            if tensor.layout is torch.strided:
                found |= self._marks.get(tensor.untyped_storage()._cdata, (None, frozenset()))[1]
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in _COLLECTIVES:
            raise Collective(f"{func}: the layers talk to other ranks in the forward pass")
        result = func(*args, **(kwargs or {}))
        if self.paused or func._schema.name in _SHAPE_ONLY:
            return result
        used = _tensors(args, kwargs)
        marks = self.marks(used)
        if not marks:
            return result
        made = _tensors(result, None)
        if not made or any(tag in func.tags for tag in _SHAPE_FROM_DATA):
            self.decided |= marks
        # What an operator writes to is mostly among its results; where it is not, it keeps the marks too.
        written = [value for argument, value in zip(func._schema.arguments, args)
                   if argument.alias_info is not None and argument.alias_info.is_write]
        for tensor in (*made, *_tensors(written, None)):
            self.mark([tensor], marks | self.marks([tensor]))
        return result


def _tensors(args: Any, kwargs: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
