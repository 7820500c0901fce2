"""This program says what the cache costs a training whose samples never come again as they were.

usage: taskset -c 1 never_repeating.py DIR [options]      DIR: CIFAR-10's binary files
Needs the package (PYTHONPATH=build/dev/python) and EGERIA_BIN (build/dev/bin).

A ResNet freezes its first layers after two steps, and trains with and without a cache, in three forms: the data set
draws random numbers that everybody draws; it draws them from a generator of its own; and noise is added in the loop.
The two trainings of a round run in one process and on one thread, and take every step in turn. So both meet the same
machine and the same memory, however much either varies. Each has random numbers of its own.
By form, it prints the processor time that the cache costs, in percent of that without: of the whole training, of its
first epoch and of the later ones; the median of the rounds, and the least and the most. All that other threads and the
cache's daemon take counts as the cache's. It also prints how many samples were written after the first epoch. The exit
code is 1 where the weights differ, where the cache did not find out that samples never come again, or where it costs
over 1 % of a whole training (median).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "worker" / "python" / "examples"), str(ROOT / "tests"), str(ROOT)]

import cifar_resnet
import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import egeria
from benchmarks.cache.frozen_backbone import spread
from benchmarks.cache.side_by_side import HUGE_PAGES, EpochClock
from benchmarks.recording import Recording, add_record_option

FORMS = ("loader", "generator", "loop")
MOST_PERCENT = 1.0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="folder of CIFAR-10's binary files")
    parser.add_argument("--forms", default=",".join(FORMS), help="default %(default)s")
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--frozen", type=int, default=6, help="layer modules (default %(default)s)")
    parser.add_argument("--samples", type=int, default=5_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--null", action="store_true", help="no run has a cache, which says what the numbers are worth")
    add_record_option(parser)
    parser.add_argument("--form", help=argparse.SUPPRESS)
    parser.add_argument("--job", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args()


class Training:
    """One of the two trainings of a process, which goes on by one step at a time.

    Attributes:
      attaching: seconds of the thread's processor time in which Egeria was attached.
      seconds: the same of each epoch, whose end counts with the next one's first step.
      offered: samples offered to the cache by the end of each epoch.
      weights: the digest of the trained weights, at the end.
      repeats: whether the cache has found that samples come again as they were; None: it does not know.
    """

    def __init__(self, arguments: argparse.Namespace, cache: str):
        self.attaching = 0.0
        self.seconds: list[float] = []
        self.offered: list[int] = []
        self.weights = ""
        self.repeats: bool | None = None
        self._arguments = arguments
        self._cache = cache
        torch.manual_seed(0)
        self._steps = self._train()
        next(self._steps)
        self._random_state = torch.get_rng_state()

    def step(self) -> None:
        """Trains on a batch; after the last one, the call ends the training."""
        # Without a cache nobody takes the other training's batch, and a batch left over means that a loop runs ahead.
        egeria.data.current().forget()
        torch.set_rng_state(self._random_state)
        begin = time.thread_time()
        next(self._steps, None)
        self.seconds[-1] += time.thread_time() - begin
        self._random_state = torch.get_rng_state()

    def _train(self) -> Iterator[None]:
        arguments = self._arguments
        model = cifar_resnet.ResNet(arguments.depth)
        loader = egeria.data.wrap(DataLoader(data_set(arguments), arguments.batch_size, shuffle=True))
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        config = egeria.Config(controller="none", cache=self._cache, plans=[(2, arguments.frozen)])
        begin = time.thread_time()
        with egeria.attach(model, optimizer, config=config, total_steps=arguments.epochs * len(loader)) as session:
            self.attaching = time.thread_time() - begin
            yield
            for _ in range(arguments.epochs):
                self.seconds.append(0.0)
                for images, labels in loader:
                    if arguments.form == "loop":
                        images = images + 0.1 * torch.randn(images.shape)
                    loss = F.cross_entropy(model(images), labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    yield
                self.offered.append(session.cache_counters().get("cache_offered", 0))
            self.repeats = session.state_dict()["samples_repeat"]
        weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
        self.weights = weights.hexdigest()


class Noisy(Dataset):
    """Images with noise from a generator of their own."""

    def __init__(self, images: Dataset):
        self.images = images
        self.generator = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        image, label = self.images[index]
        return image + 0.1 * torch.from_numpy(self.generator.standard_normal(image.shape, np.float32)), label


def data_set(arguments: argparse.Namespace) -> Dataset:
    """CIFAR-10, augmented in the form "loader"; in the form "generator" with noise from a generator of its own."""
    numbers = range(1, 1 + math.ceil(arguments.samples / 10_000))
    files = [arguments.data / f"data_batch_{number}.bin" for number in numbers]
    images = cifar_resnet.Cifar10(files, arguments.form == "loader", arguments.samples)
    return Noisy(images) if arguments.form == "generator" else images


def train(arguments: argparse.Namespace) -> None:
    """A round: both trainings, in a process of their own. Its report has one entry by epoch.

    The first training to attach pays for what Python imports then. So it is the plain one, where that is not counted.
    """
    torch.set_num_threads(1)
    folder = arguments.job / "cache"
    plain, cached = Training(arguments, "none"), Training(arguments, "none" if arguments.null else str(folder))
    order = random.Random(0)
    clock = EpochClock(folder)
    clock.begin()
    for _ in range(arguments.epochs):
        for _ in range(math.ceil(arguments.samples / arguments.batch_size)):
            for training in order.sample((plain, cached), 2):
                training.step()
        clock.end_epoch()
    for training in (plain, cached):
        training.step()
    cached.seconds[0] += cached.attaching
    others = [epoch["processor"] - epoch["thread"] + epoch["daemon"] for epoch in clock.epochs]
    report = {
        "plain": plain.seconds,
        "cached": [own + other for own, other in zip(cached.seconds, others)],
        "same": plain.weights == cached.weights,
        "offered": cached.offered,
        "repeats": cached.repeats,
    }
    (arguments.job / "report.json").write_text(json.dumps(report), encoding="utf-8")


def run_round(form: str, folder: pathlib.Path) -> dict[str, Any]:
    """Returns what the process of a round reports."""
    folder.mkdir()
    environment = {**os.environ, **HUGE_PAGES, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *sys.argv[1:], "--form", form, "--job", str(folder)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return json.loads((folder / "report.json").read_text())


def compare(arguments: argparse.Namespace, form: str, scratch: pathlib.Path, recording: Recording) -> bool:
    """Returns whether the weights are the same, the cache knew its samples, and it costs at most MOST_PERCENT."""
    rounds = [run_round(form, scratch / f"{form}{number}") for number in range(arguments.rounds)]
    same = all(report["same"] for report in rounds)
    knew = arguments.null or all(report["repeats"] is False for report in rounds)
    print(f"{form}: percents of processor time that the cache costs; the weights are", "equal" if same else "OTHERS")
    costs = {}
    for name, epochs in (("all", slice(None)), ("first epoch", slice(1)), ("later ones", slice(1, None))):
        costs[name] = [100 * (sum(report["cached"][epochs]) / sum(report["plain"][epochs]) - 1) for report in rounds]
        print(f"  {name:12}", spread(costs[name]))
        recording.add(form, costs[name], "%", column=name)
    late = max(report["offered"][-1] - report["offered"][0] for report in rounds)
    print(f"  written in the first epoch {rounds[0]['offered'][0]}, later {late}", flush=True)
    if not knew:
        print("  THE CACHE DID NOT FIND OUT that samples never come again", flush=True)
    return same and knew and statistics.median(costs["all"]) <= MOST_PERCENT


def main() -> int:
    arguments = parse_arguments()
    if arguments.form:
        train(arguments)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        recording = Recording("form")
        results = [compare(arguments, form, pathlib.Path(scratch), recording) for form in arguments.forms.split(",")]
    recording.write(arguments.record, arguments.rounds)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
