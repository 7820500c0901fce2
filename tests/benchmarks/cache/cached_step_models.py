"""The models of cached_step_time.py, with data of their own."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "worker" / "python" / "examples"))
from cifar_resnet import ResNet


@dataclasses.dataclass
class Case:
    """A model and what it trains on.

    Attributes:
      title: for people.
      modules: as for egeria.attach().
      prefixes: numbers of frozen layer modules that are measured.
      batch: samples of a step.
      data: as many samples, as tensors.
      loss: of a batch.
      optimizer: of the model.
    """

    title: str
    build: Callable[[], nn.Module]
    modules: list[str]
    prefixes: tuple[int, int]
    batch: int
    data: Callable[[int], TensorDataset]
    loss: Callable[[nn.Module, list[Tensor]], Tensor]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]


def resnet(depth: int) -> Case:
    """On images as large as CIFAR-10's; frozen are its first one or two of three stages."""
    return Case(
        f"ResNet-{depth}",
        lambda: ResNet(depth),
        ["stem|layer1", "layer2", "layer3", "fc"],
        (1, 2),
        64,
        _images,
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        _sgd,
    )


def bert() -> Case:
    """12 encoder layers, 128 wide, on 64 tokens; frozen are the embeddings and the first 6 or 10 of them."""
    from transformers import BertConfig, BertForSequenceClassification

    layers = [rf"bert\.encoder\.layer\.{number}" for number in range(12)]
    config = BertConfig(
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=12,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=64,
    )

    def data(samples: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randint(5, 1000, (samples, 64), generator=generator)
        mask = (torch.arange(64) < torch.randint(32, 65, (samples, 1), generator=generator)).long()
        return TensorDataset(tokens, mask, torch.arange(samples) % 2)

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        return model(input_ids=batch[0], attention_mask=batch[1], labels=batch[2]).loss

    return Case(
        "like BERT with 12 layers",
        lambda: BertForSequenceClassification(config),
        ["bert.embeddings", *layers, r"bert\.pooler|classifier"],
        (7, 11),
        16,
        data,
        loss,
        lambda model: torch.optim.AdamW(model.parameters(), 1e-4),
    )


def segmentation() -> Case:
    """Like DeepLabv3 on a ResNet, on 96 x 96 pixels; frozen is the backbone up to its second or third stage."""

    def data(samples: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(1)
        return TensorDataset(
            torch.randn(samples, 3, 96, 96, generator=generator),
            torch.randint(0, 5, (samples, 96, 96), generator=generator),
        )

    return Case(
        "like DeepLabv3",
        _DeepLab,
        ["stem|layer1", "layer2", "layer3", "layer4", "head"],
        (2, 3),
        8,
        data,
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        _sgd,
    )


CASES: dict[str, Callable[[], Case]] = {
    "resnet20": lambda: resnet(20),
    "resnet56": lambda: resnet(56),
    "bert": bert,
    "segmentation": segmentation,
}


def _images(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(samples, 3, 32, 32, generator=generator), torch.arange(samples) % 10)


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2 * dilation, dilation, bias=False), nn.BatchNorm2d(outputs)
    )


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, dilation: int):
        super().__init__()
        self.first = _convolution(inputs, outputs, 3, stride, dilation)
        self.second = _convolution(outputs, outputs, 3, 1, dilation)
        self.shortcut = nn.Identity() if inputs == outputs and stride == 1 else _convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class _Pyramid(nn.Module):
    """The same place looked at over several distances."""

    def __init__(self, inputs: int, width: int, classes: int):
        super().__init__()
        self.branches = nn.ModuleList(
            [_convolution(inputs, width, 1), _convolution(inputs, width, 3, 1, 3), _convolution(inputs, width, 3, 1, 6)]
        )
        self.project = _convolution(3 * width, width, 1)
        self.classify = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([F.relu(branch(x)) for branch in self.branches], 1)
        return self.classify(F.relu(self.project(x)))


class _DeepLab(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def stage(inputs: int, outputs: int, stride: int, dilation: int = 1) -> nn.Sequential:
            return nn.Sequential(_Block(inputs, outputs, stride, dilation), _Block(outputs, outputs, 1, dilation))

        self.stem = nn.Sequential(_convolution(3, 32, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.layer1, self.layer2 = stage(32, 32, 1), stage(32, 64, 2)
        self.layer3, self.layer4 = stage(64, 128, 1, 2), stage(128, 128, 1, 4)
        self.head = _Pyramid(128, 64, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer4(self.layer3(self.layer2(self.layer1(self.stem(x)))))
        return F.interpolate(self.head(y), x.shape[-2:], mode="bilinear", align_corners=False)
