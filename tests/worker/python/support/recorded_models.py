"""Models for the tests of recordings, each with what it is called with."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Basic(nn.Module):
    """A residual block with an activation in place that is used twice."""

    def __init__(self, inner: int, outer: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.down = (
            None
            if inner == outer
            else nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(Basic(8, 8), Basic(8, 8))
        self.layer2 = nn.Sequential(Basic(8, 16, 2), Basic(16, 16))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        return self.fc(torch.flatten(self.pool(self.layer2(self.layer1(x))), 1))


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Two embeddings that are added up, activation checkpointing, a scope without gradients, a loss inside."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(65, width), nn.Embedding(64, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(GptBlock(width, 4) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 65)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> dict[str, Tensor | None]:
        with torch.no_grad():
            places = torch.arange(ids.shape[1], device=ids.device)
        x = self.drop(self.tokens(ids) + self.positions(places))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        logits = self.head(self.norm(x))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return {"loss": loss, "logits": logits}


class Encoder(nn.Module):
    """nn.TransformerEncoder under a padding mask, with positions that the model itself holds."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.places = nn.Parameter(torch.randn(1, 64, width))
        layer = nn.TransformerEncoderLayer(width, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids) + self.places[:, : ids.shape[1]]
        return self.head(self.encoder(x, src_key_padding_mask=mask)[:, 0])


def double(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(True))


class UNet(nn.Module):
    """Values that skip several layer modules."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.down3 = double(3, 8), double(8, 16), double(16, 32)
        self.up2, self.join2 = nn.ConvTranspose2d(32, 16, 2, 2), double(32, 16)
        self.up1, self.join1 = nn.ConvTranspose2d(16, 8, 2, 2), double(16, 8)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.down3(F.max_pool2d(b, 2))
        y = self.join2(torch.cat([self.up2(c), b], 1))
        return self.out(self.join1(torch.cat([self.up1(y), a], 1)))


class Branches(nn.Module):
    """Control flow that depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x)) if x.sum() > 0 else torch.tanh(layer(x))
        return self.head(x)


def random_statistics(model: nn.Module) -> nn.Module:
    """BatchNorm that matters: statistics and weights other than those it begins with."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.weight)
    return model


def padding(samples: int, length: int) -> Tensor:
    mask = torch.zeros(samples, length, dtype=torch.bool)
    mask[:, -2:] = True
    return mask


def call_of(name: str, samples: int = 12, length: int = 10) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and keywords for a model of that name."""
    images = torch.randn(samples, 3, 16, 16)
    ids = torch.randint(0, 50, (samples, length))
    return {
        "ResNet": ((images,), {}),
        "UNet": ((images,), {}),
        "Gpt": ((ids,), {"targets": ids}),
        "Encoder": ((ids, padding(samples, length)), {}),
        "Branches": ((torch.randn(samples, 8),), {}),
    }[name]
