"""Tensors of every type travel between the ranks as bytes: gloo does not send all types, and one message is fewer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


class PackedTensors:
    """The values of tensors, to be the same on all ranks of `group`, in one message per device; None: there are no
    other ranks. Quantized and sparse tensors are left out: their parts cannot be written to one by one."""

    def __init__(self, tensors: Iterable[Tensor], group: dist.ProcessGroup | None):
        self._group = group
        self._messages: list[tuple[list[Tensor], Tensor]] = []
        if group is None:
            return
        where = device_of(group)
        by_device: dict[torch.device, list[Tensor]] = {}
        for part in (part for tensor in tensors for part in plain_parts(tensor)):
            if is_plain(part):
                by_device.setdefault(part.device, []).append(integers(part))
        for device, parts in by_device.items():
            message = torch.cat([part.reshape(-1).view(torch.uint8) for part in parts])
            self._messages.append((parts, message if device.type == where.type else message.to(where)))

    def share(self) -> None:
        """Gives the values of the group's first rank to all. A collective."""
        for parts, message in self._messages:
            dist.broadcast(message, src=dist.get_global_rank(self._group, 0), group=self._group)
            for part, sent in zip(parts, message.split([part.nbytes for part in parts])):
                part.copy_(sent.clone().view(part.dtype).view_as(part))  # a clone begins where its type may begin


def plain_parts(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor; the ones that it is made of, where a Python class wraps several (torchao); of a sharded one, this
    rank's shard."""
    if hasattr(tensor, "to_local"):
        with torch.no_grad():
            shard = tensor.to_local()
        yield from plain_parts(shard)
    elif is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain_parts(getattr(tensor, name))
    else:
        yield tensor


def is_plain(tensor: Tensor) -> bool:
    """Whether its memory is that of its numbers, one beside the other."""
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta


def integers(tensor: Tensor) -> Tensor:
    """The memory of a plain tensor as integers of the same size, which can be copied whatever the type is."""
    return tensor.detach().view(_INTEGERS[tensor.itemsize])


def device_of(group: dist.ProcessGroup) -> torch.device:
    """Where tensors for a collective of `group` have to be."""
    if "gloo" in dist.get_backend(group):
        return torch.device("cpu")
    return torch.accelerator.current_accelerator() or torch.device("cpu")
