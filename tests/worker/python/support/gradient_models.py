"""A ResNet-8 and a small transformer with labelled random data that can be learned, for tests of gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10


class Block(nn.Module):
    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.last_norm = nn.BatchNorm2d(width)
        self.shortcut = nn.Conv2d(channels, width, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.last_norm(self.second(F.relu(self.norm(self.first(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet8(nn.Module):
    """One block per stage, as in the CIFAR example."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.ModuleList([Block(8, 8, 1), Block(8, 16, 2), Block(16, 32, 2)])
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=(2, 3)))


class Transformer(nn.Module):
    """Token embedding with learned positions, three encoder layers without dropout, mean pooling."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 24)
        self.positions = nn.Parameter(torch.zeros(1, 12, 24))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(24, 2, 48, dropout=dropout, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(24, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


MODULES = {
    "resnet": ["stem", r"blocks\.0", r"blocks\.1", r"blocks\.2", "head"],
    "transformer": [["embed"], r"layers\.0", r"layers\.1", r"layers\.2", "head"],
}


def make_model(kind: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return ResNet8() if kind == "resnet" else Transformer()


def make_batch(kind: str, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random inputs whose labels a model can learn."""
    random = torch.Generator().manual_seed(seed)
    if kind == "resnet":
        labels = torch.randint(CLASSES, (samples,), generator=random)
        inputs = torch.randn(samples, 3, 16, 16, generator=random)
        return inputs + (labels.float().view(-1, 1, 1, 1) - CLASSES / 2) / 10, labels
    tokens = torch.randint(32, (samples, 12), generator=random)
    return tokens, tokens.sum(dim=1) % CLASSES
