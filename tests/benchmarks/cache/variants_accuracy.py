"""Accuracy against the number of variants of each sample, on CIFAR-10 with random crops and mirroring.

usage: variants_accuracy.py DIR [options]      DIR: CIFAR-10's binary files
Needs the package (PYTHONPATH=build/dev/python), no cache and no daemon.

A small network is trained with egeria.data.wrap(loader, variants=k), once for each k and seed, with a seed of its own
for the variants too; with augmentation that is drawn anew in each epoch ("unlimited"); and without any. Nothing is
frozen: this is what fixed variants cost by themselves. Prints the accuracy on the test images by seed, and for each k
its mean, smallest and largest.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import egeria

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "worker" / "python" / "examples"), str(ROOT / "tests")]

from cifar_resnet import Cifar10

from benchmarks.recording import Recording, add_record_option

UNLIMITED, NONE = "unlimited", "none"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="folder of CIFAR-10's binary files")
    parser.add_argument("--variants", default=f"{NONE},1,2,4,8,{UNLIMITED}", help="(default %(default)s)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=3_000)
    parser.add_argument("--test-samples", type=int, default=3_000)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=16)
    add_record_option(parser)
    return parser.parse_args()


def network(width: int) -> nn.Module:
    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)
        )

    blocks = block(3, width), block(width, 2 * width), block(2 * width, 4 * width)
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(4 * width * 16, 10))


def accuracy(arguments: argparse.Namespace, variants: str, seed: int) -> float:
    """Trains, and returns the share of the test images that are told, in percent."""
    torch.manual_seed(seed)
    model = network(arguments.width)
    images = Cifar10([arguments.data / "data_batch_1.bin"], variants != NONE, arguments.samples)
    loader = DataLoader(images, arguments.batch_size, shuffle=True)
    if variants not in (NONE, UNLIMITED):
        loader = egeria.data.wrap(loader, variants=int(variants), variant_seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=arguments.epochs * len(loader))
    for _ in range(arguments.epochs):
        for batch, labels in loader:
            loss = F.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    test = DataLoader(Cifar10([arguments.data / "test_batch.bin"], False, arguments.test_samples), 256)
    with torch.no_grad():
        right = sum(int((model(batch).argmax(1) == labels).sum()) for batch, labels in test)
    return 100 * right / len(test.dataset)


def main() -> None:
    arguments = parse_arguments()
    found: dict[str, list[float]] = {variants: [] for variants in arguments.variants.split(",")}
    for seed in range(arguments.seeds):
        for variants, values in found.items():
            begin = time.perf_counter()
            values.append(accuracy(arguments, variants, seed))
            print(f"seed {seed}, {variants}: {values[-1]:.2f} %, {time.perf_counter() - begin:.0f} s", flush=True)
    recording = Recording("variants of each sample")
    for variants, values in found.items():
        print(f"{variants}: {statistics.mean(values):.2f} [{min(values):.2f}, {max(values):.2f}]")
        what = "no augmentation" if variants == NONE else variants
        for seed, value in enumerate(values):
            recording.add(what, [value], "%", column=f"seed {seed}")
        recording.add(what, [statistics.mean(values)], "%", column="mean")
    recording.write(arguments.record, arguments.seeds)


if __name__ == "__main__":
    main()
