#!/usr/bin/env python3
"""Harms the cache of a script with a frozen trunk in all ways that its owner may see, and counts wrong activations.

usage: frozen_faults.py [SCENARIO ...] [--epochs N]
Needs the package (PYTHONPATH=build/dev/python:worker/python:tests) and EGERIA_BIN (build/dev/bin). The small disk is a
file system of its own, which needs root.

A training runs beside its cache, which is harmed in the middle of epochs. All that the head gets from the trunk is
compared with what the trunk computes, row by row, and the weights at the end with the plain run's. For each scenario
there is a line: what was harmed and how often, the samples that were served, and how many of them were wrong. The exit
code is 1 where a single one was, or where nothing was served.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy
import torch
import torch.nn.functional as F
from cache_daemon import Daemon
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import egeria
from egeria import data

SAMPLES, BATCH = 512, 16
STEPS = SAMPLES // BATCH  # an epoch has so many
SMALL, LARGE = 1_024, 24_576  # numbers of an activation: 4 KiB, which the daemon keeps in memory, and 96 KiB
FLIPS = 100_000
INPUTS = torch.randn(SAMPLES, 32, generator=torch.Generator().manual_seed(5))


class Network(nn.Module):
    """A trunk that the script has frozen, and a head. The script sees what the trunk gives."""

    def __init__(self, width: int):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(32, width), nn.Tanh()).requires_grad_(False).eval()
        self.head = nn.Linear(width, 4)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(inputs)
        return self.head(features), features


class World:
    """A cache to be harmed.

    Attributes:
      width: of an activation, in numbers.
      rows: the activations by sample, as the plain run computes them.
      faults: so many were made.
      chance: decides where.
    """

    def __init__(self, folder: pathlib.Path, width: int, options: list[str], rows: Tensor):
        self.daemon = Daemon(folder, options=options)
        self.width, self.rows = width, rows
        self.faults = 0
        self.chance = random.Random(11)

    @property
    def process(self) -> int:
        assert self.daemon.process is not None
        return self.daemon.process.pid

    def flip_in_file(self, path: pathlib.Path | str, places: list[int]) -> None:
        """Turns a bit at each of these places."""
        descriptor = os.open(path, os.O_RDWR)
        try:
            for place in places:
                with contextlib.suppress(OSError):  # it has gone, or is not mapped any more
                    value = os.pread(descriptor, 1, place)
                    if value:
                        os.pwrite(descriptor, bytes([value[0] ^ (1 << self.chance.randrange(8))]), place)
                        self.faults += 1
        finally:
            os.close(descriptor)

    def flip_on_disk(self, flips: int) -> None:
        """Turns bits in a part of the files of activations, as many in each."""
        blobs = [path for path in self.daemon.folder.rglob("*.blob") if path.stat().st_size > 0]
        sizes = [path.stat().st_size for path in blobs]
        for path in self.chance.choices(blobs, sizes, k=8) if blobs else []:
            size = path.stat().st_size
            begin = self.chance.randrange(size)
            end = min(size, begin + size // 16 + 1)
            self.flip_in_file(path, [self.chance.randrange(begin, end) for _ in range(flips // 8 + 1)])

    def flip_in_memory(self, process: int, flips: int, region: str) -> None:
        """Turns bits of activations, wherever they lie in memory of a process whose map's line matches `region`."""
        samples = self.chance.sample(range(SAMPLES), SAMPLES // 8)
        found = list(_find(process, self.rows[samples].numpy().view(numpy.uint32), region))
        for place in found:
            length = self.width * 4
            self.flip_in_file(
                f"/proc/{process}/mem", [place + self.chance.randrange(length) for _ in range(flips // len(found))]
            )


def _find(process: int, rows: numpy.ndarray, region: str) -> Iterator[int]:
    """Yields the addresses at which one of the rows lies."""
    width = rows.shape[1]
    for address, content in _resident(process, region):
        for shift in range(4):
            words = numpy.frombuffer(content, numpy.uint32, (len(content) - shift) // 4, shift)
            for place in numpy.flatnonzero(numpy.isin(words[: 1 - width], rows[:, 0])):
                if (rows[rows[:, 0] == words[place]] == words[place : place + width]).all(1).any():
                    yield address + shift + 4 * int(place)


def _resident(process: int, region: str) -> Iterator[tuple[int, bytes]]:
    """Yields the memory of the process that may be written to and is there, with its addresses."""
    page = os.sysconf("SC_PAGE_SIZE")
    with (
        open(f"/proc/{process}/maps", encoding="utf-8") as maps,
        open(f"/proc/{process}/mem", "rb", buffering=0) as memory,
        open(f"/proc/{process}/pagemap", "rb", buffering=0) as table,
    ):
        for line in maps:
            begin, end = (int(number, 16) // page for number in line.split()[0].split("-"))
            if " rw" not in line or not re.search(region, line):
                continue
            table.seek(begin * 8)
            entries = numpy.frombuffer(table.read((end - begin) * 8), numpy.uint64)
            there = numpy.flatnonzero(entries >> numpy.uint64(63))
            for run in numpy.split(there, numpy.flatnonzero(numpy.diff(there) > 1) + 1) if len(there) else ():
                memory.seek((begin + int(run[0])) * page)
                with contextlib.suppress(OSError):  # it has gone
                    yield (begin + int(run[0])) * page, memory.read(len(run) * page)


# These harm the cache before a step, whose number they get.


def nothing(world: World, step: int) -> None:
    pass


def kill(world: World, step: int) -> None:
    """It is gone for a few steps, and has lost what it had not written."""
    if step % 53 == 40:
        world.daemon.end(signal.SIGKILL)
        world.faults += 1
    if step % 53 == 45:
        world.daemon.start()


def restart(world: World, step: int) -> None:
    if step % 71 == 50:
        world.daemon.end()
        world.daemon.start()
        world.faults += 1


def stop(world: World, step: int) -> None:
    """It hangs for some steps, or in the middle of one."""
    if step % 29 == 15:
        os.kill(world.process, signal.SIGSTOP)
        world.faults += 1
    if step % 29 == 19:
        os.kill(world.process, signal.SIGCONT)


def fill(world: World, step: int) -> None:
    """Others take all of the disk, and give it back. There is never room for all activations."""
    others = world.daemon.folder.parent / "others"
    if step % 61 == 9:
        world.faults += 1
        with others.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
    if step % 61 == 48:
        others.unlink()


def flip_on_disk(world: World, step: int) -> None:
    if step >= STEPS and world.faults < FLIPS and step % 4 == 1:
        world.flip_on_disk(FLIPS // 16)


def flip_in_daemon(world: World, step: int) -> None:
    """Where a row lies that the daemon has given back, there may be something else a moment later, and it ends."""
    if world.daemon.process is not None and world.daemon.process.poll() is not None:
        world.daemon.start()
    if step >= STEPS and world.faults < FLIPS and step % 6 == 1:
        world.flip_in_memory(world.process, FLIPS // 10, "")


def flip_in_shared(world: World, step: int) -> None:
    """The memory through which training and daemon give each other activations."""
    if step >= STEPS and world.faults < FLIPS and step % 2 == 1:
        world.flip_in_memory(os.getpid(), FLIPS // 16, "memfd:egeria-cache")


def truncate(world: World, step: int) -> None:
    if step % 41 == 33:
        for blob in world.daemon.folder.rglob("*.blob"):
            os.truncate(blob, blob.stat().st_size // 2)
            world.faults += 1


@dataclasses.dataclass
class Scenario:
    """A way to harm a cache.

    Attributes:
      least: so many faults have to be made.
      disk: bytes of a file system of its own; 0: none.
    """

    harm: Callable[[World, int], None]
    width: int = SMALL
    least: int = 0
    options: tuple[str, ...] = ("--write-buffer", "1MiB")
    disk: int = 0


SCENARIOS = {
    "untouched": Scenario(nothing),
    "killed and started anew": Scenario(kill, least=1),
    "stopped and started anew": Scenario(restart, least=1),
    "hangs (SIGSTOP)": Scenario(stop, least=3),
    "a full disk": Scenario(fill, LARGE, least=1, disk=64 << 20),
    "bits on the disk": Scenario(flip_on_disk, LARGE, least=FLIPS, options=("--write-buffer", "1MiB", "--memory", "0")),
    "bits in the daemon's memory": Scenario(flip_in_daemon, least=FLIPS // 2),
    "bits in shared memory": Scenario(flip_in_shared, least=FLIPS // 2),
    "files cut short": Scenario(truncate, LARGE, least=1),
    "a quota of a fourth": Scenario(nothing, LARGE, options=("--quota", str(SAMPLES * LARGE))),
}


@dataclasses.dataclass
class Report:
    """Tells what came of a scenario.

    Attributes:
      wrong: rows that were other than what the trunk computes.
      noticed: samples that the cache had lost, had too late, or had no room for.
      same: the weights at the end are the plain run's.
    """

    faults: int
    rows: int
    served: int
    wrong: int
    noticed: int
    same: bool

    def line(self) -> str:
        return (
            f"{self.faults} faults, {self.served} of {self.rows} samples served, {self.noticed} lost or late, "
            f"{self.wrong} wrong, weights {'equal to the bit' if self.same else 'DIFFER'}"
        )


def train(width: int, epochs: int, world: World | None, harm: Callable[[World, int], None]) -> tuple[nn.Module, Report]:
    """Trains the head; without a world plainly."""
    torch.manual_seed(1)
    model = Network(width)
    optimizer = torch.optim.SGD(model.head.parameters(), 0.01, momentum=0.9)
    loader = DataLoader(TensorDataset(INPUTS, torch.arange(SAMPLES)), BATCH, shuffle=True)
    session = None
    if world is not None:
        config = egeria.Config(controller="none", policy="none", cache=world.daemon.address, cache_use="always")
        session = egeria.attach(model, optimizer, config=config)
        session._training.cache.caching._gate.ledger.skippable = 65  # nothing is audited, so that mistakes show
        loader = data.wrap(loader)
    rows = wrong = step = 0
    for _ in range(epochs):
        for inputs, index in loader:
            if world is not None:
                harm(world, step)
                time.sleep(0.005)  # a step takes so long, in which the cache comes back
            logits, features = model(inputs)
            if world is not None:
                rows += len(index)
                wrong += int((features.view(torch.int32) != world.rows[index].view(torch.int32)).any(1).sum())
            loss = F.cross_entropy(logits, index % 4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        time.sleep(0.2 if world is not None else 0)  # the daemon writes meanwhile
    hits = noticed = 0
    if session is not None:
        counters = session.cache_counters()
        hits = counters["hits"]
        noticed = sum(counters[f"cache_{name}"] for name in ("corrupt", "late", "absent", "refused", "dropped"))
        session.close()
    return model, Report(0 if world is None else world.faults, rows, hits, wrong, noticed, False)


@contextlib.contextmanager
def folder_of(scenario: Scenario) -> Iterator[pathlib.Path]:
    """A folder, on a file system of its own where the scenario wants one. Raises CalledProcessError where there is
    none to be had."""
    with tempfile.TemporaryDirectory(prefix="egeria-faults-") as name:
        folder = pathlib.Path(name)
        if scenario.disk == 0:
            yield folder
            return
        image, place = folder / "image", folder / "disk"
        place.mkdir()
        with image.open("wb") as file:
            file.truncate(scenario.disk)
        for command in (["mkfs.ext4", "-q", "-m", "0", image], ["mount", "-o", "loop", image, place]):
            subprocess.run(command, check=True, capture_output=True)
        try:
            yield place
        finally:
            subprocess.run(["umount", "-l", place], check=True)


def run(scenario: Scenario, epochs: int) -> Report:
    plain, _ = train(scenario.width, epochs, None, nothing)
    rows = plain.trunk(INPUTS[torch.arange(SAMPLES).view(-1, BATCH)]).view(SAMPLES, -1)
    with folder_of(scenario) as folder:
        world = World(folder, scenario.width, list(scenario.options), rows)
        world.daemon.start()
        try:
            cached, report = train(scenario.width, epochs, world, scenario.harm)
        finally:
            if world.daemon.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(world.process, signal.SIGCONT)
            world.daemon.end(signal.SIGKILL)
    pairs = zip(plain.state_dict().values(), cached.state_dict().values())
    report.same = all(torch.equal(one, other) for one, other in pairs)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--epochs", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    faults = served = wrong = 0
    good = True
    for name in arguments.scenarios or SCENARIOS:
        scenario = SCENARIOS[name]
        try:
            report = run(scenario, arguments.epochs)
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            print(f"{name}: not tried, since there is no file system of its own: {error}", flush=True)
            continue
        print(f"{name}: {report.line()}", flush=True)
        good &= report.same and report.wrong == 0 and report.served > 0 and report.faults >= scenario.least
        faults, served, wrong = faults + report.faults, served + report.served, wrong + report.wrong
    print(f"all: {faults} faults, {served} samples served, {wrong} wrong")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
