#!/usr/bin/env python3
"""Trains a small network on scikit-learn's handwritten digits, data-parallel, without a download.

python digits.py                          # or, on two ranks: torchrun --nproc-per-node 2 digits.py
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import egeria  # egeria


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=32, help="per process (default 32)")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", metavar="FILE", help="write the loss of every step there, as JSON lines")
    arguments = parser.parse_args()
    if arguments.epochs < 1 or arguments.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return arguments


def load_digits(seed: int) -> tuple[torch.Tensor, ...]:
    """Returns training images [n, 1, 8, 8] in 0..1, their labels, and those for validation."""
    try:
        from sklearn import datasets
    except ImportError:
        sys.exit("digits.py needs scikit-learn: pip install scikit-learn")
    digits = datasets.load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(seed))
    images = (torch.tensor(digits.images, dtype=torch.float32) / 16).unsqueeze(1)[order]
    labels = torch.tensor(digits.target)[order]
    training = int(0.8 * len(labels))
    return images[:training], labels[:training], images[training:], labels[training:]


def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


def build_model() -> nn.Module:
    return nn.Sequential(
        block(1, 32, 1),
        block(32, 64, 2),
        block(64, 64, 1),
        block(64, 128, 2),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
    )


def main() -> None:
    arguments = parse_arguments()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    world = dist.get_world_size() if dist.is_initialized() else 1

    torch.manual_seed(arguments.seed)
    images, labels, test_images, test_labels = load_digits(arguments.seed)
    model = build_model()
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), arguments.learning_rate, momentum=0.9, weight_decay=1e-4)
    per_rank = len(labels) // world
    steps = arguments.epochs * math.ceil(per_rank / arguments.batch_size)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [int(0.6 * steps)], gamma=0.1)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=steps)  # egeria

    losses = []
    generator = torch.Generator().manual_seed(arguments.seed)  # the same order on all ranks
    for _ in range(arguments.epochs):
        model.train()
        order = torch.randperm(len(labels), generator=generator)[rank * per_rank : (rank + 1) * per_rank]
        for chosen in order.split(arguments.batch_size):
            loss = F.cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            session.step(loss)  # egeria
            losses.append(loss.item())

    model.eval()
    with torch.no_grad():
        outputs = model(test_images)
    if rank == 0:
        accuracy = (outputs.argmax(1) == test_labels).float().mean().item()
        print(f"accuracy {accuracy:.4f}, validation loss {F.cross_entropy(outputs, test_labels).item():.4f}")
        if arguments.losses:
            with open(arguments.losses, "w", encoding="utf-8") as out:
                out.writelines(json.dumps({"step": i + 1, "loss": loss}) + "\n" for i, loss in enumerate(losses))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
