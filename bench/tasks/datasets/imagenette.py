"""Imagenette as an image folder: imagenette128/{train,val}/CLASS/*.jpg, 128 x 128."""

from __future__ import annotations

import pathlib

import numpy as np
import torch
from torch import Tensor

from bench.harness.errors import BenchError
from bench.tasks.datasets import data_folder, unreadable

_MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
_STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def read_imagenette(data: pathlib.Path | None, split: str, size: int) -> tuple[Tensor, Tensor]:
    """All images of "train" or "val", float32 [n, 3, size, size], normalised, and their labels."""
    try:
        from PIL import Image
    except ImportError:
        raise BenchError("NO_PACKAGE", "this task reads JPEG files; pip install pillow") from None
    folder = data_folder(data, "imagenette128") / split
    files = sorted(folder.glob("*/*.jpg"))
    if not files:
        raise BenchError(
            "NO_DATA",
            f"there is no {folder}/CLASS/*.jpg; docs/reference/benchmarks.md says what must be in the data folder",
        )
    classes = sorted({file.parent.name for file in files})
    images = torch.empty(len(files), 3, size, size, dtype=torch.uint8)
    for target, file in zip(images, files):
        try:
            with Image.open(file) as picture:
                picture = picture.convert("RGB").resize((size, size), Image.Resampling.BOX)
                target.copy_(torch.from_numpy(np.array(picture)).permute(2, 0, 1))
        except OSError as error:
            raise unreadable(file, error) from None
    labels = torch.tensor([classes.index(file.parent.name) for file in files])
    return (images.float() / 255 - _MEAN) / _STD, labels
