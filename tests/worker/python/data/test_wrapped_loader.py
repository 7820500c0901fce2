"""Sample ids that travel with the batch: those of the batch at hand or none; the loop sees what it would see."""

from __future__ import annotations

import copy
import functools
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data._utils.pin_memory import pin_memory

import egeria
from egeria import EgeriaError
from egeria.data import SampleIds, current, wrap
from egeria.data.sample_ids import Pass

SAMPLES = 53  # with batches of 4: 13 and one of 1


class Numbers(Dataset):
    """Sample i holds i, and three random numbers of as many generators."""

    def __init__(self, size: int = SAMPLES):
        self.size = size
        self.seen_in_worker = None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> tuple[Tensor, float, float]:
        noise = torch.rand(2)
        return torch.cat([torch.tensor([float(index)]), noise]), random.random(), float(np.random.rand())


class Fetching(Numbers):
    """As the datasets of Hugging Face: several samples at a time."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Columns(Numbers):
    """Is indexed by lists."""

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, list):
            return super().__getitem__(index)
        return torch.tensor(index).float().reshape(-1, 1)


class AtOnce:
    """Batches that are drawn when iter() is called, from generators that everybody uses."""

    def __iter__(self) -> Iterator[list[int]]:
        first = int(torch.randint(40, ()))
        return iter([[first, random.randrange(40)], [first + 1], [0, 1, 2]])

    def __len__(self) -> int:
        return 3


class Pair(NamedTuple):
    first: Tensor
    rest: list[Any]


class Own:
    """A batch of a class of its own."""

    def __init__(self, numbers: Tensor):
        self.numbers = numbers
        self.pinned = False

    def pin_memory(self) -> Own:
        self.pinned = True
        return self


def as_pair(samples: list[Any]) -> Pair:
    return Pair(torch.stack([sample[0] for sample in samples]), [sample[1:] for sample in samples])


def as_dict(samples: list[Any]) -> dict[str, Any]:
    return {"numbers": torch.stack([sample[0] for sample in samples]), "noise": torch.rand(1)}


def as_own(samples: list[Any]) -> Own:
    return Own(torch.stack([sample[0] for sample in samples]))


def numbers_of(batch: Any) -> Tensor:
    if isinstance(batch, Own):
        return batch.numbers
    if isinstance(batch, dict):
        return batch["numbers"]
    return batch if isinstance(batch, Tensor) else batch[0]


def indices_in(batch: Any) -> list[int]:
    return numbers_of(batch).reshape(-1, numbers_of(batch).shape[-1])[:, 0].long().tolist()


def forward(batch: Any) -> list[int] | None:
    """Does what the model's forward pre-hook does."""
    return current().take(len(indices_in(batch)))


def notes() -> tuple[list[Any], Callable[[Any], None]]:
    """A list, and what puts the ids of a batch and its samples' indices there."""
    seen: list[Any] = []
    return seen, lambda batch: seen.append((forward(batch), indices_in(batch)))


def with_seed(make: Callable[[], DataLoader]) -> DataLoader:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    return make()


def state_of_generators(loader: DataLoader) -> list[Any]:
    own = [loader.generator] if loader.generator is not None else []
    return [
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        *(generator.get_state().tolist() for generator in own),
    ]


def play(loader: DataLoader, take: Callable[[Any], Any], epochs: int, stop: int | None) -> list[Any]:
    """All that a loop sees: batches, and the state of the generators when it has them."""
    seen = []
    for epoch in range(epochs):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            take(batch)
            seen.append((batch, state_of_generators(loader)))
            if number == stop:
                break
        seen.append((None, state_of_generators(loader)))
    return seen


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Own):
        return same(vars(one), vars(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def init_worker(worker: int) -> None:
    dataset = torch.utils.data.get_worker_info().dataset
    assert type(dataset) is Numbers
    dataset.seen_in_worker = worker


FOUR = {"batch_size": 4}
WORKERS = {"num_workers": 2, "multiprocessing_context": "fork"}
LOADERS: dict[str, Callable[[], DataLoader]] = {
    "in order": lambda: DataLoader(Numbers(), **FOUR),
    "shuffled": lambda: DataLoader(Numbers(), **FOUR, shuffle=True),
    "shuffled by a generator": lambda: DataLoader(Numbers(), **FOUR, shuffle=True, generator=generator()),
    "without the rest": lambda: DataLoader(Numbers(), **FOUR, shuffle=True, drop_last=True, generator=generator()),
    "without a rest": lambda: DataLoader(Numbers(52), **FOUR, shuffle=True, generator=generator()),
    "one sample a batch": lambda: DataLoader(Numbers(9), shuffle=True),
    "several at a time": lambda: DataLoader(Fetching(), **FOUR, shuffle=True),
    "named tuples": lambda: DataLoader(Numbers(), **FOUR, shuffle=True, collate_fn=as_pair),
    "dicts and noise": lambda: DataLoader(Numbers(), **FOUR, shuffle=True, collate_fn=as_dict),
    "a class of its own": lambda: DataLoader(Numbers(), **FOUR, collate_fn=as_own),
    "not collated": lambda: DataLoader(Numbers(), batch_size=None, shuffle=True),
    "lists of indices": lambda: DataLoader(
        Columns(), batch_size=None, sampler=BatchSampler(RandomSampler(range(SAMPLES)), 4, False)
    ),
    "batch sampler": lambda: DataLoader(
        Numbers(), batch_sampler=BatchSampler(SequentialSampler(range(SAMPLES)), 4, True)
    ),
    "list of batches": lambda: DataLoader(Numbers(), batch_sampler=[[3, 1], [2], [7, 7, 9]]),
    "tuples of indices": lambda: DataLoader(Numbers(), batch_sampler=[(3, 1), (2,), (7, 7, 9)]),
    "drawn at once": lambda: DataLoader(Numbers(), batch_sampler=AtOnce()),
    "tensors as indices": lambda: DataLoader(Numbers(), **FOUR, sampler=torch.arange(SAMPLES).flip(0)),
    "NumPy's indices": lambda: DataLoader(Numbers(), **FOUR, sampler=np.arange(SAMPLES)),
    "ranks": lambda: DataLoader(Numbers(), **FOUR, sampler=DistributedSampler(range(SAMPLES), 2, 1)),
    "subset": lambda: DataLoader(Numbers(), **FOUR, sampler=SubsetRandomSampler(range(7, 41), generator())),
    "weighted": lambda: DataLoader(Numbers(), **FOUR, sampler=WeightedRandomSampler([1.0] * SAMPLES, 50)),
    "with replacement": lambda: DataLoader(
        Numbers(), **FOUR, sampler=RandomSampler(range(SAMPLES), True, 90), generator=generator()
    ),
    "with replacement by a generator": lambda: DataLoader(
        Numbers(), **FOUR, generator=(own := generator()), sampler=RandomSampler(range(SAMPLES), True, 90, own)
    ),
    "more than once": lambda: DataLoader(
        Numbers(9), **FOUR, generator=(own := generator()), sampler=RandomSampler(range(9), False, 31, own)
    ),
    "two workers": lambda: DataLoader(Numbers(), **FOUR, **WORKERS, shuffle=True, worker_init_fn=init_worker),
    "two workers that stay": lambda: DataLoader(
        Numbers(), **FOUR, **WORKERS, shuffle=True, persistent_workers=True, generator=generator()
    ),
    "two workers, several at a time": lambda: DataLoader(
        Fetching(), **FOUR, **WORKERS, shuffle=True, collate_fn=as_pair, prefetch_factor=3
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_every_batch_has_its_ids_and_is_what_it_is_without(name: str):
    plain = with_seed(LOADERS[name])
    expected = play(plain, lambda batch: None, 3, None)
    seen, note = notes()
    got = play(wrap(with_seed(LOADERS[name])), note, 3, None)
    assert same(got, expected)
    assert all(ids == indices for ids, indices in seen) and len(seen) == len(expected) - 3 > 0


# Every place to stop is tried where a sampler draws at its end.
@pytest.mark.parametrize(
    "name",
    [
        "shuffled",
        "shuffled by a generator",
        "without the rest",
        "without a rest",
        "with replacement by a generator",
        "more than once",
        "weighted",
        "subset",
    ],
)
@pytest.mark.parametrize("stop", range(13))
def test_a_loop_that_stops_early_finds_the_next_epoch_as_it_would(name: str, stop: int):
    expected = play(with_seed(LOADERS[name]), lambda batch: None, 3, stop)
    seen, note = notes()
    got = play(wrap(with_seed(LOADERS[name])), note, 3, stop)
    assert same(got, expected)
    assert all(ids == indices for ids, indices in seen)


@pytest.mark.parametrize("stop", [0, 5])
@pytest.mark.parametrize("name", ["two workers", "two workers that stay"])
def test_so_does_one_with_workers(name: str, stop: int):
    expected = play(with_seed(LOADERS[name]), lambda batch: None, 3, stop)
    seen, note = notes()
    got = play(wrap(with_seed(LOADERS[name])), note, 3, stop)
    assert same(got, expected)
    assert len(seen) == 3 * (stop + 1) and all(ids == indices for ids, indices in seen)


@pytest.mark.parametrize("persistent", [False, True])
def test_spawned_workers(persistent: bool):
    def make() -> DataLoader:
        return DataLoader(
            Numbers(), 16, shuffle=True, num_workers=1, multiprocessing_context="spawn", persistent_workers=persistent
        )

    expected = play(with_seed(make), lambda batch: None, 1, None)
    seen, note = notes()
    got = play(wrap(with_seed(make)), note, 1, None)
    assert same(got, expected)
    assert len(seen) == 4 and all(ids == indices for ids, indices in seen)


def test_batches_out_of_order_have_their_own_ids():
    loader = wrap(DataLoader(Numbers(), 4, shuffle=True, num_workers=2, in_order=False))
    seen = [(forward(batch), indices_in(batch)) for batch in loader]
    assert len(seen) == 14 and all(ids == indices for ids, indices in seen)


def test_a_training_resumed_in_the_middle_of_an_epoch_has_the_right_ids():
    """As loops do that put the generator back and skip what they have had."""
    loader = wrap(DataLoader(Numbers(), 4, shuffle=True, generator=generator()))
    whole = [forward(batch) for batch in loader]
    resumed = wrap(DataLoader(Numbers(), 4, shuffle=True, generator=generator()))
    seen = []
    for number, batch in enumerate(resumed):
        ids = forward(batch)  # also for a skipped batch: a loop that skips without a forward pass has no ids, see below
        if number >= 6:
            seen.append((ids, indices_in(batch)))
    assert [ids for ids, _ in seen] == whole[6:] and all(ids == indices for ids, indices in seen)


# Where the ids of the batch at hand cannot be known, there are none.


def loader_of(size: int = SAMPLES, **options: Any) -> DataLoader:
    return wrap(DataLoader(Numbers(size), 4, **options))


def test_a_loop_that_prefetches_has_no_ids_rather_than_those_of_the_batch_ahead():
    loader = loader_of()
    for _ in range(2):
        batches = iter(loader)
        ahead = next(batches)
        while ahead is not None:
            batch, ahead = ahead, next(batches, None)
            assert forward(batch) is None


def test_a_loop_that_collects_the_micro_batches_of_a_step_has_none():
    batches = iter(loader_of(40))
    for _ in range(5):
        collected = [next(batches), next(batches)]
        assert [forward(batch) for batch in collected] == [None, None]


def test_after_a_batch_that_was_skipped_there_are_none_until_the_next_epoch():
    loader = loader_of(40)
    for epoch in range(2):
        for number, batch in enumerate(loader):
            if epoch == 0 and number == 3:
                continue
            assert forward(batch) == (indices_in(batch) if epoch == 1 or number < 3 else None)


def test_two_loaders_at_once_have_none():
    for one, other in zip(loader_of(20), loader_of(20)):
        assert forward(one) is None and forward(other) is None


def test_a_loader_inside_the_loop_of_another_takes_nothing_along():
    for number, batch in enumerate(loader_of(12)):
        ids = forward(batch)
        assert ids == indices_in(batch)
        for other in loader_of(8):
            assert forward(other) == indices_in(other)
        assert current().take(4) is None and number < 3


def test_a_batch_of_another_size_has_none_and_the_next_one_has():
    for number, batch in enumerate(loader_of(40)):
        if number % 2:
            assert current().take(3) is None
            assert forward(batch) is None  # they are given once
        else:
            assert forward(batch) == indices_in(batch)
            assert forward(batch) is None


def test_after_the_last_batch_nothing_is_at_hand():
    for batch in loader_of(8):
        pass
    assert forward(batch) is None


def test_after_a_loop_has_been_left_nothing_is_at_hand():
    for batch in loader_of():
        break
    assert forward(batch) is None


def sort_in_place(samples: list[Any]) -> Tensor:
    samples.sort(key=lambda sample: -sample[0][0])
    return torch.stack([sample[0] for sample in samples])


def leave_out(samples: list[Any]) -> Tensor:
    return torch.stack([sample[0] for sample in samples if sample[0][0] % 4 != 1])


def replace(samples: list[Any]) -> Tensor:
    samples[1] = samples[0]
    return torch.stack([sample[0] for sample in samples])


@pytest.mark.parametrize("collate_fn", [sort_in_place, leave_out, replace])
def test_samples_that_collate_fn_moves_or_leaves_out(collate_fn: Callable[[list[Any]], Tensor]):
    for batch in loader_of(40, collate_fn=collate_fn):
        assert forward(batch) is None


def draw_keys(size: int) -> Iterator[Any]:
    for index in range(size):
        yield index, index % 3


class Keyed(Numbers):
    def __getitem__(self, index: tuple[int, int]) -> Any:
        return super().__getitem__(index[0])


class Keys(torch.utils.data.Sampler):
    def __iter__(self) -> Iterator[Any]:
        return draw_keys(20)

    def __len__(self) -> int:
        return 20


def test_keys_that_are_no_integers_are_no_ids_but_sample_id_makes_some():
    for batch in wrap(DataLoader(Keyed(), 4, sampler=Keys())):
        assert forward(batch) is None
    loader = wrap(DataLoader(Keyed(), 4, sampler=Keys()), sample_id=lambda key: 100 * key[1] + key[0])
    for batch in loader:
        assert forward(batch) == [100 * (index % 3) + index for index in indices_in(batch)]


def test_a_batch_of_indices_that_can_be_read_once_is_read_by_the_dataset():
    batches = [iter([3, 1]), iter([2, 0])]
    seen = [(forward(batch), indices_in(batch)) for batch in wrap(DataLoader(Numbers(), batch_sampler=batches))]
    assert seen == [(None, [3, 1]), (None, [2, 0])]


def test_a_sample_id_that_fails_or_is_none_costs_the_ids_and_no_more(caplog: pytest.LogCaptureFixture):
    def sample_id(index: int) -> Any:
        return None if index == 2 else 2**70 if index == 5 else 1 // (9 - index)

    loader = wrap(DataLoader(Numbers(16), 4), sample_id=sample_id)
    assert [forward(batch) for batch in loader] == [None, None, None, [-1, -1, -1, -1]]
    assert "a batch has no ids" in caplog.text


# SampleIds by themselves.


def test_ids_are_given_once_for_an_announcement_and_only_for_its_size():
    ids = SampleIds()
    assert ids.take(2) is None and ids.upcoming() == []
    for given in ([7, 5], (7, 5), torch.tensor([7, 5]), np.array([7, 5])):
        ids.announce(given)
        assert ids.take(2) == [7, 5] and ids.take(2) is None
    ids.announce([7, 5])
    assert ids.take(3) is None and ids.take(2) is None
    ids.announce([1])
    ids.announce([2])
    assert ids.take(1) == [2]
    ids.announce([2])
    ids.forget()
    assert ids.take(1) is None


@pytest.mark.parametrize(
    "wrong", ["12", [1.5], torch.tensor([1.5]), [2**63], [None], torch.tensor(3), 3, torch.tensor([[1, 2]])]
)
def test_ids_are_integers_of_64_bits(wrong: Any):
    with pytest.raises(EgeriaError, match=r"^\[BAD_SAMPLE_IDS\] announce\(\) takes the ids of a batch's samples"):
        SampleIds().announce(wrong)


def test_the_users_word_replaces_a_loaders():
    for batch in loader_of(12):
        current().announce([index + 1000 for index in indices_in(batch)])
        assert forward(batch) == [index + 1000 for index in indices_in(batch)]


def test_a_batch_of_unknown_samples_that_was_not_taken_counts_as_taken_ahead():
    ids, source = SampleIds(), Pass()
    ids.deliver(source, None)
    ids.deliver(source, [1, 2])
    assert ids.take(2) is None and source.runs_ahead


# The loader itself.


def test_a_wrapped_loader_is_the_loader_that_it_was():
    dataset, sampler = Numbers(), RandomSampler(range(SAMPLES))
    loader = DataLoader(dataset, 4, sampler=sampler, collate_fn=as_dict)
    wrapped = wrap(loader)
    assert isinstance(wrapped, DataLoader) and type(wrapped).__name__ == "DataLoader" and len(wrapped) == 14
    for name in ("dataset", "sampler", "batch_sampler", "collate_fn", "batch_size", "worker_init_fn", "generator"):
        assert getattr(wrapped, name) is getattr(loader, name)
    assert len(iter(wrapped)) == 14 and iter(wrapped)._num_workers == 0
    assert wrap(wrapped) is wrapped
    next(iter(loader))
    assert current().take(4) is None


def test_attributes_that_are_set_later_count():
    wrapped = loader_of(8)
    wrapped.collate_fn = as_own
    assert all(type(batch) is Own and forward(batch) == indices_in(batch) for batch in wrapped)


def test_copies_and_pickles_announce_too():
    wrapped = wrap(DataLoader(Numbers(), 4, shuffle=True), sample_id=functools.partial(int.__mul__, 2))
    for other in (copy.copy(wrapped), copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert all(forward(batch) == [2 * index for index in indices_in(batch)] for batch in other)


def test_a_sample_id_given_later_is_taken():
    wrapped = wrap(loader_of(8), sample_id=lambda index: -index)
    assert [forward(batch) for batch in wrapped] == [[0, -1, -2, -3], [-4, -5, -6, -7]]


def test_whoever_makes_a_loader_of_its_attributes_gets_a_plain_one():
    wrapped = loader_of(8)
    for kind in (DataLoader, type(wrapped)):
        other = kind(wrapped.dataset, batch_sampler=wrapped.batch_sampler, collate_fn=wrapped.collate_fn)
        for batch in other:
            assert isinstance(batch, list) and forward(batch) is None


def test_a_loader_that_a_framework_makes_of_the_class_can_be_wrapped_again():
    wrapped = wrap(DataLoader(Numbers(8), 4), sample_id=lambda index: index + 50)
    other = type(wrapped)(wrapped.dataset, batch_sampler=[[6, 2], [3]])
    assert [forward(batch) for batch in other] == [None, None]
    again = wrap(other)
    assert [forward(batch) for batch in again] == [[56, 52], [53]] and wrap(again) is again


def test_workers_end_with_the_loader():
    wrapped = loader_of(num_workers=1, persistent_workers=True)
    batches = iter(wrapped)
    next(batches)
    workers = batches._workers
    assert all(worker.is_alive() for worker in workers)
    del batches, wrapped
    assert not any(worker.is_alive() for worker in workers)


def test_workers_that_a_framework_has_ended_are_started_anew():
    wrapped = loader_of(8, num_workers=1, persistent_workers=True)
    for _ in range(2):
        assert all(forward(batch) == indices_in(batch) for batch in wrapped)
        wrapped._iterator._shutdown_workers()
        wrapped._iterator = None


class Loader(DataLoader):
    """Changes nothing that matters."""

    def __init__(self, dataset: Dataset, **options: Any):
        super().__init__(dataset, collate_fn=as_dict, **options)


class Moving(DataLoader):
    def __iter__(self) -> Iterator[Any]:
        for first, *rest in super().__iter__():
            yield first.double(), *rest


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


def test_a_subclass_that_iterates_as_a_loader_does_is_wrapped():
    wrapped = wrap(Loader(Numbers(), batch_size=4))
    assert isinstance(wrapped, Loader)
    assert all(forward(batch) == indices_in(batch) for batch in wrapped)
    assert isinstance(pickle.loads(pickle.dumps(wrapped)), Loader)


@pytest.mark.parametrize(
    "loader, why",
    [
        (DataLoader(Stream()), r"the Stream, an iterable dataset, have no indices; use .*announce\(ids\)"),
        (Moving(Numbers()), r"a Moving with an iteration of its own; use a torch.utils.data.DataLoader"),
        ([1, 2], r"wrap\(\) takes a torch.utils.data.DataLoader, not a list"),
        (None, r"not a NoneType"),
    ],
)
def test_what_has_no_ids_is_refused(loader: Any, why: str):
    with pytest.raises(EgeriaError, match=rf"^\[NO_SAMPLE_IDS\] .*{why}"):
        egeria.data.wrap(loader)


def test_an_error_of_the_dataset_reaches_the_loop_as_it_is():
    class Broken(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 5:
                raise KeyError("no sample 5")
            return super().__getitem__(index)

    with pytest.raises(KeyError, match="no sample 5"):
        for batch in wrap(DataLoader(Broken(), 4)):
            assert forward(batch) == indices_in(batch)


def test_pinned_batches_keep_their_types_and_ids(monkeypatch: pytest.MonkeyPatch):
    """By the function that pins a loader's batches: a machine without an accelerator pins none."""
    pinned = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    for collate_fn in (None, as_pair, as_dict, as_own):
        wrapped = wrap(DataLoader(Numbers(4), 4, collate_fn=collate_fn))
        (plain,) = DataLoader(Numbers(4), 4, collate_fn=collate_fn)
        iterator = iter(wrapped)
        inner = iterator._iterator
        iterator._iterator = map(pin_memory, inner)
        pinned.clear()
        batch = next(iterator)
        expected = pin_memory(plain)
        assert type(batch) is type(expected) and forward(batch) == [0, 1, 2, 3]
        assert batch.pinned if isinstance(batch, Own) else len(pinned) > 0


def test_a_training_is_the_same_to_the_bit():
    def train(prepare: Callable[[DataLoader], DataLoader]) -> Tensor:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), 1e-4)
        loader = prepare(DataLoader(Numbers(), 4, shuffle=True))
        for _ in range(3):
            for batch, _, _ in loader:
                forward(batch)
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(train(wrap), train(lambda loader: loader))
