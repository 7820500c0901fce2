"""This file follows, operator by operator, which values a forward pass computes from which others."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from egeria.cache.refused import Refused
from egeria.model.operators import tensors_among, written_by

# These operators look at a tensor's shape and type only.
_SHAPE_ONLY = {
    f"aten::{name}"
    for name in """
    empty_like zeros_like ones_like full_like rand_like randn_like randint_like
    new_empty new_zeros new_ones new_full new_empty_strided sym_size sym_stride sym_numel
    """.split()
}
_COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor")
_SHAPE_FROM_DATA = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


@dataclasses.dataclass(frozen=True)
class Decision:
    """A decision is something in Python, or the shape of a tensor, that came from what tensors hold.

    Attributes:
      marks: those tensors' marks.
      yes_or_no: whether it is a bool.
      position: how many marked parts had been left by then, the one that it happens in included.
      in_part: it happens in one.
    """

    marks: frozenset[int]
    yes_or_no: bool
    position: int
    in_part: bool


class Dataflow(TorchDispatchMode):
    """Marks memory, and carries the marks on to all that is computed from it. In doubt a mark is carried on.

    Attributes:
      decisions: those made on marked tensors, and in marked parts on any.
      entered: the marks of what was used in marked parts.
      last_use: where each mark was met last: n in the marked part number n, n + 1 between that and the next one.
      enabled: False: only collectives are looked for.
    """

    def __init__(self, enabled: bool = True) -> None:
        super().__init__()
        self.decisions: list[Decision] = []
        self.entered: set[int] = set()
        self.last_use: dict[int, int] = {}
        self.enabled = enabled
        self._part: int | None = None
        self._position = 0
        # The key is the address of the memory's owner, which nobody else gets as long as it is referred to weakly.
        self._marks: dict[int, tuple[StorageWeakRef, frozenset[int]]] = {}

    @contextlib.contextmanager
    def part(self, mark: int) -> Iterator[None]:
        """A context in which all that is made has this mark, and nothing is carried on."""
        outer, self._part = self._part, mark
        self._position += 1
        try:
            yield
        finally:
            self._part = outer

    def mark(self, tensors: Iterable[Tensor], marks: Iterable[int]) -> None:
        """These tensors now have exactly these marks."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._marks[storage._cdata] = StorageWeakRef(storage), frozenset(marks)

    def mark_too(self, tensor: Tensor, marks: Iterable[int]) -> None:
        """This tensor has these marks as well."""
        if tensor.layout is torch.strided:
            self.mark([tensor], self.marks([tensor]).union(marks))

    def marks(self, tensors: Iterable[Tensor]) -> frozenset[int]:
        found: frozenset[int] = frozenset()
        for tensor in tensors:
            if tensor.layout is torch.strided:
                found |= self._marks.get(tensor.untyped_storage()._cdata, (None, frozenset()))[1]
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in _COLLECTIVES:
            # The other ranks do not run this pass.
            raise Refused("COLLECTIVE", f"{func}: the layers talk to other ranks in the forward pass")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.enabled and func._schema.name not in _SHAPE_ONLY:
            used = tensors_among((args, kwargs))
            self._follow(_takes_shape_from_data(func, args), used, result)
            self._follow_writes(used, written_by(func, args, kwargs))
        return result

    def _follow(self, takes_shape: bool, used: list[Tensor], result: Any) -> None:
        marks, made = self.marks(used), tensors_among(result)
        self.last_use.update(dict.fromkeys(marks, self._position - (self._part is not None)))
        if used and (takes_shape or not made) and result is not None and (marks or self._part is not None):
            self.decisions.append(Decision(marks, isinstance(result, bool), self._position, self._part is not None))
        if self._part is not None:
            self.entered |= marks
            before = {tensor.untyped_storage()._cdata for tensor in used if tensor.layout is torch.strided}
            self.mark(
                [
                    tensor
                    for tensor in made
                    if tensor.layout is torch.strided and tensor.untyped_storage()._cdata not in before
                ],
                [self._part],
            )
        elif marks:
            for tensor in made:
                self.mark_too(tensor, marks)

    def _follow_writes(self, used: list[Tensor], written: list[Tensor]) -> None:
        """Marks what an operator writes to: mostly it is among its results, but not always."""
        if self._part is None and written and (marks := self.marks(used)):
            for tensor in written:
                self.mark_too(tensor, marks)


def _takes_shape_from_data(func: Any, args: Any) -> bool:
    if func._schema.name == "aten::index":  # a mask decides how many elements there are, positions do not
        return any(index.dtype in (torch.bool, torch.uint8) for index in tensors_among(args[1]))
    return _has_shape_from_data(func)


@functools.cache
def _has_shape_from_data(func: Any) -> bool:
    return any(tag in func.tags for tag in _SHAPE_FROM_DATA)


def tensors_in(value: Any) -> list[Tensor]:
    """Returns the tensors in a nested value."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
