"""ResNet-50 on Imagenette."""

from __future__ import annotations

from torch import nn

from bench.harness.task import Profile, Quality, step_decay
from bench.tasks.classification import ImageClassification
from bench.tasks.datasets.imagenette import read_imagenette
from bench.tasks.models.resnet50 import ResNet50


class ResNet50Imagenette(ImageClassification):
    """The validation set has 500 images, so that a point of accuracy is five of them: runs are compared by loss."""

    name = "resnet50-imagenette"
    title = "ResNet-50, Imagenette"
    quality = Quality("loss", "nats", higher_is_better=False)
    profiles = {
        "small": Profile(
            steps=1_100,
            batch_size=32,
            evaluations=10,
            settings={
                "width": 16,
                "stem_stride": 4,
                "size": 64,
                "optimizer": "adamw",
                "rate": 2e-3,
                "weight_decay": 0.05,
                "shift": 6,
            },
        ),
        "paper": Profile(
            steps=18_000,
            batch_size=64,
            evaluations=90,
            settings={"width": 64, "stem_stride": 4, "size": 128, "rate": 0.05, "weight_decay": 1e-4, "shift": 16},
        ),
    }
    # The modules take about the same time each; by size, half of the time would be in the first.
    modules = staticmethod(
        lambda model: [
            [model.features.stem, model.features.stages[0]],
            model.features.stages[1],
            [*model.features.stages[2][:3]],
            [*model.features.stages[2][3:]],
            model.features.stages[3][0],
            [*model.features.stages[3][1:]],
            model.head,
        ]
    )
    rate = staticmethod(step_decay(0.5, 0.8, warm_up=0.03))

    def load(self) -> None:
        self._images, self._labels = read_imagenette(self.data, "train", self.settings["size"])
        self._test_images, self._test_labels = read_imagenette(self.data, "val", self.settings["size"])

    def build_model(self) -> nn.Module:
        return ResNet50(self.settings["width"], 10, self.settings["stem_stride"])
