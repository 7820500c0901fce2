"""K variants of each sample: the same ones in each epoch, worker and order; each epoch one of each sample."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from cache_daemon import Daemon, wait_until_kept
from skipped_models import RESNET_LAYERS, resnet, square
from skipping_runs import DictStore, counters_of, train
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
)

import egeria
from egeria import EgeriaError
from egeria.data import NodeSampler, Variants, current, wrap

SAMPLES, K = 22, 4  # an even number: epochs that are counted twice show


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
    # The first epoch has nothing frozen; its batches are computed for the cache in the second one.
    assert hits[K - 1] == 0 < hits[K] and hits[-1] - hits[-2] > SAMPLES / 2


# The same in one line.


def in_one_line(sampler: Any, **options: Any) -> DataLoader:
    return wrap(DataLoader(Noisy(), 4, sampler=sampler, **options), variants=K, variant_seed=7)


def batches_of(**options: Any) -> DataLoader:
    return wrap(DataLoader(Noisy(), **options), variants=K, variant_seed=7)


LOADERS: dict[str, Callable[[], DataLoader]] = {
    "shuffled": lambda: batches_of(batch_size=4, shuffle=True),
    "in order": lambda: batches_of(batch_size=4),
    "one by one": lambda: batches_of(batch_size=None),
    "a batch_sampler": lambda: batches_of(batch_sampler=BatchSampler(RandomSampler(range(SAMPLES)), 4, False)),
    "lists": lambda: batches_of(batch_sampler=[list(range(11)), tuple(range(11, SAMPLES))]),
    "arrays": lambda: batches_of(batch_sampler=[np.arange(SAMPLES)]),
    "a subset": lambda: wrap(DataLoader(Subset(Noisy(), range(SAMPLES)), 4), variants=K, variant_seed=7),
    "accelerate": lambda: wrap(
        Accelerator(cpu=True).prepare(DataLoader(Noisy(), 4, shuffle=True)), variants=K, variant_seed=7
    ),
    "accelerate, its random sampler": lambda: wrap(
        Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)).prepare(
            DataLoader(Noisy(), 4, shuffle=True)
        ),
        variants=K,
        variant_seed=7,
    ),
    "wrapped already": lambda: wrap(wrap(DataLoader(Noisy(), 4)), variants=K, variant_seed=7),
    "wrapped again": lambda: wrap(batches_of(batch_size=4)),
    "pickled": lambda: pickle.loads(pickle.dumps(batches_of(batch_size=4))),
    "made anew of its class": lambda: type(batches_of(batch_size=4))(Noisy(), 4),
    **{workers: lambda workers=workers: batches_of(batch_size=4, **OPTIONS[workers]) for workers in OPTIONS},
}


@pytest.mark.parametrize("kind", LOADERS)
def test_a_loader_of_variants_in_one_line(kind: str):
    loader, images = LOADERS[kind](), variants()
    epochs = []
    for _ in range(2 * K):
        epochs.append({})
        for batch in loader:
            rows = batch.reshape(-1, 5)
            ids = current().take(len(rows))
            epochs[-1].update(zip(ids, rows))
    for epoch in epochs:
        assert sorted(index // K for index in epoch) == list(range(SAMPLES))
        assert all(torch.equal(sample, images[index]) for index, sample in epoch.items())
    for cycle in (epochs[:K], epochs[K:]):
        assert sorted(index for epoch in cycle for index in epoch) == list(range(SAMPLES * K))
    assert len(loader.dataset) == SAMPLES and not isinstance(loader.dataset, Variants)


def test_the_users_sampler_says_which_epoch_it_is():
    for sampler in (DistributedSampler(Noisy(), 2, 1), NodeSampler(Noisy(), 2, 1, ranks_per_node=1)):
        loader = in_one_line(sampler)
        assert loader.sampler is sampler
        for epoch in (5, 2):
            sampler.set_epoch(epoch)
            (seen,) = samples_by_id(loader, 1)
            assert list(seen) == [variants().index(sample, epoch) for sample in sampler]


def test_a_loader_without_such_a_sampler_is_told_itself():
    loader = in_one_line(RandomSampler(Noisy()))
    for epoch in (5, 2):
        loader.set_epoch(epoch)
        (seen,) = samples_by_id(loader, 1)
        assert sorted(seen) == [variants().index(sample, epoch) for sample in range(SAMPLES)]
    sampler = DistributedSampler(Noisy(), 2, 1)
    in_one_line(sampler).set_epoch(3)
    assert sampler.epoch == 3
    assert not hasattr(wrap(DataLoader(Noisy(), 4)), "set_epoch")


def test_a_prepared_loader_that_is_resumed_goes_on_with_the_same_variants():
    for seedable in (False, True):
        options = DataLoaderConfiguration(use_seedable_sampler=seedable)
        prepared = Accelerator(cpu=True, dataloader_config=options).prepare(DataLoader(Noisy(), 4))
        whole = samples_by_id(wrap(prepared, variants=K), 2)
        prepared.set_epoch(1)
        (rest,) = samples_by_id(wrap(skip_first_batches(prepared, 2), variants=K), 1)
        assert list(rest) == list(whole[1])[8:]


def test_ids_of_the_users_own_tell_variants_apart():
    loader = wrap(DataLoader(Noisy(), 4), sample_id=lambda sample: 1000 + sample, variants=K)
    epochs = samples_by_id(loader, K)
    assert sorted(index for epoch in epochs for index in epoch) == list(range(1000 * K, (1000 + SAMPLES) * K))
    assert all(index // K - 1000 == int(row[0]) for epoch in epochs for index, row in epoch.items())


def test_a_worker_sees_the_users_dataset():
    seen = []

    def look(_: int) -> None:
        info = torch.utils.data.get_worker_info()
        assert type(info.dataset) is Noisy and len(info.dataset) == SAMPLES

    for batch in batches_of(batch_size=4, num_workers=1, worker_init_fn=look):
        seen.append(batch)
    assert len(seen) == -(-SAMPLES // 4)


def test_generators_of_a_loop_are_those_of_a_loader_without_variants():
    def after(**options: Any) -> list[Any]:
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        loader = DataLoader(torch.arange(SAMPLES), 4, shuffle=True)
        orders = [[batch.tolist() for batch in wrap(loader, **options)] for _ in range(2)]
        return [orders, states()]

    assert after(variants=K) == after()


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda: wrap(DataLoader(Stream(), 4), variants=2), r"^\[NO_SAMPLE_IDS\] .*an iterable dataset"),
        (lambda: wrap([1, 2], variants=2), r"^\[NO_SAMPLE_IDS\] .*takes a torch.utils.data.DataLoader"),
        (lambda: wrap(DataLoader(variants(), 4), variants=2), r"^\[BAD_VARIANTS\] .*variants already"),
        (lambda: wrap(DataLoader(Noisy(), 4), variants=0), r"^\[BAD_VARIANTS\] .*cannot have 0 variants"),
        (
            lambda: list(wrap(DataLoader({"a": 1}, sampler=["a"], batch_size=1), variants=2)),
            r"^\[BAD_VARIANTS\] the sampler draws \['a'\]",
        ),
        (
            lambda: wrap(
                Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True)).prepare(
                    DataLoader(Noisy(), 4)
                ),
                variants=2,
            ),
            r"^\[NO_SAMPLE_IDS\] with dispatch_batches=True",
        ),
    ],
)
def test_a_loader_that_can_have_no_variants_is_refused(make: Callable[[], Any], why: str):
    with pytest.raises(EgeriaError, match=why):
        make()


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
