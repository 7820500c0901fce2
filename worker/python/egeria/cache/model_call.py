"""A Call is one call of a model, taken apart into its samples."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from egeria import _native
from egeria.data.stand_in import Source, StandIn
from egeria.model.inputs import SIMPLE
from egeria.model.module_modes import ModuleModes


class UnusualCall(Exception):
    """Says why a call cannot be taken apart into samples; the text is for people."""


class Call:
    """Holds what the model is called with: a batch of samples, and what is the same for all of them.

    A tensor whose first dimension is as long as the batch is taken to hold one sample per row. Whether that is so
    is for egeria.cache.cut_proof to find out.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], batch: int):
        """
        Raises:
          UnusualCall: an argument is neither a plain tensor nor a number, text or container of those; it requires
            a gradient, where those are recorded; or none has a row per sample.
        """
        self.batch = batch
        self._words: str | None = None
        self._ignored: frozenset[int] = frozenset()
        leaves, self._structure = pytree.tree_flatten((tuple(args), dict(sorted(kwargs.items()))))
        self._leaves, self._source = _not_loaded(leaves, batch)
        for leaf in self._leaves:
            _check(leaf)
        self._batched = [
            isinstance(leaf, Tensor) and leaf.dim() >= 1 and leaf.size(0) == batch for leaf in self._leaves
        ]
        if batch < 1 or not any(self._batched):
            raise UnusualCall(f"no tensor among the arguments has {batch} rows, one for each sample id")

    def run(self, function: Callable[..., Any]) -> Any:
        """Calls `function` as the model is called."""
        self._load()
        args, kwargs = pytree.tree_unflatten(list(self._leaves), self._structure)
        return function(*args, **kwargs)

    def key(self) -> tuple[Any, ...]:
        """Returns what is equal for calls that differ in the contents of tensors only."""
        return (
            self.batch,
            self._text(),
            *((leaf.shape, leaf.stride(), leaf.device) for leaf in self._leaves if isinstance(leaf, Tensor)),
        )

    def sample_key(self) -> tuple[Any, ...]:
        """Returns what is equal for calls whose samples look alike, however many they are."""
        shapes = tuple(
            leaf.shape[1:] if batched else leaf.shape
            for leaf, batched in zip(self._leaves, self._batched)
            if isinstance(leaf, Tensor)
        )
        return self._text(), shapes

    def batched(self) -> list[Tensor]:
        """Returns the tensors with a row per sample."""
        self._load()
        return [leaf for leaf, batched in zip(self._leaves, self._batched) if batched]

    def conditions(self) -> tuple[tuple[bool, bool], ...]:
        """Returns what models ask of a whole batch's masks, so that a sample is computed otherwise in other company:
        whether all elements are set, and whether any is."""
        return tuple(
            (bool(tensor.all()), bool(tensor.any()))
            for tensor in self.batched()
            if tensor.dim() > 1 and not tensor.is_floating_point() and not tensor.is_complex()
        )

    def ignoring(self, arguments: Iterable[int]) -> Call:
        """Returns the call with hashes and digests into which the content of these arguments does not go."""
        other = copy.copy(self)
        other._ignored = frozenset(arguments)
        return other

    def without_content(self, arguments: Iterable[int]) -> Call:
        """Returns the call with tensors on the device "meta" in the place of these arguments. Whoever reads one of them
        gets an error."""
        self._load()
        other = copy.copy(self)
        other._leaves = list(self._leaves)
        for number in arguments:
            other._leaves[number] = torch.empty_like(self._leaves[number], device="meta")
        return other

    def rows(self, index: Sequence[int]) -> Call:
        """Returns the call with these samples only, in this order; a sample may come several times."""
        chosen = torch.tensor(list(index))
        other = copy.copy(self)
        other.batch = len(index)
        other._source = None
        other._leaves = [_rows(leaf, chosen) if batched else leaf for leaf, batched in zip(self._leaves, self._batched)]
        return other

    def filled_up(self, index: Sequence[int], size: int) -> Call:
        """Returns the call with these samples, and copies of the first of them behind, so that there are `size`."""
        return self.rows([*index, *index[:1] * (size - len(index))])

    def copied(self) -> Call:
        """Returns the call with its samples in memory of their own, since a script may write to its batch."""
        return self.rows(range(self.batch))

    def and_then(self, other: Call) -> Call:
        """Returns the call with the samples of this one, and behind them those of another one that looks alike."""
        self._load()
        other._load()
        both = copy.copy(self)
        both.batch = self.batch + other.batch
        both._leaves = [
            _joined(mine, theirs) if batched else mine
            for mine, theirs, batched in zip(self._leaves, other._leaves, self._batched)
        ]
        return both

    def disturbed(self) -> Call | None:
        """Returns the call with noise on all floating-point rows that are finite; None where there are none. Real
        inputs may be so regular (a blank image) that roundings do not show."""
        noisy = _native.disturbed(self.batched())
        if not noisy:
            return None
        remaining = iter(noisy)
        other = copy.copy(self)
        other._leaves = [next(remaining) if batched else leaf for leaf, batched in zip(self._leaves, self._batched)]
        return other

    def hashes(self, salt: bytes = b"") -> list[int]:
        """Returns 64 bits for each sample, over `salt`, its rows of all tensors, and all that belongs to no sample.

        Element types, shapes and memory formats count too.
        """
        source, batched = self._source, self._counting(of_samples=True)
        if source is None:
            return _native.hash_rows(_in_host(batched), self._digest(salt))
        # A sample that is not loaded has the hash that it had.
        parts = repr([leaf.leaf if isinstance(leaf, StandIn) else None for leaf in batched]).encode()
        others = _in_host([leaf for leaf in batched if not isinstance(leaf, StandIn)])
        digest = self._digest(salt)
        return source.hashes(
            digest + parts,
            _native.hash_rows(others, b"") if others else [0] * self.batch,
            lambda rows: _native.hash_rows(_in_host(self.rows(rows)._counting(of_samples=True)), digest),
        )

    @property
    def structure(self) -> str:
        """How the arguments stand in containers. The numbers of argument() follow from it."""
        return str(self._structure)

    @property
    def source(self) -> Source | None:
        """The batch some of whose samples may not be loaded; None where all are."""
        return self._source

    def digests(self, salt: bytes = b"") -> list[bytes]:
        """Returns 16 bytes for each sample, over what hashes() is made of."""
        self._load()
        begin = torch.frombuffer(bytearray(self._digest(salt)), dtype=torch.uint8)
        columns = [tensor.unbind(0) for tensor in _in_host(self._counting(of_samples=True))]
        return [_native.fingerprint("", [begin, *sample]) for sample in zip(*columns)]

    def argument_of(self, tensor: Tensor) -> int | None:
        """Returns the number by which argument() gives this very tensor; None where it is no argument."""
        return next((number for number, leaf in enumerate(self._leaves) if leaf is tensor), None)

    def argument(self, number: int) -> Any:
        return self._leaves[number]

    def argument_named(self, name: str) -> Tensor | None:
        """Returns the tensor that is passed by this name, or is in a dict under it; None where there is none."""
        self._load()
        args, kwargs = pytree.tree_unflatten(list(self._leaves), self._structure)
        tables = [table for table in (kwargs, *args, *kwargs.values()) if isinstance(table, dict)]
        return next((table[name] for table in tables if isinstance(table.get(name), Tensor)), None)

    def numbered(self) -> dict[int, Tensor]:
        """Returns all tensors among the arguments, by the numbers by which argument() gives them."""
        self._load()
        return {number: leaf for number, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)}

    def tensors(self) -> list[Tensor]:
        """Returns all tensors among the arguments."""
        return list(self.numbered().values())

    def of_no_sample(self) -> list[int]:
        """Returns the numbers of the tensors that have no row per sample."""
        leaves = enumerate(zip(self._leaves, self._batched))
        return [number for number, (leaf, batched) in leaves if isinstance(leaf, Tensor) and not batched]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Call:
        """Returns the call with others in the place of tensors(), with as many rows."""
        remaining = iter(tensors)
        other = copy.copy(self)
        other._leaves = [next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        other._words = None
        return other

    def _counting(self, of_samples: bool) -> list[Tensor]:
        """Returns the tensors whose content goes into hashes: those with a row per sample, or the others."""
        return [
            leaf
            for number, (leaf, batched) in enumerate(zip(self._leaves, self._batched))
            if isinstance(leaf, Tensor) and batched == of_samples and number not in self._ignored
        ]

    def _digest(self, salt: bytes) -> bytes:
        """Returns a digest of `salt` and of what belongs to no sample."""
        common = self._counting(of_samples=False)
        formats = [_format_of(leaf) for leaf in self._leaves if isinstance(leaf, Tensor)]
        text = repr((salt, self._text(), formats, *sorted(self._ignored)))
        return _native.fingerprint(text, common) if common else _fingerprint_of(text)

    def _load(self) -> None:
        if self._source is not None:
            self._leaves = [leaf.real() if isinstance(leaf, StandIn) else leaf for leaf in self._leaves]
            self._source = None

    def _text(self) -> str:
        if self._words is None:
            self._words = self._put_into_words()
        return self._words

    def _put_into_words(self) -> str:
        return repr(
            (
                str(self._structure),
                [
                    (str(leaf.dtype), leaf.device.type, batched)
                    if isinstance(leaf, Tensor)
                    else (type(leaf).__name__, repr(leaf))
                    for leaf, batched in zip(self._leaves, self._batched)
                ],
            )
        )


class Settings:
    """Reads what a forward pass depends on besides arguments, weights and random states: modes, autocast, kernels."""

    def __init__(self, model: nn.Module):
        self._modules = list(model.modules())
        self._modes = ModuleModes(self._modules)
        self._devices = sorted({"cpu", *(parameter.device.type for parameter in model.parameters())})

    def without_modes_of(self, modules: Iterable[nn.Module], settings: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns what now() has returned, less the modes of these modules."""
        left_out = set(modules)
        modes, *others = settings
        return bytes(mode for module, mode in zip(self._modules, modes) if module not in left_out), *others

    def now(self) -> tuple[Any, ...]:
        """Returns plain values to be compared, whose repr is the same in another process."""
        autocast = tuple(
            (device, torch.get_autocast_dtype(device)) for device in self._devices if torch.is_autocast_enabled(device)
        )
        backends = torch.backends
        return (
            self._modes.now(),
            autocast,
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            backends.mkldnn.enabled,
            backends.mha.get_fastpath_enabled(),
            backends.cudnn.enabled,
            backends.cudnn.benchmark,
            backends.cudnn.deterministic,
            backends.cudnn.allow_tf32,
        )


@functools.lru_cache(64)
def _fingerprint_of(text: str) -> bytes:
    return _native.fingerprint(text, [])


def _check(leaf: Any) -> None:
    if isinstance(leaf, Tensor):
        if type(leaf) not in (Tensor, StandIn) or leaf.layout is not torch.strided or leaf.is_quantized:
            raise UnusualCall(f"an argument is a {type(leaf).__name__} of layout {leaf.layout}")
        if leaf.requires_grad and torch.is_grad_enabled():
            raise UnusualCall("an argument requires a gradient, which would have to pass the frozen layers")
    elif not isinstance(leaf, SIMPLE):
        raise UnusualCall(f"an argument is a {type(leaf).__name__}, not a tensor, a number or text")


def rows_of(tensors: Sequence[Tensor], index: list[int]) -> Sequence[Tensor]:
    """Returns these rows of tensors, which ascend; the tensors themselves where that is all of them."""
    if tensors and len(index) == len(tensors[0]):
        return tensors
    return [tensor[index] for tensor in tensors]


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    """Returns these rows. Their dimensions lie in memory in the order that they have in `tensor`, since kernels may
    round otherwise for another order."""
    if isinstance(tensor, StandIn):
        rows = tensor.pick(index.tolist())
    else:
        rows = tensor.index_select(0, index.to(tensor.device))
    chosen = torch.empty_permuted(rows.shape, tensor.dim_order(), dtype=tensor.dtype, device=tensor.device)
    return chosen.copy_(rows)


def _joined(tensor: Tensor, other: Tensor) -> Tensor:
    """Returns the rows of both, which lie in memory as those of `tensor` do."""
    rows = torch.cat([tensor, other])
    joined = torch.empty_permuted(rows.shape, tensor.dim_order(), dtype=tensor.dtype, device=tensor.device)
    return joined.copy_(rows)


def _not_loaded(leaves: list[Any], batch: int) -> tuple[list[Any], Source | None]:
    """Returns the arguments with those stand-ins for a batch's tensors that nobody else has looked at, and the batch;
    other stand-ins are replaced by what they stand for."""
    sources = {leaf.source for leaf in leaves if isinstance(leaf, StandIn)}
    source = next(iter(sources)) if len(sources) == 1 else None
    if (
        source is not None
        and len(source.indices) == batch
        and not any(isinstance(leaf, StandIn) and leaf.exposed for leaf in leaves)
    ):
        return leaves, source
    return [leaf.real() if isinstance(leaf, StandIn) else leaf for leaf in leaves], None


def _in_host(batched: Sequence[Tensor]) -> list[Tensor]:
    """Returns dense copies in host memory."""
    return [tensor.detach().cpu().resolve_conj().resolve_neg().contiguous() for tensor in batched]


def _format_of(tensor: Tensor) -> Any:
    return "" if tensor.is_contiguous() else tensor.stride()[1:]
