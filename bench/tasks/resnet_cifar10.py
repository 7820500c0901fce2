"""The common part of the tasks with a ResNet on CIFAR-10."""

from __future__ import annotations

from torch import nn

from bench.harness.task import Quality, step_decay
from bench.tasks.classification import ImageClassification
from bench.tasks.datasets.cifar10 import read_cifar10
from bench.tasks.models.resnet_cifar import CifarResNet


class ResNetCifar10(ImageClassification):
    """The rate drops tenfold at half and at three quarters of the steps. Settings have the depth and the width of the
    network, and the number and the size of the images."""

    quality = Quality("accuracy", "points", higher_is_better=True, scale=100)
    rate = staticmethod(step_decay(0.5, 0.75))

    def load(self) -> None:
        ((self._images, self._labels), (self._test_images, self._test_labels)) = read_cifar10(
            self.data, self.settings["training"], self.settings["testing"], self.settings["size"]
        )

    def build_model(self) -> nn.Module:
        return CifarResNet(self.settings["blocks"], self.settings["width"])
