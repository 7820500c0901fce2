"""ResNet-50 of He et al., "Deep Residual Learning for Image Recognition", table 1, with the stride of a stage at its
3 x 3 convolution; as the backbone of DeepLabv3 with dilation in place of the last strides."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bench.tasks.models import initialize_convolutions

BLOCKS = (3, 4, 6, 3)
EXPANSION = 4


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions."""

    def __init__(self, inputs: int, width: int, stride: int, dilation: int):
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=dilation, dilation=dilation, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        nn.init.zeros_(self.norm3.weight)  # a block begins as the identity
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = F.relu(self.norm2(self.conv2(out)))
        return F.relu(self.norm3(self.conv3(out)) + self.shortcut(x))


class Features(nn.Module):
    """The stem and the four stages: images [n, 3, h, w] to [n, 32 * width, h / stride, w / stride].

    Args:
      width: channels of the stem; 64 in the paper.
      stem_stride: 4, by a convolution and a pooling of stride 2; 2, by the convolution alone, for small images.
      strides, dilations: of the stages.
    """

    def __init__(
        self,
        width: int = 64,
        stem_stride: int = 4,
        strides: tuple[int, ...] = (1, 2, 2, 2),
        dilations: tuple[int, ...] = (1, 1, 1, 1),
    ):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1) if stem_stride == 4 else nn.Identity(),
        )
        inputs = width
        stages = []
        for index, (blocks, stride, dilation) in enumerate(zip(BLOCKS, strides, dilations)):
            layers = []
            for block in range(blocks):
                layers.append(Bottleneck(inputs, width << index, stride if block == 0 else 1, dilation))
                inputs = EXPANSION * (width << index)
            stages.append(nn.Sequential(*layers))
        self.stages = nn.ModuleList(stages)
        self.channels = inputs
        initialize_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return x


class ResNet50(nn.Module):
    """The classifier: logits [n, classes]."""

    def __init__(self, width: int = 64, classes: int = 1_000, stem_stride: int = 4):
        super().__init__()
        self.features = Features(width, stem_stride)
        self.head = nn.Linear(self.features.channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))
