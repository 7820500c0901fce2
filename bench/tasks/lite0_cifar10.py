"""EfficientNet-Lite0, pretrained on ImageNet, fine-tuned on CIFAR-10 at 64 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bench.harness.task import Profile, Quality
from bench.tasks.classification import ImageClassification, labelled_loss
from bench.tasks.datasets.augmentation import Mirrored, enlarged
from bench.tasks.datasets.cifar10 import read_cifar10
from bench.tasks.fine_tuning import FineTuning
from bench.tasks.models.lite0 import Lite0Classifier, layer_modules, pretrained

_SETTINGS = {
    "training": 4_000,
    "testing": 3_000,
    "size": 64,
    "rate": 2e-3,
    "head_rate": 1,
    "weight_decay": 0.01,
    "warm_up": 0.05,
    "decay": "cosine",
}


class Lite0Cifar10(FineTuning, ImageClassification):
    """Images are enlarged to twice their size, and mirrored: each has two variants, drawn once and for all."""

    name = "lite0-cifar10"
    title = "EfficientNet-Lite0, CIFAR-10"
    quality = Quality("accuracy", "points", higher_is_better=True, scale=100)
    profiles = {
        "smoke": Profile(8, 8, 2, {**_SETTINGS, "training": 32, "testing": 16}),
        "small": Profile(1_250, 32, 20, _SETTINGS),
        "paper": Profile(8_000, 64, 40, {**_SETTINGS, "training": 50_000, "testing": 10_000, "size": 128}),
    }
    modules = staticmethod(layer_modules)
    loss = staticmethod(labelled_loss)
    variants = 2

    def load(self) -> None:
        pretrained()  # fails here where it is not installed
        (images, labels), (self._test_images, self._test_labels) = read_cifar10(
            self.data, self.settings["training"], self.settings["testing"], 32
        )
        self._training = Mirrored(images, labels, self.settings["size"])
        self._labels = labels

    def dataset(self) -> Sequence[Any]:
        return self._training

    def build_model(self) -> nn.Module:
        return Lite0Classifier(classes=10)

    def evaluate(self, model: nn.Module, samples: Tensor, device: torch.device) -> Tensor:
        return super().evaluate(lambda images: model(enlarged(images, self.settings["size"])), samples, device)
