"""Batches for a frozen trunk, as strangers make them. Weights are the plain script's, to the bit."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from frozen_trunk import BATCH, EPOCHS, IMAGES, LABELS, Run, Script, begun, step
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler


def test_a_loop_that_leaves_an_epoch_early(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        loader = run_.loader(batch_size=5)
        for epoch in range(8):
            for images, labels in itertools.islice(loader, 2 + epoch % 3):
                step(run_, model, optimizer, images, labels)
            run_.end_epoch()
        return [model]

    run(script)


def test_nested_loops_over_one_loader(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        loader = run_.loader(drop_last=True, batch_size=5)
        for _ in range(3):
            for images, labels in loader:
                step(run_, model, optimizer, images, labels)
                for others, more in itertools.islice(loader, 2):
                    step(run_, model, optimizer, others, more)
            run_.end_epoch()
        return [model]

    run(script)


def test_two_loaders_zipped(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        one, other = run_.loader(IMAGES[:12], LABELS[:12]), run_.loader(IMAGES[12:], LABELS[12:])
        for _ in range(8):
            for (images, labels), (others, more) in zip(one, other):
                step(run_, model, optimizer, torch.cat([images, others]), torch.cat([labels, more]))
            run_.end_epoch()
        return [model]

    run(script)


def test_two_datasets_with_the_same_indices(run: Run):
    """In alternation, each with a loader of its own: an index names two samples."""

    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        loaders = run_.loader(IMAGES[:12], LABELS[:12]), run_.loader(IMAGES[12:], LABELS[12:])
        for epoch in range(8):
            for images, labels in loaders[epoch % 2]:
                step(run_, model, optimizer, images, labels)
            run_.end_epoch()
        return [model]

    run(script)


def test_a_cycle_of_batches(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        for number, (images, labels) in enumerate(itertools.islice(itertools.cycle(run_.loader()), 30)):
            step(run_, model, optimizer, images, labels)
            if number % 6 == 5:
                run_.end_epoch()
        return [model]

    run(script)


def test_batches_that_are_echoed_and_cut(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        loader = run_.loader(batch_size=6)
        for epoch in range(EPOCHS):
            for images, labels in loader:
                if epoch % 2:
                    step(run_, model, optimizer, images, labels)
                    step(run_, model, optimizer, images, labels)
                else:
                    for part, some in zip(images.split(2), labels.split(2)):
                        step(run_, model, optimizer, part, some)
            run_.end_epoch()
        return [model]

    run(script)


def test_images_that_the_loop_mixes(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        loader = run_.loader()
        for epoch in range(EPOCHS):
            for images, labels in loader:
                if epoch % 2:
                    images = images.lerp(images[torch.randperm(len(images))], 0.3)
                if epoch == 3:
                    images.add_(torch.randn_like(images))
                step(run_, model, optimizer, images, labels)
            run_.end_epoch()
        return [model]

    run(script)


def test_rows_that_the_loop_moves_and_leaves_out(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        loader = run_.loader()
        for epoch in range(EPOCHS):
            for images, labels in loader:
                order = labels.argsort() if epoch % 2 else torch.arange(len(labels))[: 2 + epoch]
                step(run_, model, optimizer, images[order], labels[order])
            run_.end_epoch()
        return [model]

    run(script)


def test_samples_that_come_twice_in_a_batch(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        sampler = WeightedRandomSampler([1.0 + (index % 5) for index in range(24)], 24)
        run_.train(model, optimizer, run_.loader(shuffle=False, sampler=sampler), epochs=7)
        return [model]

    assert run(script).served >= 10


def test_a_batch_of_one(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        run_.train(model, optimizer, run_.loader(IMAGES[:9], LABELS[:9], batch_size=1))
        return [model]

    run(script)


def test_last_batches_of_all_sizes(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        for size in (5, 5, 7, 7, 11, 11):
            run_.train(model, optimizer, run_.loader(batch_size=size), epochs=1)
        return [model]

    assert run(script).served >= 5


class Changing(Dataset):
    """A dataset whose samples change with the epoch, which its owner sets; or with chance."""

    def __init__(self, random: bool = False):
        self.epoch = 0
        self.random = random

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(()) if self.random and self.epoch > 1 else 0.1 * (self.epoch // 3)
        return IMAGES[index] + noise, LABELS[index]


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_change_in_mid_run(workers: int, random: bool, run: Run):
    def script(run_: Script) -> Any:
        samples = Changing(random)
        model, optimizer = begun(run_)
        loader = run_.wrap(DataLoader(samples, BATCH, shuffle=True, num_workers=workers))

        def follow(epoch: int) -> None:
            samples.epoch = epoch

        run_.train(model, optimizer, loader, each_epoch=follow, epochs=6)
        return [model]

    run(script)


def test_persistent_workers_that_drop_the_last_batch(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        loader = run_.loader(batch_size=5, drop_last=True, num_workers=2, persistent_workers=True, prefetch_factor=4)
        run_.train(model, optimizer, loader)
        return [model]

    assert run(script).served >= 10


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(IMAGES, LABELS))


def test_a_dataset_that_is_only_iterated_over(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        run_.train(model, optimizer, run_.wrap(DataLoader(Stream(), BATCH)))
        return [model]

    outcome = run(script)
    assert outcome.served == 0 and "NO_SAMPLE_IDS" in outcome.names, outcome.text


def test_a_loop_without_a_loader(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        for _ in range(EPOCHS):
            for rows in torch.randperm(24).split(BATCH):
                step(run_, model, optimizer, IMAGES[rows], LABELS[rows])
        return [model]

    assert run(script).served == 0


def test_batches_that_a_thread_fetches_ahead(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        loader = run_.loader()

        def ahead() -> Iterator[Any]:
            batches: queue.Queue[Any] = queue.Queue(2)

            def fetch() -> None:
                for batch in loader:
                    batches.put(batch)
                batches.put(None)

            thread = threading.Thread(target=fetch)
            thread.start()
            while (batch := batches.get()) is not None:
                yield batch
            thread.join()

        for _ in range(EPOCHS):
            for images, labels in ahead():
                step(run_, model, optimizer, images, labels)
            run_.end_epoch()
        return [model]

    run(script)


def test_a_collate_function_that_sorts(run: Run):
    def collate(batch: list[Any]) -> Any:
        return torch.utils.data.default_collate(sorted(batch, key=lambda sample: float(sample[0].sum())))

    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        run_.train(model, optimizer, run_.loader(collate_fn=collate))
        return [model]

    run(script)


def test_a_sampler_of_batches(run: Run):
    class Buckets:
        def __iter__(self) -> Iterator[list[int]]:
            for first in torch.randperm(6).tolist():
                yield [first, first + 6, first + 12] if first % 2 else [first, first + 6, first + 12, first + 18]

        def __len__(self) -> int:
            return 6

    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        loader = run_.wrap(DataLoader(TensorDataset(IMAGES, LABELS), batch_sampler=Buckets()))
        run_.train(model, optimizer, loader)
        return [model]

    assert run(script).served >= 10


def test_a_sampler_with_a_generator_of_its_own(run: Run):
    def script(run_: Script) -> Any:
        model, optimizer = begun(run_)
        sampler = RandomSampler(LABELS, generator=torch.Generator().manual_seed(3))
        run_.train(model, optimizer, run_.loader(shuffle=False, sampler=sampler))
        return [model]

    assert run(script).served >= 15
