"""EfficientNet-Lite0, pretrained on ImageNet, with a small decoder, fine-tuned to segment CamVid's images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.harness.task import Profile
from bench.tasks.datasets.augmentation import Mirrored
from bench.tasks.datasets.camvid import CLASSES, VOID
from bench.tasks.fine_tuning import FineTuning
from bench.tasks.models.lite0 import Lite0Segmentation, layer_modules, pretrained
from bench.tasks.segmentation import CamVidSegmentation

_SETTINGS = {
    "height": 192,
    "width": 64,
    "rate": 4e-3,
    "head_rate": 1,
    "weight_decay": 0.01,
    "warm_up": 0.05,
    "decay": "cosine",
}


class Lite0CamVid(FineTuning, CamVidSegmentation):
    """Images and labels are mirrored together: each pair has two variants, drawn once and for all."""

    name = "lite0-camvid"
    title = "EfficientNet-Lite0 with a decoder, CamVid"
    profiles = {
        "smoke": Profile(2, 8, 2, {**_SETTINGS, "height": 96}),
        "small": Profile(630, 8, 21, _SETTINGS),
        "paper": Profile(3_600, 8, 40, {**_SETTINGS, "width": 256}),
    }
    modules = staticmethod(layer_modules)
    variants = 2

    def load(self) -> None:
        pretrained()  # fails here where it is not installed
        super().load()

    def dataset(self) -> Sequence[Any]:
        return Mirrored(self._images, self._labels)

    def build_model(self) -> nn.Module:
        return Lite0Segmentation(CLASSES, self.settings["width"])

    def loss(self, model: nn.Module, batch: Sequence[Tensor], device: torch.device) -> Tensor:
        images, labels = batch
        return F.cross_entropy(model(images.to(device)), labels.to(device), ignore_index=VOID)
