"""Trains a small network whose first layers a plan freezes.

trial_job.py [options]
"""

from __future__ import annotations

import argparse
import os
import pathlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import egeria


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--front", choices=["empty", "random"], default="random", help="empty: it has to learn")
    parser.add_argument("--freeze-at", type=int, default=4)
    parser.add_argument("--report", choices=["before", "after", "never"], default="after", help="losses, of each step")
    parser.add_argument("--begin", type=int, default=0, help="steps that were taken before this run")
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--ended", type=pathlib.Path, help="file that is made behind the training")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1))
    if arguments.front == "empty":
        nn.init.normal_(model[0].weight, std=1e-3)
    weights = torch.randn(16, 1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        torch.manual_seed(dist.get_rank())
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    plans = [(arguments.begin + arguments.freeze_at, 1)]
    config = egeria.Config(controller="none", plans=plans)
    session = egeria.attach(model, optimizer, modules=["0", "2", "4"], config=config)
    if arguments.begin:
        session.load_state_dict({"step": arguments.begin})
    for step in range(arguments.steps):
        if step == arguments.fail_at:
            raise RuntimeError("this training fails")
        images = torch.randn(64, 16)
        labels = images @ weights + torch.randn(64, 1)  # noise that nothing can learn
        loss = F.mse_loss(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        if arguments.report == "before":
            session.step(loss)
        optimizer.step()
        if arguments.report == "after":
            session.step(loss)
    session.close()
    print(f"trained {step + 1} steps")
    if arguments.ended is not None:
        arguments.ended.touch()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
