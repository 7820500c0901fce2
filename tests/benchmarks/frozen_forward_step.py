#!/usr/bin/env python3
"""Measures a training step whose frozen layers run in inference form, beside one in which they run as they are.

usage: taskset -c 1 frozen_forward_step.py [options]
Needs the package (PYTHONPATH=build/dev/python).

Copies of one CIFAR ResNet train on images that are cropped and mirrored at random; all blocks are frozen, and the head
trains. They take turns on one thread: blocks of steps, in an order that rotates. A block's time is the median of its
steps by the thread's processor time, loading included; a ratio is taken within a round of blocks. Forms are made before
anything counts.
"""

from __future__ import annotations

import argparse
import copy
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import egeria

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "worker" / "python" / "examples"))
from cifar_resnet import ResNet  # noqa: E402  pylint: disable=wrong-import-position

KINDS = ("exact", "fused", "bf16")
_MOST_STEPS_BEFORE = 200


class Images(Dataset):
    """Random pictures, cropped and mirrored as the example does."""

    def __init__(self, samples: int):
        self.images = torch.randn(samples, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        top, left, mirror = (int(torch.randint(n, ())) for n in (9, 9, 2))
        image = F.pad(self.images[index], (4, 4, 4, 4))[:, top : top + 32, left : left + 32]
        return image.flip(2) if mirror else image, index % 10


class Training:
    """One of the trainings that take turns."""

    def __init__(self, model: ResNet, form: str, batch: int):
        self.model = copy.deepcopy(model)
        self.form = form
        self._optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9)
        modules = [self.model.stem, *self.model.layer1, *self.model.layer2, *self.model.layer3, self.model.fc]
        config = egeria.Config(plans=[(1, len(modules) - 1)], cache="none", frozen_forward=form)
        self.session = egeria.attach(self.model, self._optimizer, modules=modules, config=config)
        self._batches = self._endless(DataLoader(Images(16 * batch), batch, shuffle=True))

    def step(self) -> float:
        """Returns seconds."""
        begin = time.thread_time()
        images, labels = next(self._batches)
        loss = F.cross_entropy(self.model(images), labels)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.session.step(loss)
        return time.thread_time() - begin

    @property
    def is_ready(self) -> bool:
        return self.form == "exact" or self.session.summary()["frozen_forward"]["difference"] is not None

    @staticmethod
    def _endless(loader: DataLoader) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from loader


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=56)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5, help="of a block (default 5)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ResNet(arguments.depth)
    trainings = [Training(model, form, arguments.batch) for form in KINDS]
    for training in trainings:
        for _ in range(_MOST_STEPS_BEFORE):
            training.step()
            if training.session.prefix > 0 and training.session._step > 5 and training.is_ready:
                break
    rounds: list[dict[str, float]] = []
    for number in range(arguments.rounds):
        turns = trainings[number % len(trainings) :] + trainings[: number % len(trainings)]
        rounds.append({turn.form: statistics.median(turn.step() for _ in range(arguments.steps)) for turn in turns})
    for form in KINDS:
        times = [1e3 * times[form] for times in rounds]
        ratios = [times[form] / times["exact"] for times in rounds]
        print(
            f"{form:6} {statistics.median(times):7.1f} ms a step ({min(times):.1f} to {max(times):.1f}), over exact "
            f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )
    for training in trainings:
        print(training.form, training.session.summary()["frozen_forward"])
        training.session.close(finished=False)


if __name__ == "__main__":
    main()
