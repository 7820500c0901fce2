"""A loader's next batches are known early where that changes nothing; otherwise those that it has drawn are."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler, SkipBatchSampler
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from transformers.trainer_pt_utils import LengthGroupedSampler

from egeria.data import NodeSampler, current, wrap
from egeria.data.lookahead import AHEAD, LookAhead, may_draw_early
from egeria.data.sample_ids import ids_of

DATA = list(range(103))  # 25 batches of 4 and one of 3


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


class Drawn(Sampler):
    """Draws each index when it is asked for it, from a generator that everybody uses."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(40):
            yield random.randrange(len(DATA))

    def __len__(self) -> int:
        return 40


SAMPLERS = {
    "sequential": (lambda: SequentialSampler(DATA), True),
    "random": (lambda: RandomSampler(DATA), True),
    "random, a generator": (lambda: RandomSampler(DATA, generator=generator()), True),
    "some": (lambda: RandomSampler(DATA, num_samples=60), True),
    "some, a generator": (lambda: RandomSampler(DATA, num_samples=60, generator=generator()), False),
    "twice, a generator": (lambda: RandomSampler(DATA, num_samples=206, generator=generator()), False),
    "replacement": (lambda: RandomSampler(DATA, True), True),
    "replacement, a generator": (lambda: RandomSampler(DATA, True, generator=generator()), False),
    "weighted": (lambda: WeightedRandomSampler([0.5] * 103, 60, generator=generator()), True),
    "subset": (lambda: SubsetRandomSampler(DATA[:60], generator()), True),
    "ranks": (lambda: DistributedSampler(DATA, 2, 0), True),
    "nodes": (lambda: NodeSampler(DATA, 2, 0, ranks_per_node=1), True),
    "Lightning's": (lambda: DistributedSamplerWrapper(SubsetRandomSampler(DATA), num_replicas=2, rank=1), True),
    "accelerate's": (lambda: SeedableRandomSampler(DATA, data_seed=4), True),
    "grouped": (lambda: LengthGroupedSampler(8, lengths=[index % 7 for index in DATA]), True),
    "a list": (lambda: DATA[::-1], True),
    "somebody's": (Drawn, False),
}
AROUND = {
    "itself": lambda batches: batches,
    "a shard": lambda batches: BatchSamplerShard(batches, 2, 1),
    "a split shard": lambda batches: BatchSamplerShard(batches, 2, 1, split_batches=True),
    "skipping": lambda batches: SkipBatchSampler(batches, 3),
}


def state() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate()]


def batches_of(sampler: Any, stop: int | None) -> list[Any]:
    seen = []
    for _ in range(2):
        for batch in itertools.islice(sampler, stop):
            seen.append((list(batch), state()))
        seen.append(state())
    return seen


def ahead_of(sampler: Any) -> LookAhead:
    return LookAhead(sampler, ids_of, batched=True, in_order=True, loading=0)


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_gives_and_leaves_what_it_does_without(name: str, around: str):
    make, early = SAMPLERS[name]

    def sampler() -> Any:
        torch.manual_seed(2)
        random.seed(2)
        return AROUND[around](BatchSampler(make(), 4, name == "ranks"))

    assert may_draw_early(sampler()) == early
    for stop in (None, 1, 5, 9, 11, 12, 13, 14, 25, 26):
        assert batches_of(ahead_of(sampler()), stop) == batches_of(sampler(), stop)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_generator_of_a_sampler_is_as_it_is_without_wherever_a_loop_stops(name: str):
    make, _ = SAMPLERS[name]
    for stop in range(1, 28):
        torch.manual_seed(2)
        plain, other = BatchSampler(make(), 4, False), BatchSampler(make(), 4, False)
        own = getattr(plain.sampler, "generator", None)
        if own is None:
            return
        for _ in range(2):
            assert list(itertools.islice(ahead_of(other), stop)) == list(itertools.islice(plain, stop))
            assert other.sampler.generator.get_state().tolist() == plain.sampler.generator.get_state().tolist()


@pytest.mark.parametrize("name, workers", [*((name, 0) for name in SAMPLERS), ("random", 2), ("somebody's", 2)])
def test_what_is_upcoming_is_what_comes(name: str, workers: int):
    make, early = SAMPLERS[name]
    loader = wrap(DataLoader(DATA, 4, sampler=make(), num_workers=workers))
    hints, delivered = [], []
    for batch in loader:
        delivered.append(current().take(len(batch)))
        hints.append(current().upcoming())
        assert delivered[-1] == batch.tolist()
    least = AHEAD if early else 2 * workers - 1
    for position, hint in enumerate(hints):
        assert hint == delivered[position + 1 : position + 1 + len(hint)]
        # The last batch may not be drawn early.
        assert min(least, len(hints) - position - 2) <= len(hint) <= AHEAD + 2 * workers


def test_an_epoch_is_never_drawn_at_once():
    drawn = 0

    def endless() -> Iterator[list[int]]:
        nonlocal drawn
        while True:
            drawn += 1
            yield [drawn]

    class Large(list):
        def __len__(self) -> int:
            return 10**7

        def __iter__(self) -> Iterator[list[int]]:
            return endless()

    Large.__module__, Large.__qualname__ = "builtins", "list"  # it is drawn from early
    batches = iter(ahead_of(Large()))
    for number in range(1, 100):
        assert next(batches) == [number] and drawn == number + AHEAD


def test_batches_that_nobody_delivers_do_not_pile_up():
    order = LookAhead(BatchSampler(range(10**5), 2, False), ids_of, batched=True, in_order=True, loading=4)
    for _ in itertools.islice(order, 5000):
        pass
    assert len(order.upcoming()) == 4 + 64 + AHEAD


def test_a_loader_that_skips_batches_is_followed():
    """As skip_first_batches() makes them: the sampler is wrapped once more, outside."""
    order = ahead_of(BatchSampler(range(100), 4, False))
    batches = iter(SkipBatchSampler(order, 5))
    first = next(batches)
    order.delivered(tuple(first))
    assert first == [20, 21, 22, 23] and order.upcoming()[0] == [24, 25, 26, 27]


def test_batches_out_of_order_leave_the_others_upcoming():
    order = LookAhead([[1], [2], [3], [4]], ids_of, batched=True, in_order=False, loading=4)
    batches = iter(order)
    assert [next(batches) for _ in range(3)] == [[1], [2], [3]]
    order.delivered((3,))
    order.delivered((9,))
    order.delivered(None)
    assert order.upcoming() == [[1], [2]]  # and the last one is not drawn early


def test_a_length_that_is_wrong_ends_as_the_sampler_ends():
    class Short(list):
        def __len__(self) -> int:
            return 50

    Short.__module__, Short.__qualname__ = "builtins", "list"
    assert list(ahead_of(Short([[1], [2]]))) == [[1], [2]]


def test_everything_else_is_the_samplers():
    inner = BatchSampler(RandomSampler(DATA), 4, True)
    order = ahead_of(inner)
    assert len(order) == len(inner) and order.batch_size == 4 and order.sampler is inner.sampler
    order.sampler = SequentialSampler(DATA)
    assert inner.sampler is order.sampler and next(iter(order)) == [0, 1, 2, 3]
    assert not hasattr(order, "set_epoch")
    assert ahead_of(iter([])).upcoming() == []
    with pytest.raises(TypeError):
        len(ahead_of(iter([[1]])))
