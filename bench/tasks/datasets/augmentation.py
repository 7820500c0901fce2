"""Random augmentation of whole batches of images, from torch's global generator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def shift_and_mirror(images: Tensor, padding: int) -> Tensor:
    """Each image [b, c, h, w] shifted by up to `padding` pixels, with zeros from outside, and mirrored by a coin."""
    count, _, height, width = images.shape
    padded = F.pad(images, (padding,) * 4)
    top, left = torch.randint(2 * padding + 1, (2, count, 1))
    rows = top + torch.arange(height)
    columns = left + torch.arange(width)
    columns = torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns)
    each = torch.arange(count)[:, None, None]
    return padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
