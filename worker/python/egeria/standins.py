"""Other forward functions for some submodules of a model, for one forward pass."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from egeria.inputs import SIMPLE
from egeria.tensor_layout import strides_like


class NotATensor(Exception):
    """What a submodule returns cannot be kept; the text is for people."""


class Tap:
    """Stands where a submodule's forward method would be looked up.

    Once released it does what the submodule does, even where somebody has kept a reference to it. Copies of the
    submodule, by deepcopy or pickle, get the submodule's own forward.
    """

    def __init__(self, module: nn.Module, function: Callable[..., Any]):
        self.module = module
        self.own = module.__dict__.get("forward")  # set on the instance by somebody else
        self.original = module.forward
        self.function: Callable[..., Any] | None = function
        module.__dict__["forward"] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            return self.original(*args, **kwargs)
        return self.function(self.original, *args, **kwargs)

    def release(self) -> None:
        self.function = None
        if self.module.__dict__.get("forward") is not self:
            return
        del self.module.__dict__["forward"]
        if self.own is not None:
            self.module.__dict__["forward"] = self.own

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self.own is not None:
            return copy.deepcopy(self.own, memo)
        copied = copy.deepcopy(self.module, memo)  # mostly the copy that is being made
        return types.MethodType(type(copied).forward, copied)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.module, "forward")  # of the copy, when it has no __dict__ yet: the class's method


class Taps:
    """The forward functions that are replaced now. A context, which gives all back at its end."""

    def __init__(self) -> None:
        self._taps: list[Tap] = []

    def replace(self, module: nn.Module, function: Callable[..., Any]) -> None:
        """Calls of the submodule become function(its own forward, *args, **kwargs)."""
        self._taps.append(Tap(module, function))

    @property
    def added(self) -> int:
        """How many submodules have a `forward` of their own for that, and had none."""
        return sum(tap.own is None for tap in self._taps)

    def release(self) -> None:
        for tap in reversed(self._taps):
            tap.release()
        self._taps.clear()

    def __bool__(self) -> bool:
        return bool(self._taps)

    def __enter__(self) -> Taps:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Everything about a tensor but its contents."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        return cls(tuple(tensor.shape), strides_like(tensor.shape, tensor), tensor.dtype, tensor.device)

    def fits(self, tensor: Tensor) -> bool:
        """Whether `tensor` may stand for this one, wherever and however it lies."""
        return tensor.dtype == self.dtype and tuple(tensor.shape) == self.shape

    def placed(self, tensor: Tensor) -> Tensor:
        """One that fits, on this one's device and with its strides; itself where it is so already."""
        if tensor.device == self.device and tensor.stride() == self.strides:
            return tensor
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device).copy_(tensor)

    def stand_in(self, dense: bool) -> Tensor:
        """Not a number everywhere, so that whoever uses it shows; zeros where a type has no such value.

        Args:
          dense: in memory of its own, which may be written to; else one element stands for all.
        """
        value = float("nan") if self.dtype.is_floating_point or self.dtype.is_complex else 0
        if not dense:
            return torch.full((), value, dtype=self.dtype, device=self.device).expand(self.shape)
        tensor = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)
        return tensor.fill_(value)


class Output:
    """What a submodule returns: tensors, constants, and how they are nested."""

    def __init__(self, value: Any):
        """
        Raises:
          NotATensor: there is something else in it.
        """
        leaves, self._structure = pytree.tree_flatten(value)
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                if type(leaf) is not Tensor or leaf.layout is not torch.strided or leaf.is_quantized:
                    raise NotATensor(f"returns a {type(leaf).__name__} of layout {leaf.layout}")
            elif not isinstance(leaf, SIMPLE):
                raise NotATensor(f"returns a {type(leaf).__name__}")
        self._leaves = [TensorSpec.of(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    @property
    def tensors(self) -> list[TensorSpec]:
        return [leaf for leaf in self._leaves if isinstance(leaf, TensorSpec)]

    def build(self, tensors: Sequence[Tensor]) -> Any:
        """The value with these tensors in it."""
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(leaf, TensorSpec) else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._structure)

    def stand_in(self, dense: bool) -> Any:
        return self.build([spec.stand_in(dense) for spec in self.tensors])


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a value that an Output describes."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
