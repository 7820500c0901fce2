"""Whether batches are made with random numbers shows before their samples come again."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.dataloader import default_collate

from egeria import data
from egeria.data.drawing import Drawing
from egeria.data.sample_ids import SampleIds


class Images(Dataset):
    """Samples of which each is changed by a function."""

    def __init__(self, change: Any = None):
        self.change = change

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        image = torch.full((2,), float(index))
        return image if self.change is None else image + self.change()


def by_torch() -> float:
    return torch.rand(1).item()


def by_numpy() -> float:
    return np.random.rand()


def by_python() -> float:
    return random.random()


class ByItself:
    """Draws from a generator of its own, which nobody else sees."""

    def __init__(self, generator: Any, draw: Any):
        self.nested = {"generators": [generator]}
        self.draw = draw

    def __call__(self) -> float:
        return float(self.draw(self.nested["generators"][0]))


class Untouched(ByItself):
    """Has a generator of its own, and does not draw from it."""

    def __call__(self) -> float:
        return 1.0


class Secretive(np.random.PCG64):
    """A source of random bits that does not tell its state."""

    @property
    def state(self) -> Any:
        raise NotImplementedError


def by_method(generator: Any) -> float:
    return generator.random()


def by_random_state(generator: Any) -> float:
    return generator.rand()


def by_torch_generator(generator: torch.Generator) -> torch.Tensor:
    return torch.rand(1, generator=generator)


def by_system(generator: random.SystemRandom) -> float:
    return generator.random()


def noisy_collate(samples: list[torch.Tensor]) -> torch.Tensor:
    return default_collate(samples) + torch.randn(1)


@pytest.fixture(name="ids")
def ids_fixture(monkeypatch: pytest.MonkeyPatch) -> SampleIds:
    """The process's, as in a fresh one."""
    ids = SampleIds()
    monkeypatch.setattr("egeria.data.wrapped_loader.current", lambda: ids)
    return ids


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("change", "collate", "drew"),
    [
        (None, None, False),
        (by_torch, None, True),
        (by_numpy, None, True),
        (by_python, None, True),
        (None, noisy_collate, True),
        (ByItself(np.random.default_rng(0), by_method), None, True),
        (ByItself(np.random.RandomState(0), by_random_state), None, True),
        (ByItself(torch.Generator(), by_torch_generator), None, True),
        (ByItself(random.Random(0), by_method), None, True),
        (ByItself(random.SystemRandom(), by_system), None, None),
        (ByItself(np.random.Generator(Secretive(0)), by_method), None, None),
        (Untouched(np.random.default_rng(0), by_method), None, None),
    ],
)
def test_what_draws_is_seen(change: Any, collate: Any, drew: bool | None, workers: int, ids: SampleIds) -> None:
    assert ids.drew is None
    for batch in data.wrap(DataLoader(Images(change), 4, collate_fn=collate, num_workers=workers)):
        assert batch.shape == (4, 2)
        assert ids.drew is drew
    assert ids.drew is drew


@pytest.mark.parametrize("workers", [0, 2])
def test_variants_come_again(workers: int, ids: SampleIds) -> None:
    for _ in data.wrap(DataLoader(Images(by_torch), 4, num_workers=workers), variants=2):
        pass
    assert ids.drew is False


def test_a_shuffling_sampler_draws_for_no_sample(ids: SampleIds) -> None:
    for _ in data.wrap(DataLoader(TensorDataset(torch.arange(12.0)), 4, shuffle=True)):
        assert ids.drew is False


@pytest.mark.parametrize("workers", [0, 2])
def test_looks_change_no_random_number(workers: int) -> None:
    def epoch(wrapped: bool) -> tuple[list[Any], Any]:
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        loader = DataLoader(Images(by_torch), 4, shuffle=True, num_workers=workers, collate_fn=noisy_collate)
        batches = list(data.wrap(loader) if wrapped else loader)
        return [batch.tolist() for batch in batches], (torch.rand(1).item(), np.random.rand(), random.random())

    assert epoch(True) == epoch(False)


def test_only_the_first_batches_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(random, "getstate", lambda: looks.append(None))
    drawing = Drawing()
    for _ in range(20):
        with drawing.watching():
            pass
    assert len(looks) == 16 and drawing.drew is None


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), np.random.rand, random.random])
def test_augmentation_in_the_loop_is_seen(draw: Any, ids: SampleIds) -> None:
    for batch in data.wrap(DataLoader(Images(), 4)):
        assert ids.take(len(batch)) is not None
        draw()  # this makes no batch
    assert ids.drew is False
    for batch in data.wrap(DataLoader(Images(), 4)):
        draw()
        assert ids.take(len(batch)) is not None
        assert ids.drew is True


def test_the_loop_is_looked_at_in_the_first_batches_of_each_epoch(ids: SampleIds) -> None:
    loader = data.wrap(DataLoader(Images(), 1))
    for epoch in range(2):
        for number, batch in enumerate(loader):
            if (number < 8) == (epoch == 0):
                torch.rand(1)
            ids.take(len(batch))
            assert ids.drew is (epoch == 0)
