"""CIFAR-10's binary files: cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin."""

from __future__ import annotations

import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.harness.errors import BenchError
from bench.tasks.datasets import data_folder, unreadable

_RECORD = 1 + 3 * 32 * 32  # bytes: the label, then the planes red, green, blue
_MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
_STD = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)


def read_cifar10(
    data: pathlib.Path | None, training: int, testing: int, size: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Reads the first `training` and `testing` images with their labels.

    Images are float32 [n, 3, size, size], normalised; `size` is 32, or 16 for means of 2 x 2 pixels.
    """
    folder = data_folder(data, "cifar-10-batches-bin")
    files = [folder / f"data_batch_{number}.bin" for number in range(1, 6)]
    return (_read(files[: -(-training // 10_000)], training, size), _read([folder / "test_batch.bin"], testing, size))


def _read(files: list[pathlib.Path], count: int, size: int) -> tuple[Tensor, Tensor]:
    parts = []
    for file in files:
        try:
            values = np.fromfile(file, dtype=np.uint8)
        except OSError as error:
            raise unreadable(file, error) from None
        if values.size == 0 or values.size % _RECORD:
            raise BenchError("BAD_DATA", f"{file} is no CIFAR-10 file: {values.size} bytes, no multiple of {_RECORD}")
        parts.append(values.reshape(-1, _RECORD))
    records = torch.from_numpy(np.concatenate(parts)[:count])
    images = (records[:, 1:].reshape(-1, 3, 32, 32).float() / 255 - _MEAN) / _STD
    return (images if size == 32 else F.avg_pool2d(images, 32 // size)), records[:, 0].long()
