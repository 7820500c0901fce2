"""The ranks of a job exchange values, agree and fail alike, through a process group of Egeria's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from egeria import _native
from egeria.errors import EgeriaError
from egeria.freeze.packed_tensors import PackedTensors
from egeria.model.inputs import GraphError

_logger = logging.getLogger("egeria")
T = TypeVar("T")

# Registered with torch.distributed: gloo, by the threads that the default group has already.
_BACKEND = "egeria_gloo"


def commit_group(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """A group of its own, over gloo, of the ranks that train the model. A collective; None for one process."""
    if process_group is None:
        return None
    if _BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(_BACKEND, _beside_default, devices=["cpu"])
    ranks = dist.get_process_group_ranks(process_group)
    return dist.new_group(ranks, backend=_BACKEND, use_local_synchronization=len(ranks) < dist.get_world_size())


def _beside_default(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    """A thread of gloo wakes a hundred times a second even when nothing is to do, which a busy processor notices; the
    default group's serves this one, too, where it has one."""
    devices = _devices_of_default()
    if not devices:
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    options = dist.ProcessGroupGloo._Options()
    options._devices = devices
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


def _devices_of_default() -> list[Any]:
    try:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    except RuntimeError:  # it has none for the host
        return []
    return list(backend.options._devices) if isinstance(backend, dist.ProcessGroupGloo) else []


def gather(group: dist.ProcessGroup | None, value: T) -> list[T]:
    """Every rank's value, by rank. A collective; without a group there is one rank."""
    if group is None:
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def all_agree(group: dist.ProcessGroup | None, value: bool) -> bool:
    """True where every rank says so. A collective."""
    if group is None:
        return value
    # Those that do not agree come with a number of their own.
    return _native.identical_on_all_ranks(0 if value else 1 + dist.get_rank(group), group.group_name) and value


def take_from_rank_0(group: dist.ProcessGroup, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Gives every rank the parameters, the buffers and the optimizers' states of rank 0. A collective. The model's
    tensors must be whole, not shards."""
    PackedTensors((*model.parameters(), *model.buffers()), group).share()
    given: list[Any] = [None]
    if dist.get_rank(group) == 0:
        given = [[optimizer.state_dict() for optimizer in optimizers]]
    dist.broadcast_object_list(given, src=dist.get_global_rank(group, 0), group=group)
    for optimizer, state in zip(optimizers, given[0]):
        optimizer.load_state_dict(state)


def attempt(group: dist.ProcessGroup | None, action: Callable[[], T]) -> T:
    """Does `action` on every rank, and fails on all of them if it fails on one. A collective.

    Raises:
      EgeriaError: [NO_LINK], or the error's own name where it was one of ours.
    """
    result: T | None = None
    failure: EgeriaError | None = None
    try:
        result = action()
    except EgeriaError as error:
        failure = error
    except GraphError as error:
        failure = EgeriaError("NO_LINK", str(error))
    except Exception as error:  # pylint: disable=broad-exception-caught  # the other ranks wait for this one
        _logger.debug("egeria: could not be linked", exc_info=True)
        failure = EgeriaError("NO_LINK", f"{type(error).__name__}: {error}")
    for error in gather(group, failure):
        if error is not None:
            raise error
    return result
