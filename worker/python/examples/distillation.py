#!/usr/bin/env python3
"""Distils a ResNet into a smaller one on CIFAR-10.

    python distillation.py FOLDER --teacher teacher.pt --teacher-depth 56

FOLDER holds the data set's binary version: data_batch_1.bin ... data_batch_5.bin and test_batch.bin. teacher.pt has the
weights that `cifar_resnet.py --depth 56 --save teacher.pt` writes. The loss is that of Hinton et al., "Distilling the
Knowledge in a Neural Network".
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import egeria  # egeria

RECORD = 1 + 3 * 32 * 32  # bytes: the label, then the planes red, green, blue
TEMPERATURE = 4.0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="folder with CIFAR-10's binary files")
    parser.add_argument("--teacher", type=pathlib.Path, help="its weights (default: random ones)")
    parser.add_argument("--teacher-depth", type=int, default=56, help="6n + 2 (default 56)")
    parser.add_argument("--depth", type=int, default=20, help="the student's, 6n + 2 (default 20)")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--train-samples", type=int, help="use only this number of images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", type=pathlib.Path, help="write the loss of every step there, as JSON lines")
    parser.add_argument("--save", type=pathlib.Path, help="write the student's weights there")
    return parser.parse_args()


def read_images(files: list[pathlib.Path], limit: int | None = None) -> TensorDataset:
    """Returns normalised images, float32 [n, 3, 32, 32], and labels."""
    try:
        records = torch.from_numpy(np.concatenate([np.fromfile(file, dtype=np.uint8) for file in files]))
    except OSError as error:
        sys.exit(f"distillation.py: cannot read {error.filename} ({error.strerror}): give the binary version's folder")
    records = records.view(-1, RECORD)[:limit]
    images = records[:, 1:].reshape(-1, 3, 32, 32) / 255
    return TensorDataset((images - 0.47) / 0.25, records[:, 0].long())


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
    """The network of cifar_resnet.py."""

    def __init__(self, depth: int, classes: int = 10) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.layer1 = self._stage(16, 16, blocks, 1)
        self.layer2 = self._stage(16, 32, blocks, 2)
        self.layer3 = self._stage(32, 64, blocks, 2)
        self.fc = nn.Linear(64, classes)

    @staticmethod
    def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
        rest = [Block(outputs, outputs, 1) for _ in range(blocks - 1)]
        return nn.Sequential(Block(inputs, outputs, stride), *rest)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        return self.fc(x.mean((2, 3)))


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> float:
    """The share of images that are classified correctly."""
    model.eval()
    correct = [(model(images).argmax(1) == labels).float().mean() for images, labels in loader]
    return torch.stack(correct).mean().item()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    train_files = [arguments.data / f"data_batch_{i}.bin" for i in range(1, 6)]
    train_set = read_images(train_files, arguments.train_samples)
    loader = DataLoader(train_set, arguments.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(read_images([arguments.data / "test_batch.bin"], arguments.train_samples), 256)

    teacher = ResNet(arguments.teacher_depth).eval()
    if arguments.teacher:
        teacher.load_state_dict(torch.load(arguments.teacher))
    teacher = egeria.cached(teacher)  # egeria
    student = ResNet(arguments.depth)
    optimizer = torch.optim.SGD(student.parameters(), arguments.learning_rate, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs * len(loader))

    losses: list[float] = []
    for epoch in range(arguments.epochs):
        start = time.perf_counter()
        student.train()
        for images, labels in loader:
            with torch.no_grad():
                target = F.softmax(teacher(images) / TEMPERATURE, dim=1)
            logits = student(images)
            soft = F.cross_entropy(logits / TEMPERATURE, target) * TEMPERATURE**2
            loss = 0.9 * soft + 0.1 * F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        seconds = time.perf_counter() - start
        mean = sum(losses[-len(loader) :]) / len(loader)
        print(f"epoch {epoch + 1}: loss {mean:.4f}, {seconds:.1f} s", flush=True)
    print(f"test accuracy {evaluate(student, test_loader):.4f}")

    if arguments.losses:
        lines = (json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses, 1))
        arguments.losses.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if arguments.save:
        torch.save(student.state_dict(), arguments.save)


if __name__ == "__main__":
    main()
