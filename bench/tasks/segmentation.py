"""The common part of tasks that segment CamVid's images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.harness.task import Quality, Task
from bench.tasks.datasets.camvid import CLASSES, VOID, read_camvid


class CamVidSegmentation(Task):
    """Quality is the mean over the classes of intersection over union, void left out."""

    quality = Quality("mean_iou", "points", higher_is_better=True, scale=100)

    def load(self) -> None:
        height = self.settings["height"]
        self._images, self._labels = read_camvid(self.data, "train", height)
        self._test_images, self._test_labels = read_camvid(self.data, "val", height)

    @property
    def training_samples(self) -> int:
        return len(self._images)

    @property
    def validation_samples(self) -> int:
        return len(self._test_images)

    def evaluate(self, model: nn.Module, samples: Tensor, device: torch.device) -> Tensor:
        """The confusion matrix [true class, predicted class], flattened; then the summed loss and its pixels."""
        counts = torch.zeros(CLASSES * CLASSES + 2, dtype=torch.float64)
        for part in samples.split(16):
            outputs, labels = model(self._test_images[part].to(device)), self._test_labels[part].to(device)
            known = labels != VOID
            pairs = labels[known] * CLASSES + outputs.argmax(1)[known]
            counts[:-2] += torch.bincount(pairs, minlength=CLASSES * CLASSES).cpu()
            counts[-2] += F.cross_entropy(outputs, labels, ignore_index=VOID, reduction="sum").item()
            counts[-1] += known.sum().item()
        return counts

    def scores(self, sums: Tensor) -> dict[str, float]:
        matrix = sums[:-2].view(CLASSES, CLASSES)
        both = matrix.diagonal()
        union = matrix.sum(0) + matrix.sum(1) - both
        return {
            "mean_iou": float((both / union.clamp(min=1)).mean()),
            "loss": float(sums[-2] / sums[-1]),
            "pixel_accuracy": float(both.sum() / matrix.sum()),
        }
