"""This file fills in what a store lacks of a batch: its samples are computed alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from egeria.cache.model_call import Call
from egeria.cache.padded_lengths import as_wide_as


class Part(NamedTuple):
    """Holds some of the missing samples: their rows in the batch, and a call in which they come first. Copies of one of
    them are behind them, up to a number that makes no difference. Texts may be padded to another length."""

    rows: list[int]
    call: Call


def fill_in(
    tensors: Sequence[Tensor], missing: list[int], parts: Sequence[Part], compute: Callable[[Call], Sequence[Tensor]]
) -> list[Tensor]:
    """Fills in the rows of the missing samples, of which these parts consist, and returns them."""
    computed = [
        [as_wide_as(tensor, rows[: len(part.rows)]) for tensor, rows in zip(tensors, compute(part.call))]
        for part in parts
    ]
    places = {row: place for place, row in enumerate(row for part in parts for row in part.rows)}
    order = [places[row] for row in missing]
    filled = [torch.cat(pieces)[order] for pieces in zip(*computed)]
    for tensor, rows in zip(tensors, filled):
        tensor[missing] = rows.to(tensor.device)
    return filled
