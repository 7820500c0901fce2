"""Frozen layers on a GPU are skipped where the cache has what they give, and the training ends with the same bits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from cache_daemon import Daemon, wait_until_kept
from gpu_training import CLASSES, MODULES, Convolutions, Encoder, Options, Training, cuda_options, same
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from egeria import data

SAMPLES, BATCH, EPOCHS, FREEZE = 56, 16, 6, 4  # the last batch of an epoch has 8 samples


class Images(Dataset):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(SAMPLES, 3, 16, 16, generator=generator)
        self.labels = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]


@dataclasses.dataclass
class Result:
    training: Training
    counters: dict[str, int]
    estimates: dict[str, Any]


def run(options: Options, cache: Daemon | None, prefix: int = 2, workers: int = 0) -> Result:
    training = Training(options, batch=BATCH)
    session = training.attach(
        plans=[(FREEZE, prefix)], cache="none" if cache is None else cache.address, cache_use="always"
    )
    generator = torch.Generator().manual_seed(7)
    loader = data.wrap(
        DataLoader(
            Images(),
            BATCH,
            shuffle=True,
            generator=generator,
            num_workers=workers,
            pin_memory=workers > 0,
            drop_last=bool(options.compile),  # another size is another compilation
        )
    )
    for _ in range(EPOCHS):
        for images, labels in loader:
            training.step += 1
            images = images.to(training.device, non_blocking=True)
            if options.channels_last:
                images = images.to(memory_format=torch.channels_last)
            torch.manual_seed(training.step)
            training.take_step(images, labels.to(training.device, non_blocking=True), session)
            if training.step == FREEZE:
                wait_until_kept(session)
        wait_until_kept(session)
    result = Result(training, session.cache_counters(), session.cache_estimates())
    session.close()
    return result


KINDS = {
    "fp32": Options(),
    "bf16": Options(autocast=torch.bfloat16),
    "fp16": cuda_options(autocast=torch.float16),
    "channels-last": Options(channels_last=True, autocast=torch.bfloat16),
    "attention": Options(model=Encoder, optimizer="adamw-fused"),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_skipped_layers_change_no_bit(kind: str, workers: int, patient_cache: Daemon) -> None:
    if workers and kind != "fp32":
        pytest.skip("one kind with workers is enough")
    cached = run(KINDS[kind], patient_cache, workers=workers)
    plain = run(KINDS[kind], None, workers=workers)
    print("cache", kind, cached.counters, cached.estimates)
    assert cached.estimates["state"] == "on", cached.estimates
    assert cached.counters["passes_skipped"] >= 4 and cached.counters["hits"] >= 4 * 8, cached.counters
    assert cached.counters["cache_batches_ahead"] > 0, cached.counters
    assert same(cached.training.losses, plain.training.losses)
    assert same(cached.training.state(), plain.training.state())


class Leaky(Convolutions):
    """Behind the cut it uses what only the stem computes."""

    def forward(self, images: Tensor) -> Tensor:
        first = self.stem(images)
        second = self.blocks[0](first)
        third = self.blocks[1](second)
        return self.head(self.blocks[2](third).mean((2, 3)) + first.mean((2, 3)) + second.mean((2, 3)))


class Noisy(Convolutions):
    """Draws random numbers on the GPU before the frozen layers."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images + 0.1 * torch.randn_like(images))


REFUSED = {
    "TOO_MANY_TENSORS": (Options(model=Leaky), 3),
    "RANDOM": (Options(model=Noisy), 2),
    "COMPILED": (Options(compile="default"), 2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_skipped_is_refused(name: str, patient_cache: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (Leaky, Noisy):
        monkeypatch.setitem(MODULES, model, MODULES[Convolutions])
    options, prefix = REFUSED[name]
    cached = run(options, patient_cache, prefix)
    torch.compiler.reset()
    plain = run(options, None, prefix)
    assert cached.estimates["state"] == "refused" and name in cached.estimates["reason"], cached.estimates
    assert cached.counters["passes_skipped"] == 0
    assert same(cached.training.state(), plain.training.state())
