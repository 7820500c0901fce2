#!/usr/bin/env python3
"""Measures a distillation with and without egeria.cached(teacher), and a second run with another learning rate.

usage: cached_teacher.py FOLDER [options]      FOLDER: CIFAR-10's binary files
Needs the package (PYTHONPATH=build/dev/python) and EGERIA_BIN (build/dev/bin).

A ResNet-56 teaches a ResNet-20 (worker/python/examples/distillation.py). Each run is a process of its own. Plain and
cached runs take turns: first the two of one learning rate, then those of the other, which find what the first has kept.
Prints the processor time of each epoch, and of the teacher's calls in it; and what the daemon took. The students of a
rate have to be the same, to the bit, and a later run has to find what the first has kept, or the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [
    str(ROOT / "worker" / "python" / "examples"),
    str(ROOT / "tests" / "worker" / "python" / "support"),
    str(ROOT / "tests"),
]
from cache_daemon import Daemon
from distillation import ResNet, read_images

import egeria
from benchmarks.recording import Recording, add_record_option, percents


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--teacher-depth", type=int, default=56)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.05])
    add_record_option(parser)
    parser.add_argument("--run", choices=("plain", "cached"), help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    return parser.parse_args()


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains one student. Returns its weights' hash, and by epoch the processor time and the teacher's part of it."""
    torch.manual_seed(0)
    images, labels = read_images([arguments.data / "data_batch_1.bin"], arguments.samples).tensors
    teacher, student = ResNet(arguments.teacher_depth).eval(), ResNet(arguments.depth)
    if arguments.run == "cached":
        egeria.cached(teacher, cache=arguments.cache)
    optimizer = torch.optim.SGD(student.parameters(), arguments.rates[0], momentum=0.9)
    seconds, of_teacher, wall = [], [], []
    for _ in range(arguments.epochs):
        begin, wall_begin, spent = time.process_time(), time.perf_counter(), 0.0
        for rows in torch.randperm(len(images)).split(arguments.batch_size):
            called = time.process_time()
            with torch.no_grad():
                target = F.softmax(teacher(images[rows]) / 4, dim=1)
            spent += time.process_time() - called
            loss = F.cross_entropy(student(images[rows]) / 4, target) + F.cross_entropy(
                student(images[rows]), labels[rows]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds.append(time.process_time() - begin)
        wall.append(time.perf_counter() - wall_begin)
        of_teacher.append(spent)
    weights = b"".join(value.numpy().tobytes() for value in student.state_dict().values())
    result = {"weights": hashlib.sha256(weights).hexdigest(), "epochs": seconds, "teacher": of_teacher, "wall": wall}
    if arguments.run == "cached":
        result["summary"] = egeria.cache_summary(teacher)
    return result


def run(arguments: argparse.Namespace, kind: str, rate: float, cache: str) -> dict[str, Any]:
    passed = {"samples": arguments.samples, "epochs": arguments.epochs, "batch-size": arguments.batch_size}
    passed |= {"depth": arguments.depth, "teacher-depth": arguments.teacher_depth, "rates": rate}
    options = [text for name, value in passed.items() for text in (f"--{name}", str(value))]
    command = [sys.executable, __file__, str(arguments.data), *options, "--run", kind, "--cache", cache]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return json.loads(done.stdout.splitlines()[-1])


def processor_time(process: int) -> float:
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare(arguments: argparse.Namespace) -> int:
    equal = found_all = True
    recording = Recording("epoch")
    with tempfile.TemporaryDirectory(prefix="egeria-teacher-") as folder:
        daemon = Daemon(pathlib.Path(folder))
        daemon.start()
        try:
            for rate in arguments.rates:
                plain = run(arguments, "plain", rate, daemon.address)
                before = processor_time(daemon.process.pid)
                cached = run(arguments, "cached", rate, daemon.address)
                spent = processor_time(daemon.process.pid) - before
                equal = equal and plain["weights"] == cached["weights"]
                print(f"rate {rate}: weights {'equal' if plain['weights'] == cached['weights'] else 'DIFFER'}")
                for name, found in (("plain", plain), ("cached", cached)):
                    parts = zip(found["epochs"], found["teacher"], found["wall"])
                    texts = (f"{epoch:.2f} ({teacher:.2f}; wall {wall:.2f})" for epoch, teacher, wall in parts)
                    print(f"  {name:6} seconds an epoch (the teacher's): {', '.join(texts)}")
                ratios = [mine / other for mine, other in zip(cached["epochs"], plain["epochs"])]
                for epoch, ratio in enumerate(ratios, 1):
                    recording.add(str(epoch), percents([ratio]), "%", f"rate {rate}")
                print(f"  cached over plain: {', '.join(f'{ratio:.3f}' for ratio in ratios)}; daemon {spent:.2f} s")
                summary = cached["summary"]
                print(
                    f"  {summary['served']} of {summary['calls']} calls served; {summary['cache_hits']} samples were "
                    f"found, {summary['cache_absent']} were not there"
                )
                print(f"  {json.dumps(summary)}", flush=True)
                # A few samples may not have been written by the end of the run before.
                found_all &= rate == arguments.rates[0] or summary["cache_absent"] <= arguments.samples // 10
        finally:
            daemon.end()
    recording.write(arguments.record, rounds=1)
    return 0 if equal and found_all else 1


def main() -> int:
    arguments = parse_arguments()
    if arguments.run is None:
        return compare(arguments)
    print(json.dumps(train(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
