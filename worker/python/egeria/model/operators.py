"""This file reads calls of torch's operators, as a TorchDispatchMode sees them; in a pass there are hundreds."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


def tensors_among(value: Any) -> list[Tensor]:
    """Returns the tensors among an operator's arguments or results: there are no other containers than these."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for entry in value for tensor in tensors_among(entry)]
    if isinstance(value, dict):
        return tensors_among(list(value.values()))
    return []


def written_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Returns the tensors that this call of an operator writes to."""
    written = _written(func)
    values = [kwargs.get(name) if position >= len(args) else args[position] for position, name in written]
    return tensors_among(values) if values else []


@functools.cache
def _written(func: Any) -> list[tuple[int, str]]:
    """Returns the positions and names of arguments that the operator writes to."""
    return [
        (position, argument.name)
        for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
