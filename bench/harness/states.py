"""The state of a training, saved and taken up again: to the bit the same training goes on."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def save_state(
    file: pathlib.Path, network: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, kept: dict[str, Any]
) -> None:
    """Writes one file in one piece, on rank 0. A collective: each rank's random numbers are in it.

    kept: what else is to be known, of plain types.
    """
    generators: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(generators, _generators())
    if dist.get_rank() == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(file.name + ".part")
        torch.save(
            {
                "network": network.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "generators": generators,
                "kept": kept,
            },
            part,
        )
        os.replace(part, file)
    dist.barrier()


def load_state(
    file: pathlib.Path, network: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any
) -> dict[str, Any]:
    """Takes up what save_state() wrote, on as many ranks. Returns `kept`. The scheduler's own schedule stays."""
    state = torch.load(file, map_location="cpu", weights_only=True)
    network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    # A LambdaLR's state has no function in it, so that the positions of this run go on from here.
    scheduler.load_state_dict(state["scheduler"])
    generators = state["generators"][dist.get_rank()]
    torch.set_rng_state(generators["cpu"])
    if "cuda" in generators:
        torch.cuda.set_rng_state(generators["cuda"])
    return state["kept"]


def _generators() -> dict[str, Tensor]:
    """States of this process's random number generators."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states
