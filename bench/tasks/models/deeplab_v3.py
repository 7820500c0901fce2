"""DeepLabv3 of Chen et al., "Rethinking Atrous Convolution for Semantic Image Segmentation", with ResNet-50 at an
output stride of 16."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.tasks.models.resnet50 import Features

_RATES = (6, 12, 18)


def _convolution(inputs: int, outputs: int, kernel: int, dilation: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, padding=dilation * (kernel // 2), dilation=dilation, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class PyramidPooling(nn.Module):
    """Convolutions at several rates and the mean of the image, side by side, and their mixture."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.branches = nn.ModuleList(
            [_convolution(inputs, outputs, 1), *(_convolution(inputs, outputs, 3, rate) for rate in _RATES)]
        )
        self.image = nn.Sequential(nn.Conv2d(inputs, outputs, 1), nn.ReLU())  # one value a channel: no normalisation
        self.mix = nn.Sequential(_convolution(outputs * (len(_RATES) + 2), outputs, 1), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        mean = self.image(x.mean((2, 3), keepdim=True)).expand(-1, -1, *x.shape[2:])
        return self.mix(torch.cat([*(branch(x) for branch in self.branches), mean], 1))


class DeepLabV3(nn.Module):
    """Images [n, 3, h, w] to logits [n, classes, h, w]."""

    def __init__(self, width: int = 64, classes: int = 21):
        super().__init__()
        self.features = Features(width, strides=(1, 2, 2, 1), dilations=(1, 1, 1, 2))
        self.pooling = PyramidPooling(self.features.channels, 4 * width)
        self.head = nn.Sequential(_convolution(4 * width, 4 * width, 3), nn.Conv2d(4 * width, classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        out = self.head(self.pooling(self.features(x)))
        return F.interpolate(out, size=x.shape[2:], mode="bilinear", align_corners=False)
