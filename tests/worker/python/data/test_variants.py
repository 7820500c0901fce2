"""K variants of each sample: the same ones in each epoch, worker and order; each epoch one of each sample."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from cache_daemon import Daemon, wait_until_kept
from skipped_models import RESNET_LAYERS, resnet, square
from skipping_runs import DictStore, counters_of, train
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler

import egeria
from egeria import EgeriaError
from egeria.data import NodeSampler, Variants, current, wrap

SAMPLES, K = 22, 3


class Noisy(Dataset):
    """Sample i holds i and random numbers of three generators."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        numbers = [random.random(), np.random.rand(), np.random.randn(), float(torch.rand(()))]
        return torch.tensor([float(index), *numbers], dtype=torch.float64)


class Images(Noisy):
    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(3, 16, 16) + index


def variants() -> Variants:
    return Variants(Noisy(), K, seed=7)


def samples_by_id(loader: DataLoader, epochs: int) -> list[dict[int, Tensor]]:
    """The samples of each epoch by their ids."""
    seen = []
    for _ in range(epochs):
        seen.append({})
        for batch in loader:
            ids = current().take(len(batch))
            assert ids is not None and len(set(ids)) == len(ids)
            seen[-1].update(zip(ids, batch))
    return seen


def loader_of(sampler: Any = None, **options: Any) -> DataLoader:
    images = variants()
    sampler = RandomSampler(images.dataset) if sampler is None else sampler
    return wrap(DataLoader(images, 4, sampler=images.one_each(sampler), **options))


def states() -> list[Any]:
    return [
        random.getstate(),
        np.random.get_state()[1].tolist(),
        np.random.get_state()[2:],
        torch.get_rng_state().tolist(),
    ]


def test_a_variant_is_the_same_whenever_and_wherever_it_is_drawn():
    expected = [variants()[index] for index in range(SAMPLES * K)]
    random.seed(1)
    images = variants()
    for index in torch.randperm(SAMPLES * K).tolist():
        assert torch.equal(images[index], expected[index])
    rows = torch.stack(expected)
    assert rows[:, 0].tolist() == [index // K for index in range(SAMPLES * K)]
    for column in range(1, 5):
        assert len(set(rows[:, column].tolist())) == SAMPLES * K
    others = Variants(Noisy(), K, seed=8)
    assert not any(torch.equal(others[index], expected[index]) for index in range(SAMPLES * K))


def test_generators_are_as_they_were():
    images = variants()
    np.random.randn()  # it leaves a second number for the next call
    before = states()
    images[5]
    assert states() == before

    class Broken(Noisy):
        def __getitem__(self, index: int) -> Tensor:
            raise KeyError(random.random())

    with pytest.raises(KeyError):
        Variants(Broken(), K)[1]
    assert states() == before


OPTIONS = {
    "none": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "fork, persistent": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
    "spawn, persistent": {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
}


@pytest.mark.parametrize("workers", OPTIONS)
def test_each_epoch_has_one_of_each_sample_and_k_epochs_all(workers: str):
    epochs = samples_by_id(loader_of(**OPTIONS[workers]), 2 * K)
    images = variants()
    for epoch in epochs:
        assert sorted(index // K for index in epoch) == list(range(SAMPLES))
        assert all(torch.equal(sample, images[index]) for index, sample in epoch.items())
    for cycle in (epochs[:K], epochs[K:]):
        assert sorted(index for epoch in cycle for index in epoch) == list(range(SAMPLES * K))
    orders = {
        tuple(index % K for epoch in epochs[:K] for index in epoch if index // K == sample) for sample in range(SAMPLES)
    }
    assert len(orders) > K  # not all samples in the same order


def test_the_epoch_is_that_of_the_sampler_inside():
    for make in (lambda: DistributedSampler(Noisy(), 2, 1), lambda: NodeSampler(Noisy(), 2, 1, ranks_per_node=1)):
        sampler = make()
        expected = []
        for epoch in range(2 * K):
            sampler.set_epoch(epoch)
            expected.append([variants().index(sample, epoch) for sample in sampler])
        # Told to the sampler, to the one around it, or to neither of them but at the beginning.
        for begin, tell in ((0, True), (4, True), (0, False), (4, False)):
            inside = make()
            one_each = variants().one_each(inside)
            for epoch in range(begin, 2 * K):
                if tell or epoch == begin:
                    (one_each if epoch % 2 else inside).set_epoch(epoch)
                drawn = list(one_each)
                if tell:
                    assert drawn == expected[epoch]
                assert all(index == variants().index(index // K, epoch) for index in drawn)


def test_a_training_that_is_resumed_in_the_middle_of_an_epoch_goes_on_with_the_same_variants():
    def loader() -> DataLoader:
        return loader_of(DistributedSampler(Noisy(), 2, 0))

    whole = loader()
    whole.sampler.set_epoch(4)
    expected = [(current().take(len(batch)), batch) for batch in whole]
    resumed = loader()
    resumed.sampler.set_epoch(4)
    for number, batch in enumerate(resumed):
        ids = current().take(len(batch))
        assert number < 1 or (ids == expected[number][0] and torch.equal(batch, expected[number][1]))


def test_what_comes_is_known_ahead():
    hints = []
    for batch in loader_of():
        hints.append((current().upcoming(), current().take(len(batch))))
    taken = [ids for _, ids in hints]
    assert all(hint == taken[number + 1 : number + 1 + len(hint)] for number, (hint, _) in enumerate(hints))
    assert len(hints[0][0]) == len(taken) - 2  # the last batch is not drawn early


def test_without_its_sampler_an_epoch_has_all_variants():
    (epoch,) = samples_by_id(wrap(DataLoader(variants(), 4, shuffle=True)), 1)
    assert sorted(epoch) == list(range(SAMPLES * K))


def test_frozen_layers_are_skipped_from_the_kth_epoch_on_with_the_bits_of_a_training_without():
    images = Variants(Images(), K)

    def steps() -> Iterator[Any]:
        loader = wrap(
            DataLoader(
                images,
                8,
                sampler=images.one_each(RandomSampler(images.dataset, generator=torch.Generator().manual_seed(2))),
            )
        )
        for _ in range(3 * K):
            for batch in loader:
                yield current().take(len(batch)), (batch,), {}

    hits: list[int] = []

    def note(_: int, __: nn.Module, skipper: Any) -> None:
        if skipper is not None:
            hits.append(counters_of(skipper)["hits"])

    cached = train(resnet, RESNET_LAYERS, 3, steps(), square, DictStore(), each_step=note)
    assert cached.same_as(train(resnet, RESNET_LAYERS, 3, steps(), square))
    assert cached.refusal is None
    per_epoch = -(-SAMPLES // 8)
    first = K * per_epoch  # all have been stored
    assert hits[first] == 0
    last = [after - before for before, after in zip(hits[first:], hits[first + 1 :])]
    assert sum(last) > 0.9 * SAMPLES * (2 * K - 1) and min(last[per_epoch:]) > 0


def test_with_a_session_and_a_cache(patient_cache: Daemon):
    images = Variants(Images(), K)

    def weights(cache: str) -> tuple[dict[str, Tensor], list[int]]:
        torch.manual_seed(0)
        model = resnet()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        loader = wrap(
            DataLoader(
                images,
                8,
                num_workers=2,
                sampler=images.one_each(RandomSampler(images.dataset, generator=torch.Generator().manual_seed(2))),
            )
        )
        hits = []
        with egeria.attach(
            model,
            optimizer,
            modules=RESNET_LAYERS,
            config=egeria.Config(controller="none", plans=[(3, 3)], cache=cache, cache_use="always"),
        ) as session:
            for _ in range(3 * K):
                for batch in loader:
                    loss = square(model(batch))
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    session.step(loss)
                    wait_until_kept(session)
                hits.append(session.cache_counters().get("hits", 0))
        return model.state_dict(), hits

    cached, hits = weights(patient_cache.address)
    plain, _ = weights("none")
    assert all(torch.equal(value, plain[name]) for name, value in cached.items())
    assert hits[K] == 0 and hits[-1] - hits[-2] > SAMPLES / 2  # the first epoch has nothing frozen


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


@pytest.mark.parametrize(
    "dataset,k,why",
    [
        (Stream(), 2, "the samples of the Stream have no numbers"),
        (iter([1]), 2, "have no numbers"),
        ([1, 2], 0, "cannot have 0 variants"),
        ([1, 2], 1.5, "cannot have 1.5 variants"),
    ],
)
def test_what_has_no_variants_is_refused(dataset: Any, k: Any, why: str):
    with pytest.raises(EgeriaError, match=rf"^\[BAD_VARIANTS\] .*{why}"):
        Variants(dataset, k)


def test_an_index_that_is_none_ends_an_iteration():
    assert len(list(iter(variants()))) == SAMPLES * K
    with pytest.raises(IndexError):
        variants()[-1]
