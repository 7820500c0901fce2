"""A KeptOutput describes what a call returns: which tensors are kept for each sample, and how all is nested."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from egeria.cache.model_call import Call
from egeria.cache.refused import Refused
from egeria.cache.stand_in_outputs import TensorSpec
from egeria.model.inputs import SIMPLE


@dataclasses.dataclass(frozen=True)
class _Kept:
    """Stands for the tensor of this number."""

    number: int


@dataclasses.dataclass(frozen=True)
class _Argument:
    """Stands for what the call was given in this place."""

    number: int


class KeptOutput:
    """Describes a value with rows for samples. Constants, and arguments that are returned as they came, are part of the
    description. A tensor that stands in several places is kept once.

    Attributes:
      specs: of the tensors that are kept, b x ...; with the very strides, gaps included.
    """

    def __init__(self, value: Any, call: Call):
        """
        Raises:
          Refused: [NOT_A_TENSOR] there is something in it that is neither a plain tensor nor a number or text;
            [BATCH_NOT_FIRST] a tensor has no row for each sample.
        """
        self.specs: list[TensorSpec] = []
        self._leaves, self._structure, kept = _read(value, call)
        for tensor in kept:
            if tensor.dim() == 0 or tensor.size(0) != call.batch:
                raise Refused(
                    "BATCH_NOT_FIRST",
                    f"a tensor of shape {tuple(tensor.shape)} among the results has no row for each of the "
                    f"{call.batch} samples; let keep= pick tensors that have",
                )
            self.specs.append(TensorSpec(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device))
        if not kept:
            raise Refused("NOT_A_TENSOR", "there is no tensor among the results")

    def tensors_of(self, value: Any, call: Call) -> list[Tensor]:
        """Takes the tensors out of a value that looks like the one described.

        Raises:
          Refused: [OUTPUT_DIFFERS] it looks otherwise.
        """
        leaves, structure, kept = _read(value, call)
        if leaves != self._leaves or structure != self._structure:
            raise Refused("OUTPUT_DIFFERS", "results that belong to no sample are not always the same")
        return kept

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Returns whether these may be the rows of a call with as many samples."""
        return len(tensors) == len(self.specs) and all(map(TensorSpec.fits, self.specs, tensors))

    def looks_like(self, tensors: Sequence[Tensor]) -> bool:
        """Returns whether these lie where and how those described do."""
        return self.fits(tensors) and all(
            tensor.stride() == spec.strides and tensor.device == spec.device
            for tensor, spec in zip(tensors, self.specs)
        )

    def build(self, tensors: Sequence[Tensor], call: Call, inference: bool) -> Any:
        """Returns the value of this call with these tensors in it.

        Args:
          inference: they become inference tensors, as what is computed under inference_mode() is.
        """
        with torch.inference_mode(inference):
            placed = [
                _copied(spec, tensor) if inference else spec.placed(tensor) for spec, tensor in zip(self.specs, tensors)
            ]
        leaves = [
            placed[leaf.number]
            if isinstance(leaf, _Kept)
            else call.argument(leaf.number)
            if isinstance(leaf, _Argument)
            else leaf
            for leaf in self._leaves
        ]
        return _build(iter(leaves), self._structure)


def _copied(spec: TensorSpec, tensor: Tensor) -> Tensor:
    return torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device=spec.device).copy_(tensor)


@dataclasses.dataclass
class _Object:
    """A data class that pytree does not know: an empty copy, its fields' names, and how what is in them is nested."""

    shell: Any
    names: tuple[str, ...]
    inner: Any

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Object)
            and type(self.shell) is type(other.shell)
            and (self.names, self.inner) == (other.names, other.inner)
        )


def _read(value: Any, call: Call) -> tuple[list[Any], Any, list[Tensor]]:
    """Returns the leaves, how they are nested, and the tensors that are kept.

    Raises:
      Refused: [NOT_A_TENSOR].
    """
    kept: list[Tensor] = []
    found, structure = _take_apart(value)
    leaves: list[Any] = []
    for leaf in found:
        if not isinstance(leaf, Tensor):
            leaves.append(leaf)
        elif (number := call.argument_of(leaf)) is not None:
            leaves.append(_Argument(number))
        else:
            _check(leaf)
            number = next((number for number, tensor in enumerate(kept) if tensor is leaf), len(kept))
            if number == len(kept):
                kept.append(leaf)
            leaves.append(_Kept(number))
    return leaves, structure, kept


def _take_apart(value: Any) -> tuple[list[Any], Any]:
    leaves, structure = pytree.tree_flatten(value)
    found: list[Any] = []
    objects: list[_Object | None] = []
    for leaf in leaves:
        if leaf is None or isinstance(leaf, (Tensor, *SIMPLE)):
            found.append(leaf)
            objects.append(None)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            names = tuple(field.name for field in dataclasses.fields(leaf))
            inner, inner_structure = _take_apart([getattr(leaf, name) for name in names])
            shell = copy.copy(leaf)
            for name in names:
                object.__setattr__(shell, name, None)
            found += inner
            objects.append(_Object(shell, names, inner_structure))
        else:
            raise Refused(
                "NOT_A_TENSOR", f"there is a {type(leaf).__name__} among the results; let keep= pick tensors of it"
            )
    return found, (structure, objects)


def _build(leaves: Iterator[Any], structure: Any) -> Any:
    outer, objects = structure
    values = []
    for entry in objects:
        if entry is None:
            values.append(next(leaves))
            continue
        value = copy.copy(entry.shell)
        for name, part in zip(entry.names, _build(leaves, entry.inner)):
            object.__setattr__(value, name, part)
        values.append(value)
    return pytree.tree_unflatten(values, outer)


def _check(tensor: Tensor) -> None:
    if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_quantized:
        raise Refused("NOT_A_TENSOR", f"there is a {type(tensor).__name__} of layout {tensor.layout} among the results")
    extent = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride < extent:
            raise Refused("NOT_A_TENSOR", "there is a tensor among the results whose elements share memory; clone it")
        extent = stride * (size - 1) + extent
