#!/usr/bin/env python3
"""Trains a ResNet on CIFAR-10, data-parallel.

    python cifar_resnet.py FOLDER --epochs 30      # or torchrun --nproc-per-node 2 cifar_resnet.py ...

FOLDER holds the data set's binary version: data_batch_1.bin ... data_batch_5.bin and test_batch.bin.
Layers and schedule are those of He et al., "Deep Residual Learning for Image Recognition", section 4.2.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import egeria  # egeria

RECORD = 1 + 3 * 32 * 32  # bytes: the label, then the planes red, green, blue
MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
STD = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="folder with CIFAR-10's binary files")
    parser.add_argument("--depth", type=int, default=20, help="6n + 2: 20, 32, 44, 56 (default 20)")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64, help="per process (default 64)")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--train-samples", type=int, help="use only this number of images")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data (default 0)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", type=pathlib.Path, help="write the loss of every step there, as JSON lines")
    parser.add_argument("--save", type=pathlib.Path, help="write the trained weights there")
    arguments = parser.parse_args()
    if (arguments.depth - 2) % 6 or arguments.depth < 8:
        parser.error(f"--depth {arguments.depth}: these networks have 6n + 2 layers, such as 20 or 56")
    if arguments.epochs < 1 or arguments.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return arguments


def read_records(files: list[pathlib.Path]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns images, uint8 [n, 3, 32, 32], and labels, int64 [n]."""
    parts = []
    for file in files:
        try:
            data = np.fromfile(file, dtype=np.uint8)
        except OSError as error:
            sys.exit(f"cifar_resnet.py: cannot read {file} ({error.strerror}): give the binary version's folder")
        if data.size == 0 or data.size % RECORD:
            sys.exit(f"cifar_resnet.py: {file} is no CIFAR-10 file: {data.size} bytes, no multiple of {RECORD}")
        parts.append(data.reshape(-1, RECORD))
    records = torch.from_numpy(np.concatenate(parts))
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()


class Cifar10(Dataset):
    """Images normalised by channel; for training shifted by up to four pixels and mirrored at random."""

    def __init__(self, files: list[pathlib.Path], augment: bool, limit: int | None = None) -> None:
        images, labels = read_records(files)
        self.images, self.labels, self.augment = images[:limit], labels[:limit], augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = (self.images[index] / 255 - MEAN) / STD
        if self.augment:
            top, left, mirror = (int(torch.randint(n, ())) for n in (9, 9, 2))
            image = F.pad(image, (4, 4, 4, 4))[:, top : top + 32, left : left + 32]
            image = image.flip(2) if mirror else image
        return image, self.labels[index]


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, depth: int, classes: int = 10) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.layer1 = self._stage(16, 16, blocks, 1)
        self.layer2 = self._stage(16, 32, blocks, 2)
        self.layer3 = self._stage(32, 64, blocks, 2)
        self.fc = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @staticmethod
    def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
        rest = [Block(outputs, outputs, 1) for _ in range(blocks - 1)]
        return nn.Sequential(Block(inputs, outputs, stride), *rest)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        return self.fc(x.mean((2, 3)))


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    """The share of images that are classified correctly, over all processes."""
    model.eval()
    counts = torch.zeros(2, device=device)
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        counts[0] += (model(images).argmax(1) == labels).sum()
        counts[1] += len(labels)
    if dist.is_initialized():
        dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main() -> None:
    arguments = parse_arguments()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    world = dist.get_world_size() if dist.is_initialized() else 1
    torch.manual_seed(arguments.seed)

    train_files = [arguments.data / f"data_batch_{i}.bin" for i in range(1, 6)]
    train_set = Cifar10(train_files, augment=True, limit=arguments.train_samples)
    test_set = Cifar10([arguments.data / "test_batch.bin"], augment=False)
    sampler = DistributedSampler(train_set, world, rank, seed=arguments.seed)
    test_sampler = DistributedSampler(test_set, world, rank, shuffle=False)
    options = {"num_workers": arguments.workers, "pin_memory": device.type == "cuda"}
    loader = DataLoader(train_set, arguments.batch_size, sampler=sampler, drop_last=True, **options)
    test_loader = DataLoader(test_set, 256, sampler=test_sampler, **options)
    if len(loader) == 0:
        sys.exit(f"cifar_resnet.py: {len(train_set)} images are fewer than one batch per process")

    model: nn.Module = ResNet(arguments.depth).to(device)
    torch.manual_seed(arguments.seed + 1 + rank)  # the processes augment differently
    if world > 1:
        model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), arguments.learning_rate, momentum=0.9, weight_decay=1e-4)
    steps = arguments.epochs * len(loader)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps // 2, steps * 3 // 4], gamma=0.1)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=steps)  # egeria

    losses: list[float] = []
    for epoch in range(arguments.epochs):
        start = time.perf_counter()
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            session.step(loss)  # egeria
            losses.append(loss.item())
        accuracy = evaluate(model, test_loader, device)
        if rank == 0:
            mean = sum(losses[-len(loader) :]) / len(loader)
            seconds = time.perf_counter() - start
            print(f"epoch {epoch + 1}: loss {mean:.4f}, test accuracy {accuracy:.4f}, {seconds:.1f} s", flush=True)

    if rank == 0 and arguments.losses:
        lines = (json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses, 1))
        arguments.losses.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if rank == 0 and arguments.save:
        torch.save((model.module if world > 1 else model).state_dict(), arguments.save)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
