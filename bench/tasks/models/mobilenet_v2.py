"""MobileNetV2 of Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", table 2."""

from __future__ import annotations

from torch import Tensor, nn

from bench.tasks.models import initialize_convolutions

# Expansion, channels, repeats and stride of each row.
_ROWS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _scaled(channels: int, width: float) -> int:
    """`width` times the channels, as a multiple of 8 that is not over a tenth smaller."""
    scaled = max(8, int(width * channels + 4) // 8 * 8)
    return scaled + 8 if scaled < 0.9 * width * channels else scaled


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    ]


class InvertedResidual(nn.Module):
    """Expands, filters each channel by itself, and projects without a nonlinearity."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int):
        super().__init__()
        inner = inputs * expansion
        expand = _convolution(inputs, inner, 1) if expansion > 1 else []
        self.layers = nn.Sequential(
            *expand,
            *_convolution(inner, inner, 3, stride, groups=inner),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.residual = stride == 1 and inputs == outputs
        if self.residual:
            nn.init.zeros_(self.layers[-1].weight)  # begins as the identity

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


class MobileNetV2(nn.Module):
    """Images to logits.

    Args:
      width: the multiplier of all channels.
      small_images: strides of 1 in the stem and in the second row.
    """

    def __init__(self, width: float = 1.0, classes: int = 1_000, dropout: float = 0.2, small_images: bool = False):
        super().__init__()
        channels = _scaled(32, width)
        self.stem = nn.Sequential(*_convolution(3, channels, 3, 1 if small_images else 2))
        blocks = []
        for row, (expansion, outputs, repeats, stride) in enumerate(_ROWS):
            for repeat in range(repeats):
                step = stride if repeat == 0 and not (small_images and row == 1) else 1
                blocks.append(InvertedResidual(channels, _scaled(outputs, width), step, expansion))
                channels = _scaled(outputs, width)
        self.blocks = nn.ModuleList(blocks)
        last = _scaled(1_280, max(1.0, width))
        self.last = nn.Sequential(*_convolution(channels, last, 1))
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, classes))
        initialize_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x).mean((2, 3)))
