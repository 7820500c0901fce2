"""Models with something that crosses, or must not cross, the border behind frozen layers; for the tests of
skipping."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import pathlib
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_EXAMPLES = pathlib.Path(__file__).resolve().parents[4] / "worker" / "python" / "examples"
_generator = torch.Generator().manual_seed(1)
IMAGES = torch.randn(22, 3, 16, 16, generator=_generator)
TOKENS = torch.randint(5, 200, (22, 12), generator=_generator)
MASK = torch.ones(22, 12, dtype=torch.long)
MASK[1::3, 8:] = 0
VECTORS = torch.randn(22, 8, generator=_generator)
LABELS = torch.arange(22) % 2


def example(name: str) -> Any:
    """An example script as a module."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, _EXAMPLES / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def resnet() -> nn.Module:
    return example("cifar_resnet").ResNet(8)


RESNET_LAYERS = ["stem", "layer1", "layer2", "layer3", "fc"]


def images(ids: list[int]) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    return (IMAGES[ids],), {}


def vectors(ids: list[int]) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    return (VECTORS[ids],), {}


def square(output: Tensor) -> Tensor:
    return output.square().mean()


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class WithLowLevelFeatures(nn.Module):
    """Like DeepLabv3+: the head also takes what an early layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _convolution(3, 8, 2)
        self.first = _convolution(8, 8)
        self.second = _convolution(8, 16, 2)
        self.third = _convolution(16, 16)
        self.low = nn.Conv2d(8, 4, 1)
        self.head = nn.Conv2d(20, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        low = self.first(self.stem(x))
        high = F.interpolate(self.third(self.second(low)), low.shape[-2:])
        return F.interpolate(self.head(torch.cat([high, self.low(low)], 1)), x.shape[-2:])


class UNet(nn.Module):
    """Each stage down is joined with the one up of the same size."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.down3 = _convolution(3, 8), _convolution(8, 16, 2), _convolution(16, 32, 2)
        self.up2, self.up1 = _convolution(48, 16), _convolution(24, 8)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(first)
        third = self.down3(second)
        second = self.up2(torch.cat([F.interpolate(third, scale_factor=2), second], 1))
        return self.out(self.up1(torch.cat([F.interpolate(second, scale_factor=2), first], 1)))


class Upwards(nn.Module):
    """The way up of a U-Net in one."""

    def __init__(self, up2: nn.Module, up1: nn.Module) -> None:
        super().__init__()
        self.up2, self.up1 = up2, up1

    def forward(self, stages: list[Tensor]) -> Tensor:
        first, second, third = stages
        second = self.up2(torch.cat([F.interpolate(third, scale_factor=2), second], 1))
        return self.up1(torch.cat([F.interpolate(second, scale_factor=2), first], 1))


class Encoder(nn.Module):
    """torch's own transformer layers, with a mask by keyword."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(200, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(32, 4)
        self.batch_first = batch_first

    def forward(self, tokens: Tensor, *, padding: Tensor | None = None) -> Tensor:
        if not self.batch_first:
            tokens = tokens.t()
        x = self.encoder(self.embedding(tokens), src_key_padding_mask=padding)
        return self.head(x.mean(1 if self.batch_first else 0))


def encoder_layers(model: Encoder) -> list[nn.Module]:
    return [model.embedding, *model.encoder.layers, model.head]


class ThreeLayers(nn.Module):
    """a, b, c and what subclasses do between them."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, width), nn.Linear(width, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


class Repeated(ThreeLayers):
    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(self.a(x))))


class Tied(ThreeLayers):
    """The head's weight is that of a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Linear(8, 8)
        self.c.weight = self.a.weight


class SecretlyNoisy(ThreeLayers):
    """A dropout that is no submodule."""

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(F.dropout(self.a(x), 0.5, self.training)))


class Normalising(ThreeLayers):
    """A model in which a sample's output depends on the other samples."""

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x - x.mean(0))))


class Picking(ThreeLayers):
    """Uses a frozen layer's output where a value is rarely so large: no single batch shows it."""

    def forward(self, x: Tensor) -> Tensor:
        early = self.a(x)
        late = self.b(torch.relu(early))
        return self.c(torch.where(x[:, :1] > 1e6, early, late))


class Remembering(ThreeLayers):
    """Leaves a frozen layer's output where the loss may find it."""

    def forward(self, x: Tensor) -> Tensor:
        self.early = self.a(x)
        return self.c(self.b(self.early))


class _Keeper(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.last = super().forward(x)
        return self.last


class KeepingInside(ThreeLayers):
    """A frozen layer leaves its output in an attribute of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a = _Keeper(8, 8)


class Objects(ThreeLayers):
    """A layer returns an object."""

    class Box:
        def __init__(self, value: Tensor) -> None:
            self.value = value

    class Boxing(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return Objects.Box(super().forward(x))

    def __init__(self) -> None:
        super().__init__()
        self.a = Objects.Boxing(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x).value))


class Late(ThreeLayers):
    """A layer that trains comes first."""

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(self.before(x))))

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(8, 8)


class Shy(ThreeLayers):
    """Its frozen layer's weights are used, but it is never called."""

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(F.linear(x, self.a.weight, self.a.bias)))


class Counting(ThreeLayers):
    """Something of Python's own decides after how many calls the result is another."""

    def __init__(self) -> None:
        super().__init__()
        self.state = itertools.count(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x)) * next(self.state))


class Picky(ThreeLayers):
    """Looks into what a frozen layer gives."""

    def forward(self, x: Tensor) -> Tensor:
        early = self.a(x)
        if not bool(early.isfinite().all()):
            raise ValueError("not finite")
        return self.c(self.b(early))


class Whispering(ThreeLayers):
    """A frozen layer leaves what it computes inside where a later one finds it."""

    class Inner(nn.Linear):
        def __init__(self, board: dict[str, Tensor]) -> None:
            super().__init__(8, 8)
            self.board = board

        def forward(self, x: Tensor) -> Tensor:
            hidden = super().forward(x)
            self.board["hidden"] = hidden
            return hidden.relu()

    def __init__(self) -> None:
        super().__init__()
        self.board: dict[str, Tensor] = {}
        self.a = Whispering.Inner(self.board)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x)) + self.board["hidden"])


class Masked(nn.Module):
    """Takes another way, which rounds otherwise, where no element of a batch is masked."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = _MaskedLayer(), nn.Linear(8, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.c(self.a(x, mask))


class _MaskedLayer(nn.Linear):
    def __init__(self) -> None:
        super().__init__(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = super().forward(x)
        if mask.all():
            return x / 3
        return x * (1 / 3) * mask


class Selecting(ThreeLayers):
    """A frozen layer works on as many rows as hold something."""

    class Inner(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            chosen = x[:, 0] > 0
            out = torch.zeros(len(x), 8)
            out[chosen] = super().forward(x[chosen])
            return out

    def __init__(self) -> None:
        super().__init__()
        self.a = Selecting.Inner(8, 8)


class Packing(Picking):
    """Returns a data class."""

    @dataclasses.dataclass
    class Result:
        scores: Tensor

    def forward(self, x: Tensor) -> Any:
        return Packing.Result(super().forward(x))
