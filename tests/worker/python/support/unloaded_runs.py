"""Trainings with and without skip_loading, for the tests of egeria.data."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from cache_daemon import wait_until_kept
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import egeria
from egeria.data import wrap
from egeria.data.sample_memory import SampleMemory

SAMPLES, BATCH, EPOCHS = 48, 8, 5


def image(index: int, shift: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(index)
    return torch.randn(3, 12, 12, generator=generator) + shift


class Images(Dataset):
    """Counts, over all processes, how many of its samples are loaded."""

    def __init__(self, size: int = SAMPLES):
        self.size = size
        self.loads = multiprocessing.Value("i", 0)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        with self.loads.get_lock():
            self.loads.value += 1
        return self.sample(index)

    def sample(self, index: int) -> tuple[Any, ...]:
        return image(index), index % 10


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(self.block(inputs, outputs) for inputs, outputs in ((3, 8), (8, 8), (8, 8))))
        self.head = nn.Linear(8 * 4, 10)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).flatten(1))


LAYERS = ["layers.0", "layers.1", "layers.2", "head"]
Step = Callable[[nn.Module, Any], Tensor]


def plain_step(model: nn.Module, batch: Any) -> Tensor:
    images, labels = batch[:2]
    return nn.functional.cross_entropy(model(images), labels)


class Run:
    """A training's results: its weights, what was loaded in each epoch, and its loader's memory of the samples."""

    def __init__(
        self,
        cache: str,
        dataset: Any = None,
        step: Step = plain_step,
        *,
        skip: bool | None = None,
        model: Callable[[], nn.Module] = Net,
        plans: Any = ((1, 2),),
        between: Callable[[int, nn.Module], None] = lambda epoch, model: None,
        prepare: Callable[[DataLoader], DataLoader] = lambda loader: loader,
        wrapping: dict[str, Any] | None = None,
        config: dict[str, Any] | None = None,
        epochs: int = EPOCHS,
        waits: bool = True,
        **options: Any,
    ):
        """
        Args:
          between: called before each epoch.
          prepare: makes the loader that is wrapped of torch's.
        """
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(0)
        dataset = Images() if dataset is None else dataset
        trained = model().train()
        optimizer = torch.optim.SGD(trained.parameters(), 0.05, momentum=0.9)
        if "batch_sampler" not in options:
            options = {"batch_size": BATCH, "shuffle": True, **options}
        loader = wrap(
            prepare(DataLoader(dataset, **options)),
            skip_loading=cache != "none" if skip is None else skip,
            **(wrapping or {}),
        )
        self.memory: SampleMemory | None = loader.__dict__["_egeria_identity"].memory
        self.loads: list[int] = []
        self.kinds: list[str] = []
        self.batches: list[Any] = []
        settings = {"controller": "none", "plans": list(plans), "cache": cache, "cache_use": "always", **(config or {})}
        with egeria.attach(trained, optimizer, modules=LAYERS, config=egeria.Config(**settings)) as session:
            for epoch in range(epochs):
                between(epoch, trained)
                before = counted(dataset)
                for batch in loader:
                    self.kinds += [type(part).__name__ for part in batch] if isinstance(batch, (list, tuple)) else []
                    loss = step(trained, batch)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    session.step(loss)
                    if waits:
                        wait_until_kept(session, 20)
                self.loads.append(counted(dataset) - before)
            self.counters = session.cache_counters()
        self.weights = trained.state_dict()
        self.random = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()

    def same_as(self, other: Run) -> bool:
        return (
            all(torch.equal(value, other.weights[name]) for name, value in self.weights.items())
            and torch.equal(self.random[0], other.random[0])
            and self.random[1:] == other.random[1:]
        )


def counted(dataset: Any) -> int:
    while not hasattr(dataset, "loads"):
        dataset = dataset.dataset if hasattr(dataset, "dataset") else dataset.datasets[0]
    return dataset.loads.value
