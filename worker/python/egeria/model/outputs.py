"""This file finds the tensors in what a model returns."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor


def tensors_in(value: Any) -> list[Tensor]:
    """Tensors of a result, also of one whose type pytree does not know (an output class)."""
    found: list[Tensor] = []
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for field in dataclasses.fields(leaf):
                found += tensors_in(getattr(leaf, field.name))
    return found
