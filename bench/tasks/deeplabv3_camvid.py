"""DeepLabv3 with ResNet-50 on CamVid."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.harness.task import Profile
from bench.tasks.datasets.augmentation import shift_and_mirror
from bench.tasks.datasets.camvid import CLASSES, VOID
from bench.tasks.models.deeplab_v3 import DeepLabV3
from bench.tasks.segmentation import CamVidSegmentation


class DeepLabV3CamVid(CamVidSegmentation):
    """Images are shifted and mirrored."""

    name = "deeplabv3-camvid"
    title = "DeepLabv3 (ResNet-50), CamVid"
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

    def build_model(self) -> nn.Module:
        return DeepLabV3(self.settings["width"], CLASSES)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            model.parameters(), self.settings["rate"], momentum=0.9, weight_decay=self.settings["weight_decay"]
        )

    def rate(self, progress: float) -> float:
        """The polynomial of the paper."""
        return (1 - progress) ** 0.9

    def loss(self, model: nn.Module, batch: Tensor, device: torch.device) -> Tensor:
        # Shifted and mirrored together; what comes in from outside is void, which zeros must then stand for.
        labels = (VOID - self._labels[batch]).float().unsqueeze(1)
        both = shift_and_mirror(torch.cat([self._images[batch], labels], 1), self.settings["shift"]).to(device)
        return F.cross_entropy(model(both[:, :3].contiguous()), VOID - both[:, 3].long(), ignore_index=VOID)
