"""A small convolutional network on scikit-learn's handwritten digits: seconds a run, and no data folder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.harness.errors import BenchError
from benchmarks.harness.task import Profile, Quality, Task, step_decay


def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs),
                         nn.ReLU())


class Digits(Task):
    """Accuracy cannot tell policies apart here, being 99 % whatever one does: the validation loss can.

    The profile "smoke" takes a second and shows nothing but that the harness works.
    """

    name = "digits"
    title = "Small network, handwritten digits"
    quality = Quality("loss", "nats", higher_is_better=False)
    profiles = {
        "smoke": Profile(steps=60, batch_size=64, evaluations=3, settings={"rate": 0.01, "training": 1_437}),
        "small": Profile(steps=600, batch_size=64, evaluations=10, settings={"rate": 0.01, "training": 1_437}),
        "paper": Profile(steps=4_000, batch_size=64, evaluations=20, settings={"rate": 0.01, "training": 1_437}),
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

    @property
    def training_samples(self) -> int:
        return len(self._labels)

    @property
    def validation_samples(self) -> int:
        return len(self._test_labels)

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            _block(1, 32, 1), _block(32, 64, 2), _block(64, 64, 1), _block(64, 128, 2),
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), self.settings["rate"], momentum=0.9, weight_decay=1e-4)

    rate = staticmethod(step_decay(0.6, 0.85))

    def loss(self, model: nn.Module, samples: Tensor, device: torch.device) -> Tensor:
        return F.cross_entropy(model(self._images[samples].to(device)), self._labels[samples].to(device))

    def evaluate(self, model: nn.Module, samples: Tensor, device: torch.device) -> Tensor:
        outputs = model(self._test_images[samples].to(device))
        labels = self._test_labels[samples].to(device)
        return torch.stack([(outputs.argmax(1) == labels).double().sum(),
                            F.cross_entropy(outputs, labels, reduction="sum").double(),
                            torch.tensor(float(len(samples)), dtype=torch.float64, device=outputs.device)])

    def scores(self, sums: Tensor) -> dict[str, float]:
        return {"accuracy": float(sums[0] / sums[2]), "loss": float(sums[1] / sums[2])}
