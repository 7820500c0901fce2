"""The encoder-decoder transformer of Vaswani et al., "Attention Is All You Need", with normalisation before each
sublayer, and with no weights shared between embeddings and output, so that each of them can be frozen by itself."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head attention of `x` [b, n, d] to `memory` [b, m, d]; `mask` [b or 1, 1, n or 1, m] is True where it
    may look."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        query = self.query(x).view(batch, length, self.heads, -1).transpose(1, 2)
        key, value = self.key_value(memory).view(batch, memory.shape[1], 2, self.heads, -1).transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Sequential):
    """Two linear layers around a ReLU."""

    def __init__(self, width: int, inner: int, dropout: float):
        super().__init__(nn.Linear(width, inner), nn.ReLU(), nn.Dropout(dropout), nn.Linear(inner, width))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with its residual connection."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feed_forward = FeedForward(width, inner, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.dropout(self.attention(normed, normed, mask))
        return x + self.dropout(self.feed_forward(self.norm2(x)))


class DecoderLayer(nn.Module):
    """Self-attention, attention to the encoder's output and feed-forward."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attention = Attention(width, heads)
        self.cross_attention = Attention(width, heads)
        self.feed_forward = FeedForward(width, inner, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor, memory_mask: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.dropout(self.attention(normed, normed, mask))
        x = x + self.dropout(self.cross_attention(self.norm2(x), memory, memory_mask))
        return x + self.dropout(self.feed_forward(self.norm3(x)))


class Embedding(nn.Module):
    """Token embeddings with sine positions."""

    def __init__(self, vocabulary: int, width: int, dropout: float, longest: int = 256):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.tokens.weight, std=width**-0.5)
        self.scale = math.sqrt(width)
        self.dropout = nn.Dropout(dropout)
        angles = torch.arange(longest)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], 2).flatten(1), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.tokens(tokens) * self.scale + self.positions[: tokens.shape[1]])


class Head(nn.Sequential):
    """The last normalisation and the logits over the vocabulary."""

    def __init__(self, width: int, vocabulary: int):
        super().__init__(nn.LayerNorm(width), nn.Linear(width, vocabulary))


class Transformer(nn.Module):
    """Called with source and target tokens [b, n] and [b, m], 0 being padding; gives logits [b, m, vocabulary]."""

    def __init__(self, vocabulary: int, width: int, heads: int, inner: int, layers: int, dropout: float):
        super().__init__()
        self.source = Embedding(vocabulary, width, dropout)
        self.encoder = nn.ModuleList(EncoderLayer(width, heads, inner, dropout) for _ in range(layers))
        self.encoder_norm = nn.LayerNorm(width)
        self.target = Embedding(vocabulary, width, dropout)
        self.decoder = nn.ModuleList(DecoderLayer(width, heads, inner, dropout) for _ in range(layers))
        self.head = Head(width, vocabulary)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        source_mask = (source != 0)[:, None, None, :]
        length = target.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()[None, None]
        x = self.source(source)
        for layer in self.encoder:
            x = layer(x, source_mask)
        memory = self.encoder_norm(x)
        y = self.target(target)
        for layer in self.decoder:
            y = layer(y, memory, causal, source_mask)
        return self.head(y)
