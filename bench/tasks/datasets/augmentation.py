"""Random augmentation, from torch's global generator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset


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


class Mirrored(Dataset):
    """Images [n, c, h, w] with their labels, which are numbers or maps of h x w; a coin mirrors both."""

    def __init__(self, images: Tensor, labels: Tensor, size: int | None = None):
        """size: that images are enlarged to; None: they stay as they are."""
        self._images, self._labels, self._size = images, labels, size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, label = self._images[index], self._labels[index]
        if self._size is not None:
            image = enlarged(image.unsqueeze(0), self._size)[0]
        if torch.rand(()) < 0.5:
            image, label = image.flip(-1), label.flip(-1) if label.dim() else label
        return image, label

    def __len__(self) -> int:
        return len(self._labels)


def enlarged(images: Tensor, size: int) -> Tensor:
    """Images [n, c, h, w] as [n, c, size, size]."""
    return F.interpolate(images, (size, size), mode="bilinear")
