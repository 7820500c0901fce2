"""Trainings with and without skipped frozen layers, for the tests of skipping."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from cache_daemon import wait_until_kept
from skipped_models import VECTORS, square
from torch import Tensor, nn

import egeria
from egeria import data
from egeria.cache.frozen_part import Part
from egeria.cache.gate import CacheGate
from egeria.cache.repeated_samples import Repeats
from egeria.cache.skipper import Skipper
from egeria.freeze.freezer import Freezer
from egeria.model.isolation import device_of
from egeria.model.modules import LayerModule, partition

Fetched = tuple[Sequence[Tensor], Sequence[str]]  # as PrefixStore.get() returns it


class FirstLayers:
    """A source of one part alone, which is as deep as it is told."""

    def __init__(self, model: nn.Module, layers: Sequence[LayerModule], prefix: int, store: Any):
        self._arguments = model, layers, prefix
        self._store = store

    def deepest(self, call: Any) -> Part:
        return Part(*self._arguments)

    def shallower(self, error: Exception) -> None:
        return None

    def open(self, part: Part, form: bytes) -> Any:
        return self._store

    def shallower_prefixes(self):
        return ()

    def drop(self, prefix):
        raise AssertionError("there is none")


def skipper_of(
    model: nn.Module,
    layers: Sequence[LayerModule],
    prefix: int,
    store: Any,
    take_ids: Callable[[int], Sequence[int] | None],
    gate: CacheGate | None = None,
) -> Skipper:
    """Returns a Skipper of the model's first layers; without a gate it uses the store in all passes."""
    return Skipper(
        model,
        FirstLayers(model, layers, prefix, store),
        take_ids=take_ids,
        upcoming=list,
        gate=CacheGate(device_of(model), Repeats(), always=True) if gate is None else gate,
        own_forward_only=False,
        tell=lambda what, error: None,
    )


def counters_of(skipper: Skipper) -> collections.Counter[str]:
    return collections.Counter(skipper.gate.ledger.counters())


def put_together(rows: Sequence[tuple[Tensor, ...] | None]) -> Fetched:
    """From each sample's tensors, without the batch dimension; None is a miss ("absent"). Those that do not look like
    the first one's are misses too ("unfit")."""
    like = next((row for row in rows if row is not None), None)
    if like is None:
        return (), ["absent"] * len(rows)
    tensors = tuple(part.new_empty((len(rows), *part.shape)) for part in like)
    reasons = []
    for position, row in enumerate(rows):
        fits = (
            row is not None
            and len(row) == len(like)
            and all(part.shape == other.shape and part.dtype == other.dtype for part, other in zip(row, like))
        )
        reasons.append("" if fits else "absent" if row is None else "unfit")
        for tensor, part in zip(tensors, row if fits else ()):
            tensor[position] = part
    return tensors, reasons


class DictStore:
    """A PrefixStore in memory. Rows are kept as they are given, without another look at them."""

    seconds_behind = 0.0
    rounds = False
    may_shorten = True

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        self.stored = 0

    def shorten(self) -> None:
        pass

    def get(
        self, ids: Sequence[int], input_hashes: Sequence[int], patience: float, widths: Sequence[int] = ()
    ) -> Fetched:
        rows = self.find(ids, input_hashes)
        return put_together([row and tuple(map(widened, row, widths)) for row in rows] if widths else rows)

    def find(self, ids: Sequence[int], input_hashes: Sequence[int]) -> list[tuple[Tensor, ...] | None]:
        return [self.rows.get(key) for key in zip(ids, input_hashes)]

    def as_kept(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return tensors

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        pass

    def forget(self) -> None:
        self.rows.clear()

    def put(
        self,
        ids: Sequence[int],
        input_hashes: Sequence[int],
        tensors: tuple[Tensor, ...],
        lengths: Sequence[Sequence[int]] = (),
    ) -> None:
        for number, key in enumerate(zip(ids, input_hashes)):
            ends = [length[number] if length else None for length in lengths] or [None] * len(tensors)
            self.rows[key] = tuple(
                (tensor[number] if end is None else tensor[number, :end]).contiguous().clone()
                for tensor, end in zip(tensors, ends)
            )
            self.stored += 1


def widened(row: Tensor, width: int) -> Tensor:
    """Returns the row with zeros behind it."""
    if row.dim() == 0 or len(row) >= width:
        return row
    return torch.cat([row, row.new_zeros(width - len(row), *row.shape[1:])])


Step = tuple[list[int], tuple[Any, ...], dict[str, Any]]  # ids and arguments of one batch


class Run:
    """The results of a training."""

    def __init__(self, model: nn.Module, losses: list[float], skipper: Skipper | None):
        self.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.losses = losses
        self.random = torch.get_rng_state()
        self.skipper = skipper

    @property
    def refusal(self) -> str | None:
        return None if self.skipper.refusal is None else self.skipper.refusal.name

    @property
    def counters(self) -> Mapping[str, int]:
        return counters_of(self.skipper)

    @property
    def live(self) -> list[str]:
        """Names of the layers whose outputs crossed the cut."""
        cut = next(proven.cut for proven in self.skipper._kept.proofs._proven.values() if proven is not None)
        return [cut.names[index] for index in cut.live]

    def same_as(self, other: Run) -> bool:
        return (
            self.losses == other.losses
            and torch.equal(self.random, other.random)
            and self.weights.keys() == other.weights.keys()
            and all(torch.equal(value, other.weights[name]) for name, value in self.weights.items())
        )


def train(
    build: Callable[[], nn.Module],
    modules: Any,
    prefix: int,
    steps: Sequence[Step],
    loss_of: Callable[[Any], Tensor],
    store: Any = None,
    *,
    autocast: torch.dtype | None = None,
    audit: bool = False,
    warm: bool = False,
    each_step: Callable[[int, nn.Module, Skipper | None], None] | None = None,
) -> Run:
    """Freezes a prefix and trains; with a store, skips what it can.

    Args:
      modules: as for partition().
      warm: there was a pass before layers froze, as in any training: some libraries set attributes in the first one.
      audit: skipped passes are audited. Otherwise what the store gives is used unseen, so that mistakes show.
      each_step: called before each step, with its number.
    """
    torch.manual_seed(0)
    model = build().train()
    layers = partition(model, modules)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if warm:
        with torch.no_grad():
            model(*steps[0][1], **steps[0][2])
    freezer = Freezer(layers, [optimizer])
    freezer.apply(prefix)
    at_hand: list[list[int] | None] = [None]
    skipper = None
    if store is not None:
        skipper = skipper_of(model, layers, prefix, store, lambda batch: at_hand[0])
        skipper.gate.ledger.skippable = 0 if audit else 65
    losses = []
    torch.manual_seed(1)
    for number, (ids, args, kwargs) in enumerate(steps):
        if each_step is not None:
            each_step(number, model, skipper)
        at_hand[0] = ids
        freezer.hold()  # as a session does
        with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            loss = loss_of(model(*args, **kwargs))
        freezer.end_pass()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if skipper is not None:
        skipper.close()
    freezer.apply(0)
    return Run(model, losses, skipper)


def epochs(
    samples: int, batch: int, number: int, arguments: Callable[[list[int]], tuple[tuple[Any, ...], dict[str, Any]]]
) -> list[Step]:
    """Shuffled batches, the last one of each epoch smaller where `batch` does not divide `samples`."""
    generator = torch.Generator().manual_seed(5)
    steps = []
    for _ in range(number):
        order = torch.randperm(samples, generator=generator).tolist()
        chosen = [order[begin : begin + batch] for begin in range(0, samples, batch)]
        steps += [(ids, *arguments(ids)) for ids in chosen]
    return steps


def cached_step(number: int, model: nn.Module, optimizer: torch.optim.Optimizer, session: egeria.Session) -> float:
    """Trains one step on eight of 16 samples, and lets the cache keep what it has offered. Returns the loss."""
    ids = [(8 * number + i) % 16 for i in range(8)]
    data.current().announce(ids)
    loss = square(model(VECTORS[ids]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    wait_until_kept(session)
    return loss.item()
