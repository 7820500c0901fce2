"""MobileNetV2 on Imagenette."""

from __future__ import annotations

import math

from torch import nn

from bench.harness.task import Profile, Quality
from bench.tasks.classification import ImageClassification
from bench.tasks.datasets.imagenette import read_imagenette
from bench.tasks.models.mobilenet_v2 import MobileNetV2


class MobileNetV2Imagenette(ImageClassification):
    """Compared by loss, since the validation set is small. The rate falls by half a cosine."""

    name = "mobilenetv2-imagenette"
    title = "MobileNetV2, Imagenette"
    quality = Quality("loss", "nats", higher_is_better=False)
    profiles = {
        "small": Profile(
            steps=1_300,
            batch_size=32,
            evaluations=10,
            settings={
                "width": 0.5,
                "dropout": 0.1,
                "small_images": False,
                "size": 64,
                "optimizer": "adamw",
                "rate": 3e-3,
                "weight_decay": 0.02,
                "shift": 6,
            },
        ),
        "paper": Profile(
            steps=18_000,
            batch_size=64,
            evaluations=90,
            settings={
                "width": 1.0,
                "dropout": 0.2,
                "small_images": False,
                "size": 128,
                "rate": 0.05,
                "weight_decay": 4e-5,
                "shift": 16,
            },
        ),
    }

    # The modules take about the same time each; by size, two thirds of the time would be in the first.
    modules = staticmethod(
        lambda model: [
            [model.stem, *model.blocks[:3]],
            [*model.blocks[3:6]],
            [*model.blocks[6:10]],
            [*model.blocks[10:13]],
            [*model.blocks[13:16]],
            [model.blocks[16], model.last],
            model.head,
        ]
    )

    def load(self) -> None:
        self._images, self._labels = read_imagenette(self.data, "train", self.settings["size"])
        self._test_images, self._test_labels = read_imagenette(self.data, "val", self.settings["size"])

    def rate(self, progress: float) -> float:
        warm_up = 0.03
        if progress < warm_up:
            return (progress + 1e-3) / (warm_up + 1e-3)
        return 0.5 * (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up)))

    def build_model(self) -> nn.Module:
        return MobileNetV2(self.settings["width"], 10, self.settings["dropout"], self.settings["small_images"])
