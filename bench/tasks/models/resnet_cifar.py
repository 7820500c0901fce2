"""The residual networks for CIFAR-10 of He et al., "Deep Residual Learning for Image Recognition", section 4.2, with
projections at the shortcuts that change shape."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bench.tasks.models import initialize_convolutions


class Block(nn.Module):
    """Two 3 x 3 convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        nn.init.zeros_(self.norm2.weight)  # a block begins as the identity: without it, deep ones hardly start
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class CifarResNet(nn.Module):
    """A network of 6n + 2 layers; 56 with `blocks` n = 9."""

    def __init__(self, blocks: int, width: int = 16, classes: int = 10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        shapes = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        self.stages = nn.ModuleList(
            nn.Sequential(Block(inputs, outputs, stride), *(Block(outputs, outputs, 1) for _ in range(blocks - 1)))
            for inputs, outputs, stride in shapes
        )
        self.head = nn.Linear(4 * width, classes)
        initialize_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3)))
