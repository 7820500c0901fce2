"""DeepLabv3 with ResNet-50 on CamVid."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.harness.task import Profile, Quality, Task
from bench.tasks.datasets.augmentation import shift_and_mirror
from bench.tasks.datasets.camvid import CLASSES, VOID, read_camvid
from bench.tasks.models.deeplab_v3 import DeepLabV3


class DeepLabV3CamVid(Task):
    """Quality is the mean over the classes of intersection over union, void left out."""

    name = "deeplabv3-camvid"
    title = "DeepLabv3 (ResNet-50), CamVid"
    quality = Quality("mean_iou", "points", higher_is_better=True, scale=100)
    profiles = {
        "small": Profile(
            steps=600,
            batch_size=16,
            evaluations=10,
            settings={"width": 16, "height": 96, "rate": 0.05, "weight_decay": 1e-4, "shift": 12},
        ),
        "paper": Profile(
            steps=9_000,
            batch_size=16,
            evaluations=60,
            settings={"width": 64, "height": 192, "rate": 0.01, "weight_decay": 1e-4, "shift": 24},
        ),
    }

    modules = staticmethod(
        lambda model: [
            [model.features.stem, *model.features.stages[:2]],
            [*model.features.stages[2][:3]],
            [*model.features.stages[2][3:]],
            *model.features.stages[3],
            model.pooling,
            model.head,
        ]
    )

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

    def build_model(self) -> nn.Module:
        return DeepLabV3(self.settings["width"], CLASSES)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            model.parameters(), self.settings["rate"], momentum=0.9, weight_decay=self.settings["weight_decay"]
        )

    def rate(self, progress: float) -> float:
        """The polynomial of the paper."""
        return (1 - progress) ** 0.9

    def loss(self, model: nn.Module, samples: Tensor, device: torch.device) -> Tensor:
        # Shifted and mirrored together; what comes in from outside is void, which zeros must then stand for.
        labels = (VOID - self._labels[samples]).float().unsqueeze(1)
        both = shift_and_mirror(torch.cat([self._images[samples], labels], 1), self.settings["shift"]).to(device)
        return F.cross_entropy(model(both[:, :3].contiguous()), VOID - both[:, 3].long(), ignore_index=VOID)

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
