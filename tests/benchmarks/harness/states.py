"""The state of a training, saved and taken up again: to the bit the same training goes on."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def save_state(file: pathlib.Path, network: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any,
               kept: dict[str, Any]) -> None:
    """Writes one file in one piece, on rank 0. A collective: each rank's random numbers are in it.

    kept: what else is to be known, of plain types.
    """
    generators: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(generators, torch.get_rng_state())
    if dist.get_rank() == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(file.name + ".part")
        torch.save({"network": network.state_dict(), "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(), "generators": generators, "kept": kept}, part)
        os.replace(part, file)
    dist.barrier()


def load_state(file: pathlib.Path, network: nn.Module, optimizer: torch.optim.Optimizer,
               scheduler: Any) -> dict[str, Any]:
    """Takes up what save_state() wrote, on as many ranks. Returns `kept`. The scheduler's own schedule stays."""
    state = torch.load(file, map_location="cpu", weights_only=True)
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    # A LambdaLR's state has no function in it, so that the positions of this run go on from here.
    scheduler.load_state_dict(state["scheduler"])
    torch.set_rng_state(state["generators"][dist.get_rank()])
    return state["kept"]
