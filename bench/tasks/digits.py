"""A small convolutional network on scikit-learn's handwritten digits: seconds a run, and no data folder."""

from __future__ import annotations

import torch
from torch import nn

from bench.harness.errors import BenchError
from bench.harness.task import Profile, Quality, step_decay
from bench.tasks.classification import ImageClassification

_SETTINGS = {"training": 1_437, "rate": 0.01, "weight_decay": 1e-4}


def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class Digits(ImageClassification):
    """Accuracy cannot tell policies apart here, being 99 % whatever one does: the validation loss can.

    The profile "smoke" takes a second and shows nothing but that the harness works.
    """

    name = "digits"
    title = "Small network, handwritten digits"
    quality = Quality("loss", "nats", higher_is_better=False)
    profiles = {
        "smoke": Profile(steps=60, batch_size=64, evaluations=3, settings=_SETTINGS),
        "small": Profile(steps=600, batch_size=64, evaluations=10, settings=_SETTINGS),
        "paper": Profile(steps=4_000, batch_size=64, evaluations=20, settings=_SETTINGS),
    }

    def load(self) -> None:
        try:
            from sklearn import datasets
        except ImportError:
            raise BenchError("NO_DATA", "digits needs scikit-learn; pip install scikit-learn") from None
        digits = datasets.load_digits()
        order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
        images = (torch.tensor(digits.images, dtype=torch.float32) / 16).unsqueeze(1)[order]
        labels = torch.tensor(digits.target)[order]
        count = self.settings["training"]
        self._images, self._labels = images[:count], labels[:count]
        self._test_images, self._test_labels = images[1_437:], labels[1_437:]

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            _block(1, 32, 1),
            _block(32, 64, 2),
            _block(64, 64, 1),
            _block(64, 128, 2),
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
        )

    rate = staticmethod(step_decay(0.6, 0.85))
