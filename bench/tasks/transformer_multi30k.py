"""Transformers that translate English to German, on Multi30k: "base" with six layers a side, "tiny" with two."""

from __future__ import annotations

import math
import zlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.harness.task import Profile, Quality, Task
from bench.tasks.datasets import multi30k
from bench.tasks.models.transformer import Transformer

# Batches whose sentences are sorted by length together, so that little of a batch is padding.
_BUCKET = 16


class _Translation(Task):
    """Quality is the loss per target token on the validation set, without label smoothing."""

    quality = Quality("loss", "nats", higher_is_better=False)
    modules = staticmethod(
        lambda model: [model.source, *model.encoder, [model.encoder_norm, model.target], *model.decoder, model.head]
    )

    def load(self) -> None:
        self._pairs = multi30k.Pairs(self.data, self.settings["vocabulary"], self.settings["longest"])
        self._pairs.training = self._pairs.training[: self.settings.get("pairs")]
        self._lengths = torch.tensor([len(target) for _, target in self._pairs.training])

    @property
    def training_samples(self) -> int:
        return len(self._pairs.training)

    @property
    def validation_samples(self) -> int:
        return len(self._pairs.validation)

    def checksum(self) -> int:
        sums = [zlib.crc32(target.numpy().tobytes()) for _, target in self._pairs.training[:1_000]]
        return zlib.crc32(repr(sums).encode())

    def build_model(self) -> nn.Module:
        shape = {name: self.settings[name] for name in ("width", "heads", "inner", "layers", "dropout")}
        return Transformer(self.settings["vocabulary"], **shape)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), self.settings["rate"], betas=(0.9, 0.98), weight_decay=0.01)

    def rate(self, progress: float) -> float:
        """A linear rise, then the inverse square root of the paper, or half a cosine down to 0."""
        warm_up = self.settings["warm_up"]
        if progress < warm_up:
            return (progress + 1 / self.profile.steps) / (warm_up + 1 / self.profile.steps)
        if self.settings["decay"] == "inverse-root":
            return math.sqrt(warm_up / progress)
        return 0.5 * (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up)))

    def order(self, epoch: int, generator: torch.Generator) -> Tensor:
        """Batches of sentences of about the same length, in random order."""
        batch = self.profile.batch_size
        shuffled = torch.randperm(self.training_samples, generator=generator)
        batches = [
            part
            for bucket in shuffled.split(_BUCKET * batch)
            for part in bucket[self._lengths[bucket].argsort(stable=True)].split(batch)
            if len(part) == batch
        ]
        return torch.cat([batches[index] for index in torch.randperm(len(batches), generator=generator)])

    def loss(self, model: nn.Module, batch: Tensor, device: torch.device) -> Tensor:
        source, target = (tokens.to(device) for tokens in multi30k.batch(self._pairs.training, batch))
        logits = model(source, target[:, :-1])
        return F.cross_entropy(
            logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=multi30k.PAD, label_smoothing=0.1
        )

    def evaluate(self, model: nn.Module, samples: Tensor, device: torch.device) -> Tensor:
        sums = torch.zeros(3, dtype=torch.float64)
        lengths = torch.tensor([len(self._pairs.validation[index][1]) for index in samples.tolist()])
        for part in samples[lengths.argsort(stable=True)].split(64):
            source, target = (tokens.to(device) for tokens in multi30k.batch(self._pairs.validation, part))
            logits, labels = model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten()
            real = labels != multi30k.PAD
            losses = F.cross_entropy(logits, labels, ignore_index=multi30k.PAD, reduction="sum")
            right = (logits.argmax(1) == labels)[real].sum()
            sums += torch.stack([losses.double(), right.double(), real.sum().double()]).cpu()
        return sums

    def scores(self, sums: Tensor) -> dict[str, float]:
        return {"loss": float(sums[0] / sums[2]), "token_accuracy": float(sums[1] / sums[2])}


class TransformerTiny(_Translation):
    """Two layers a side."""

    name = "transformer-tiny-multi30k"
    title = "Transformer-Tiny, Multi30k English to German"
    profiles = {
        "small": Profile(
            steps=700,
            batch_size=64,
            evaluations=10,
            settings={
                "layers": 2,
                "width": 128,
                "heads": 4,
                "inner": 512,
                "dropout": 0.1,
                "vocabulary": 4_000,
                "longest": 40,
                "rate": 2e-3,
                "warm_up": 0.05,
                "decay": "cosine",
            },
        ),
        "paper": Profile(
            steps=20_000,
            batch_size=128,
            evaluations=20,
            settings={
                "layers": 2,
                "width": 256,
                "heads": 4,
                "inner": 1_024,
                "dropout": 0.1,
                "vocabulary": 8_000,
                "longest": 100,
                "rate": 1e-3,
                "warm_up": 0.1,
                "decay": "inverse-root",
            },
        ),
    }


class TransformerBase(_Translation):
    """Six layers a side; in the profile "small" a fifth as wide as in the paper."""

    name = "transformer-base-multi30k"
    title = "Transformer-Base, Multi30k English to German"
    profiles = {
        "small": Profile(
            steps=900,
            batch_size=32,
            evaluations=10,
            settings={
                "layers": 6,
                "width": 96,
                "heads": 4,
                "inner": 384,
                "dropout": 0.1,
                "vocabulary": 4_000,
                "longest": 40,
                "rate": 1.5e-3,
                "warm_up": 0.08,
                "decay": "cosine",
            },
        ),
        "paper": Profile(
            steps=20_000,
            batch_size=256,
            evaluations=20,
            settings={
                "layers": 6,
                "width": 512,
                "heads": 8,
                "inner": 2_048,
                "dropout": 0.1,
                "vocabulary": 10_000,
                "longest": 100,
                "rate": 7e-4,
                "warm_up": 0.2,
                "decay": "inverse-root",
            },
        ),
    }
