"""This file makes the process group over which the ranks agree."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

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
