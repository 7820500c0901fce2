#!/usr/bin/env python3
"""Measures a training step whose frozen layers run in inference form, beside one in which they run as they are.

usage: taskset -c 1 frozen_forward_step.py [options]
Needs the package (PYTHONPATH=build/dev/python).

A CIFAR ResNet trains on images that are cropped and mirrored at random; all blocks are frozen, and the head trains.
Each way has a process of its own, as a user's training has, so that none finds memory as another one has left it. They
take turns on one thread: blocks of steps, in an order that rotates. A block's time is the median of its steps by the
thread's processor time, loading included; a ratio is taken within a round of blocks. Forms are made before that.

"exact" computes frozen layers as they are, in evaluation mode, since a plan has frozen them. "hand" is the training
without Egeria, whose script has set requires_grad to False and left batch normalisation in training mode. "products" is
no training: it multiplies large matrices, with as many multiplications as a forward pass has. The processor does these
fastest, so it says what a form in float32 could reach at best.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

import egeria

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "worker" / "python" / "examples"), str(ROOT / "tests")]
from cifar_resnet import ResNet  # noqa: E402  pylint: disable=wrong-import-position

from bench.harness.turns import in_rotation
from benchmarks.recording import Recording, add_record_option, percents  # pylint: disable=wrong-import-position

BY_HAND = "hand"
PRODUCTS = "products"
KINDS = ("exact", "fused", "bf16", BY_HAND, PRODUCTS)
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
    """One of the trainings."""

    def __init__(self, form: str, depth: int, batch: int):
        torch.manual_seed(0)
        self.model = ResNet(depth)
        self.form = form
        self._optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9)
        self.session: egeria.Session | None = None
        self._batches = self._endless(DataLoader(Images(16 * batch), batch, shuffle=True))
        if form == BY_HAND:
            self.model.requires_grad_(False).fc.requires_grad_(True)
            return
        modules = [self.model.stem, *self.model.layer1, *self.model.layer2, *self.model.layer3, self.model.fc]
        config = egeria.Config(plans=[(1, len(modules) - 1)], cache="none", frozen_forward=form)
        self.session = egeria.attach(self.model, self._optimizer, modules=modules, config=config)

    def step(self) -> float:
        """Returns seconds."""
        begin = time.thread_time()
        images, labels = next(self._batches)
        loss = F.cross_entropy(self.model(images), labels)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self.session is not None:
            self.session.step(loss)
        return time.thread_time() - begin

    def prepare(self) -> None:
        """Takes steps until all is frozen and has its form."""
        for step in range(_MOST_STEPS_BEFORE):
            self.step()
            if self.session is None:
                return
            form = self.session.summary()["frozen_forward"]
            if step > 5 and (self.form == "exact" or (form is not None and form["difference"] is not None)):
                return

    def end(self) -> Any:
        """Returns what the session says of the form; None without a session."""
        if self.session is None:
            return None
        form = self.session.summary()["frozen_forward"]
        self.session.close(finished=False)
        return form

    @staticmethod
    def _endless(loader: DataLoader) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from loader


class Products:
    """Products of matrices, with as many multiplications as a forward pass of a training."""

    SIDE = 768

    def __init__(self, depth: int, batch: int):
        with FlopCounterMode(display=False) as counter, torch.device("meta"), torch.no_grad():
            ResNet(depth)(torch.empty(batch, 3, 32, 32))
        self._products = counter.get_total_flops() / (2 * self.SIDE**3)
        self._left, self._right, self._out = torch.randn(3, self.SIDE, self.SIDE)

    def step(self) -> float:
        """Returns seconds."""
        whole = math.ceil(self._products)
        begin = time.thread_time()
        for _ in range(whole):
            torch.mm(self._left, self._right, out=self._out)
        return (time.thread_time() - begin) * self._products / whole

    def prepare(self) -> None:
        self.step()

    def end(self) -> None:
        return None


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", default=",".join(KINDS), help="default %(default)s")
    parser.add_argument("--depth", type=int, default=56)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5, help="of a block (default 5)")
    add_record_option(parser)
    arguments = parser.parse_args()
    arguments.forms = arguments.forms.split(",")
    if not {"exact"} <= set(arguments.forms) <= set(KINDS):
        parser.error(f"--forms takes exact, and any other of {', '.join(KINDS)}")
    return arguments


def serve(line: Connection, form: str, depth: int, batch: int) -> None:
    """Runs blocks of as many steps as `line` asks for, and gives the median; at the end, what the session says."""
    torch.set_num_threads(1)
    runs = Products(depth, batch) if form == PRODUCTS else Training(form, depth, batch)
    runs.prepare()
    line.send(None)
    while (steps := line.recv()) > 0:
        line.send(statistics.median(runs.step() for _ in range(steps)))
    line.send(runs.end())


def ask(line: Connection, steps: int) -> Any:
    line.send(steps)
    return line.recv()


def main() -> None:
    arguments = parse_arguments()
    context = multiprocessing.get_context("spawn")
    lines: dict[str, Connection] = {}
    processes = []
    for form in arguments.forms:
        lines[form], theirs = context.Pipe()
        arguments_of_process = theirs, form, arguments.depth, arguments.batch
        processes.append(context.Process(target=serve, args=arguments_of_process, daemon=True))
        processes[-1].start()
        lines[form].recv()  # it is prepared
    rounds: list[dict[str, float]] = []
    for number in range(arguments.rounds):
        rounds.append({form: ask(lines[form], arguments.steps) for form in in_rotation(arguments.forms, number)})
    recording = Recording("form")
    others = [form for form in ("exact", BY_HAND) if form in arguments.forms]
    for form in arguments.forms:
        times = [1e3 * times[form] for times in rounds]
        recording.add(form, times, "ms", "a step")
        print(f"{form:8} {statistics.median(times):7.1f} ms a step ({min(times):.1f} to {max(times):.1f})", end="")
        for other in others:
            ratios = [times[form] / times[other] for times in rounds]
            recording.add(form, percents(ratios), "%", f"of {other}")
            print(f", over {other} {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})", end="")
        print()
    recording.write(arguments.record, arguments.rounds)
    for form, line in lines.items():
        print(form, ask(line, 0))
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
