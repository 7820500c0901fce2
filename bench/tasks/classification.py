"""The common part of image classification tasks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.harness.task import Task
from bench.tasks.datasets.augmentation import shift_and_mirror

_EVALUATION_BATCH = 128


class ImageClassification(Task):
    """SGD with momentum, or AdamW, on images that are shifted and mirrored if the settings have a "shift". A subclass's
    load() sets the four tensors."""

    _images: Tensor
    _labels: Tensor
    _test_images: Tensor
    _test_labels: Tensor

    @property
    def training_samples(self) -> int:
        return len(self._labels)

    @property
    def validation_samples(self) -> int:
        return len(self._test_labels)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.settings.get("optimizer") == "adamw":  # from scratch in a thousand steps it gets much farther
            return torch.optim.AdamW(
                model.parameters(), self.settings["rate"], weight_decay=self.settings["weight_decay"]
            )
        return torch.optim.SGD(
            model.parameters(), self.settings["rate"], momentum=0.9, weight_decay=self.settings["weight_decay"]
        )

    def loss(self, model: nn.Module, batch: Tensor, device: torch.device) -> Tensor:
        images = self._images[batch]
        if "shift" in self.settings:
            images = shift_and_mirror(images, self.settings["shift"])
        return F.cross_entropy(model(images.to(device)), self._labels[batch].to(device))

    def evaluate(self, model: nn.Module, samples: Tensor, device: torch.device) -> Tensor:
        sums = torch.zeros(3, dtype=torch.float64)
        for part in samples.split(_EVALUATION_BATCH):
            sums += correct_and_loss(model(self._test_images[part].to(device)), self._test_labels[part].to(device))
        return sums

    def scores(self, sums: Tensor) -> dict[str, float]:
        return accuracy_and_loss(sums)


def labelled_loss(model: nn.Module, batch: Sequence[Tensor], device: torch.device) -> Tensor:
    """The loss of a batch of inputs and labels."""
    inputs, labels = batch
    return F.cross_entropy(model(inputs.to(device)), labels.to(device))


def correct_and_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Sums over a batch: of right answers, of losses, of samples."""
    correct = (outputs.argmax(1) == labels).sum().item()
    return torch.tensor([correct, F.cross_entropy(outputs, labels, reduction="sum").item(), len(labels)]).double()


def accuracy_and_loss(sums: Tensor) -> dict[str, float]:
    """Scores of such sums."""
    return {"accuracy": float(sums[0] / sums[2]), "loss": float(sums[1] / sums[2])}
