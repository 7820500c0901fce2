"""Lets torchvision be imported beside a torch for CPUs where its wheel is the one for CUDA.

The operators of that wheel do not load. Two of them have to be there for the import, and one of these, the suppression
of overlapping boxes, for training. To be imported before torchvision.
"""

import importlib.util
import pathlib

import torch


def _suppress(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    order = scores.argsort(descending=True, stable=True)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
    kept = []
    while order.numel():
        best, order = order[0], order[1:]
        kept.append(best)
        low = torch.maximum(boxes[best, :2], boxes[order, :2])
        high = torch.minimum(boxes[best, 2:], boxes[order, 2:])
        shared = (high - low).clamp(min=0).prod(dim=1)
        order = order[shared / (areas[best] + areas[order] - shared) <= threshold]
    return torch.stack(kept) if kept else torch.zeros(0, dtype=torch.int64)


def _load() -> bool:
    """Loads torchvision's own operators."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return True
    try:
        torch.ops.load_library(str(pathlib.Path(found.origin).parent / "_C.so"))
    except OSError:
        return False
    return True


if not _load():
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    torch.library.impl("torchvision::nms", "CPU", _suppress)

    import torchvision.ops.boxes

    torchvision.ops.boxes._assert_has_ops = lambda: None
