"""A StandIn is a tensor of a batch, some of whose samples nobody has loaded.

Shape, type, strides and device are the real tensor's. It may be moved to a device, pinned and widened. Whoever does
anything else with it gets the real tensor, whose samples are loaded then; nobody ever sees other values.

This file also knows which sizes of batches are served by the cache at the moment: only then are there stand-ins.
"""

from __future__ import annotations

import collections
import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from egeria import _native


class Source(Protocol):
    """Has the samples of a batch, and loads those that it has not got.

    Attributes:
      indices: the samples'.
    """

    indices: tuple[int, ...]

    def was_outdated(self) -> bool:
        """Returns, once, whether what is stored of these samples is to be dropped, since they are others now."""

    def hashes(self, context: bytes, others: Sequence[int], computed: Callable[[list[int]], list[int]]) -> list[int]:
        """Returns the input hashes of the samples in calls of the model with this `context`; `computed` gives those
        at some positions, whose samples it loads.

        Args:
          others: hashes of what belongs to the samples and is not of this batch.
        """

    def fetched(self, missing: Sequence[int]) -> bool:
        """The cache has what the frozen layers compute for all samples but these, which are loaded. Returns whether
        one was loaded now."""

    def values(self, leaf: int) -> Tensor:
        """Returns the batch's tensor of this number, which it loads."""

    def rows(self, leaf: int, positions: Sequence[int]) -> Tensor:
        """Returns rows of it, and loads no others."""

    def is_whole(self) -> bool:
        """Returns whether all samples are loaded."""

    def touched(self, leaf: int, by: str) -> None:
        """The training needs the values of this tensor, for the function `by`."""


def _getters(*names: str) -> set[Any]:
    return {getattr(Tensor, name).__get__ for name in names if hasattr(Tensor, name)}


# These tell what a tensor is like, not what is in it.
_ABOUT = _getters(
    *(
        "shape",
        "dtype",
        "device",
        "layout",
        "ndim",
        "itemsize",
        "nbytes",
        "requires_grad",
        "is_leaf",
        "grad",
        "grad_fn",
    ),
    *("is_cuda", "is_cpu", "is_meta", "is_sparse", "is_sparse_csr", "is_quantized", "is_nested", "is_mkldnn", "is_xpu"),
    *("is_mps", "names", "_version", "output_nr", "_backward_hooks"),
) | {
    *(Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.stride, Tensor.numel, Tensor.nelement, Tensor.element_size),
    *(Tensor.is_contiguous, Tensor.is_floating_point, Tensor.is_complex, Tensor.is_signed, Tensor.storage_offset),
    *(Tensor.get_device, Tensor.__len__, Tensor.dim_order, Tensor.is_inference, Tensor.__hash__, Tensor.is_conj),
    *(Tensor.is_neg, Tensor._is_view, torch.is_floating_point, torch.is_complex, torch.is_conj, torch.numel),
}
_MOVES = {Tensor.to, Tensor.cpu, Tensor.cuda, Tensor.float, Tensor.double, Tensor.contiguous, Tensor.pin_memory}
# All values of the first types are values of the others.
_WIDER = {
    torch.uint8: (torch.int16, torch.int32, torch.int64, torch.float32, torch.float64),
    torch.float16: (torch.float32, torch.float64),
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float32: (torch.float64,),
}


_NO_MEMORY = "the samples of this tensor are not loaded (egeria.data.wrap(skip_loading=True)); take a clone() of it"


class _Place(NamedTuple):
    """Says where and how a tensor is kept."""

    device: torch.device
    dtype: torch.dtype
    strides: tuple[int, ...]


class StandIn(Tensor):
    """Stands for a tensor of a batch; see the file's comment. Owned by the training thread.

    Attributes:
      exist: some have been made in this process.
      source: the batch that it belongs to.
      leaf: its number there.
      exposed: somebody has the real tensor, and may have written to it.
    """

    exist: ClassVar[bool] = False
    source: Source
    leaf: int
    exposed: bool
    _real: Tensor | None
    _of: tuple[StandIn, Callable[[Tensor], Tensor]] | None  # it is made of that one by this

    @staticmethod
    def __new__(cls, source: Source, leaf: int, shape: Sequence[int], place: _Place, of: Any = None) -> StandIn:
        made = Tensor._make_wrapper_subclass(
            cls, tuple(shape), strides=place.strides, dtype=place.dtype, device=place.device
        )
        StandIn.exist = True
        _native.forbid_reads(made, _NO_MEMORY)  # for whoever gets past the functions below
        made.source, made.leaf, made.exposed, made._real, made._of = source, leaf, False, None, of
        return made

    @classmethod
    def like(cls, source: Source, leaf: int, tensor: Tensor) -> StandIn:
        """Stands for a tensor that looks like this one, which may be on the device "meta": then it is the CPU's."""
        device = torch.device("cpu") if tensor.is_meta else tensor.device
        return cls(source, leaf, tensor.shape, _Place(device, tensor.dtype, tensor.stride()))

    def real(self) -> Tensor:
        """Returns the real tensor, and loads what is missing. Nobody is to write to it."""
        if self._real is None:
            self._real = self.source.values(self.leaf) if self._of is None else self._of[1](self._of[0].real())
        return self._real

    def pick(self, positions: Sequence[int]) -> Tensor:
        """Returns these rows of the real tensor, and loads no others."""
        if self._real is not None:
            return self._real.index_select(0, torch.tensor(list(positions), device=self._real.device))
        if self._of is not None:
            return self._of[1](self._of[0].pick(positions))
        return self.source.rows(self.leaf, positions)

    def expose(self, by: str) -> Tensor:
        """Returns the real tensor to somebody who may write to it."""
        self.exposed = True
        self.source.touched(self.leaf, by)
        return self.real()

    def _moved(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StandIn | None:
        """Returns what stands for the outcome of one of _MOVES; None where values may change."""
        try:
            place = _place_after(self, function, args, kwargs)
        except (TypeError, RuntimeError):
            return None
        if place is None or place.dtype not in (self.dtype, *_WIDER.get(self.dtype, ())):
            return None
        pins = function is Tensor.pin_memory
        if place == _Place(self.device, self.dtype, self.stride()) and not (pins and self.source.is_whole()):
            return self
        moved = StandIn(self.source, self.leaf, self.shape, place, (self, lambda real: function(real, *args, **kwargs)))
        if self.source.is_whole():
            moved.real()  # a copy that runs beside the training begins here
        return moved

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_compiling():  # loading samples is nothing that can be compiled
            torch._dynamo.graph_break(
                "some samples of this tensor are not loaded (egeria.data.wrap(skip_loading=True))"
            )
        kwargs = kwargs or {}
        first = args[0] if args else None
        if func is Tensor.__hash__ or func in _ABOUT and not (isinstance(first, StandIn) and first.exposed):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if isinstance(first, StandIn) and not first.exposed:
            if func is Tensor.detach:
                return first
            if func is Tensor.is_pinned:
                return first._real is not None and first._real.is_pinned()
            if func in _MOVES and (moved := first._moved(func, args[1:], kwargs)) is not None:
                return moved
        return _with_values(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return _with_values(func, args, kwargs or {})


def _with_values(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return (_uncompiled() if "torch._dynamo" in sys.modules else _call)(function, args, kwargs)


@functools.cache
def _uncompiled() -> Any:
    """Returns _call() as torch's compiler, which looks at all that compiled code calls, leaves it alone."""
    return torch._dynamo.disable(_call)


def _call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = getattr(function, "__name__", str(function))
    args, kwargs = pytree.tree_map_only(StandIn, lambda stand_in: stand_in.expose(name), (args, kwargs))
    return function(*args, **kwargs)


def _place_after(tensor: StandIn, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Place | None:
    """Returns where a tensor is after one of _MOVES; None where that makes a copy in any case."""
    device, dtype, memory_format = tensor.device, tensor.dtype, kwargs.get("memory_format")
    if function is Tensor.to:
        if kwargs.get("copy") or args and isinstance(args[0], Tensor):
            return None
        to_device, to_dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        device, dtype = device if to_device is None else to_device, dtype if to_dtype is None else to_dtype
    elif function is Tensor.cpu:
        device = torch.device("cpu")
    elif function is Tensor.cuda:
        given = args[0] if args else kwargs.get("device")
        device = (
            torch.device("cuda") if given is None else torch.device("cuda", given) if isinstance(given, int) else given
        )
        device = torch.device(device)
    elif function in (Tensor.float, Tensor.double):
        dtype = torch.float32 if function is Tensor.float else torch.float64
    elif function is Tensor.contiguous:
        memory_format = args[0] if args else memory_format or torch.contiguous_format
    if device.index is None and device.type != "cpu":
        device = torch.device(device.type, torch.accelerator.current_device_index())
    like = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="meta")
    like = like.to(dtype=dtype, memory_format=memory_format or torch.preserve_format)
    return _Place(device, dtype, like.stride())


def values_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Returns a model's arguments with real tensors in place of stand-ins; None where there are none."""
    if not StandIn.exist:
        return None
    found = False

    def real(stand_in: StandIn) -> Tensor:
        nonlocal found
        found = True
        return stand_in.real()

    replaced = pytree.tree_map_only(StandIn, real, (args, kwargs))
    return replaced if found else None


class Serving(NamedTuple):
    """Says that passes over batches of these sizes may be served by what is cached of one frozen prefix.

    Attributes:
      number: tells this prefix from those before.
    """

    number: int
    sizes: set[int]


# Samples of this process that were "left_out", "audited" (loaded in spite of that), "changed" (their files were) and
# "loaded_late" (where the model is).
counts: collections.Counter[str] = collections.Counter()

_numbers = itertools.count(1)
_serving: Serving | None = None
_server: weakref.ref[Any] | None = None


def serve(server: Any, size: int) -> None:
    """`server` serves passes over `size` samples from now on."""
    global _serving, _server
    if _server is None or _server() is not server:
        _server, _serving = weakref.ref(server), Serving(next(_numbers), set())
    _serving.sizes.add(size)  # type: ignore[union-attr]


def stop_serving(server: Any) -> None:
    """`server` serves nothing until it says so again."""
    global _serving, _server
    if _server is not None and _server() is server:
        _server = _serving = None


def serving() -> Serving | None:
    return None if _server is None or _server() is None else _serving
