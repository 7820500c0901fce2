"""CamVid: camvid192/{train,val}/{images/*.jpg,labels/*.png}, 192 x 256, eleven classes and 11 for void."""

from __future__ import annotations

import pathlib

import numpy as np
import torch
from torch import Tensor

from bench.harness.errors import BenchError
from bench.tasks.datasets import data_folder, unreadable

CLASSES = 11
VOID = 11

_MEAN = torch.tensor([0.41, 0.42, 0.43]).view(3, 1, 1)
_STD = torch.tensor([0.30, 0.31, 0.30]).view(3, 1, 1)


def read_camvid(data: pathlib.Path | None, split: str, height: int) -> tuple[Tensor, Tensor]:
    """All images of a split, float32 [n, 3, height, height * 4 / 3], normalised, and labels [n, height, ...]."""
    try:
        from PIL import Image
    except ImportError:
        raise BenchError("NO_PACKAGE", "this task reads JPEG and PNG files; pip install pillow") from None
    folder = data_folder(data, "camvid192") / split
    files = sorted((folder / "images").glob("*.jpg"))
    if not files:
        raise BenchError(
            "NO_DATA",
            f"there is no {folder}/images/*.jpg; docs/reference/benchmarks.md says what must be in the data folder",
        )
    shape = (height * 4 // 3, height)
    images, labels = [], []
    for file in files:
        label_file = folder / "labels" / f"{file.stem}.png"
        try:
            with Image.open(file) as picture, Image.open(label_file) as label:
                picture = picture.convert("RGB").resize(shape, Image.Resampling.BOX)
                label = label.resize(shape, Image.Resampling.NEAREST)
                images.append(torch.from_numpy(np.array(picture)).permute(2, 0, 1))
                labels.append(torch.from_numpy(np.array(label)))
        except OSError as error:
            raise unreadable(file, error) from None
    return (torch.stack(images).float() / 255 - _MEAN) / _STD, torch.stack(labels).long()
