"""Trainings with and without skipped frozen layers, for the tests of skipping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from egeria.freezing import Freezer
from egeria.modules import LayerModule, partition
from egeria.skipping import Skipper


class DictStore:
    """An ActivationStore in memory. Rows are kept as they are given, without another look at them."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        self.stored = 0

    def get(self, ids: Sequence[int], input_hashes: Sequence[int]) -> list[tuple[Tensor, ...] | None]:
        return [self.rows.get(key) for key in zip(ids, input_hashes)]

    def put(self, ids: Sequence[int], input_hashes: Sequence[int], tensors: tuple[Tensor, ...]) -> None:
        for number, key in enumerate(zip(ids, input_hashes)):
            self.rows[key] = tuple(tensor[number].clone(memory_format=torch.contiguous_format) for tensor in tensors)
            self.stored += 1


Step = tuple[list[int], tuple[Any, ...], dict[str, Any]]  # ids and arguments of one batch


class Run:
    """What a training has left."""

    def __init__(self, model: nn.Module, losses: list[float], skipper: Skipper | None):
        self.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.losses = losses
        self.random = torch.get_rng_state()
        self.skipper = skipper

    def assert_same(self, other: Run) -> None:
        assert self.losses == other.losses
        assert self.weights.keys() == other.weights.keys()
        for name, value in self.weights.items():
            assert torch.equal(value, other.weights[name]), name
        assert torch.equal(self.random, other.random)


def train(build: Callable[[], nn.Module], modules: Any, prefix: int, steps: Sequence[Step], loss_of: Callable[[Any], Tensor],
          store: Any = None, *, seed: int = 0, prepare: Callable[[nn.Module], None] | None = None,
          around: Callable[[Skipper], None] | None = None) -> Run:
    """Freezes a prefix and trains; with a store, skips what it can.

    Args:
      modules: as for partition().
      around: called with the skipper before each step.
    """
    torch.manual_seed(seed)
    model = build().train()
    if prepare is not None:
        prepare(model)
    layers = partition(model, modules)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    freezer = Freezer(layers, [optimizer])
    freezer.apply(prefix)
    skipper = Skipper(model, layers[:prefix], store) if store is not None else None
    losses = []
    torch.manual_seed(seed + 1)
    for ids, args, kwargs in steps:
        if around is not None and skipper is not None:
            around(skipper)
        if skipper is not None:
            skipper.before_forward(args, kwargs, ids)
        loss = loss_of(model(*args, **kwargs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if skipper is not None:
        skipper.close()
    freezer.apply(0)
    return Run(model, losses, skipper)


def epochs(samples: int, batch: int, number: int, arguments: Callable[[list[int]], tuple[Any, dict[str, Any]]],
           seed: int = 5) -> list[Step]:
    """Shuffled batches, the last one of each epoch smaller where `batch` does not divide `samples`."""
    generator = torch.Generator().manual_seed(seed)
    steps = []
    for _ in range(number):
        order = torch.randperm(samples, generator=generator).tolist()
        for begin in range(0, samples, batch):
            ids = order[begin:begin + batch]
            args, kwargs = arguments(ids)
            steps.append((ids, args, kwargs))
    return steps


def prefix_of(model: nn.Module, modules: Any, prefix: int) -> list[LayerModule]:
    return partition(model, modules)[:prefix]


def batches(steps: Sequence[Step]) -> Iterator[list[int]]:
    return (ids for ids, _, _ in steps)
