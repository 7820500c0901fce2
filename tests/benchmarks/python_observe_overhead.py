"""Measures the cost of watching in Python: steps with a session in observe mode against plain steps, interleaved.

usage: python_observe_overhead.py DIR [options]      DIR: CIFAR-10's binary files
Needs the package (PYTHONPATH=build/dev/python) and EGERIA_BIN (build/dev/bin).

The ResNet of the example cifar_resnet.py under egeria-run, with a controller on the same machine. By default two ranks
share two cores with the controller. With --ranks 1 it has a core of its own.

Each rank trains three copies of the model with the same batches in turn, one with a session and two without: rounds of
blocks of steps, whose order rotates. Ratios are taken within a round, of the time on the clock and of the ranks'
processor time; that of the second plain copy to the first tells what the machine's noise alone does. The first round,
in which the model is recorded, does not count.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "worker" / "python" / "examples"), str(ROOT / "tests")]

from bench.harness.turns import in_rotation
from benchmarks.recording import Recording, add_record_option, percents


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="folder of CIFAR-10's binary files")
    parser.add_argument("--ranks", type=int, choices=[1, 2], default=2)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="per rank (default 64)")
    parser.add_argument(
        "--interval", type=int, default=24, help="steps between readings (default 24, the guideline's for 30 epochs)"
    )
    parser.add_argument("--rounds", type=int, default=18)
    parser.add_argument("--steps", type=int, default=24, help="of a block (default 24)")
    add_record_option(parser)
    parser.add_argument("--job", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def train(arguments: argparse.Namespace) -> None:
    """One rank."""
    import cifar_resnet
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    import egeria
    from support.ending import end_process_group

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = cifar_resnet.ResNet(arguments.depth)
    data = cifar_resnet.Cifar10([arguments.data / "data_batch_1.bin"], augment=False, limit=2048)
    own = range(rank, 2048, arguments.ranks)
    images = torch.stack([data[index][0] for index in own])
    labels = torch.tensor([int(data[index][1]) for index in own])

    def make(watched: bool):
        model = DistributedDataParallel(copy.deepcopy(network))
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
        # No waiting for the loss, so that all steps are watched.
        config = egeria.Config(
            observe=True,
            enabled=watched,
            policy="plasticity",
            options={"interval_steps": arguments.interval, "bootstrap": False},
        )
        return model, optimizer, egeria.attach(model, optimizer, config=config)

    kinds = {"plain": make(False), "again": make(False), "observe": make(True)}
    done = dict.fromkeys(kinds, 0)
    losses: dict[str, list[float]] = {kind: [] for kind in kinds}

    def block(kind: str) -> tuple[float, float]:
        model, optimizer, session = kinds[kind]
        dist.barrier()
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(arguments.steps):
            begin = done[kind] * arguments.batch_size % (len(images) - arguments.batch_size)
            done[kind] += 1
            batch = slice(begin, begin + arguments.batch_size)
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.step(loss)
            losses[kind].append(loss.item())
        return time.perf_counter() - wall, time.process_time() - processor

    times = []
    for turn in range(arguments.rounds + 1):
        measured = {kind: block(kind) for kind in in_rotation(list(kinds), turn)}
        if turn > 0:
            times.append(measured)
    assert losses["plain"] == losses["again"] == losses["observe"], "observe changed the training"
    session = kinds["observe"][2]
    arguments.job.joinpath(f"rank{rank}.json").write_text(
        json.dumps({"times": times, "counters": session.counters(), "spent": session.summary()["spent_seconds"]})
    )
    session.close()
    end_process_group()


def show(what: str, ratios: list[float]) -> None:
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{what}: median {middle:.3f}  quartiles {low:.3f} {high:.3f}  min {min(ratios):.3f}  max {max(ratios):.3f}")


def main() -> None:
    arguments = parse_arguments()
    if arguments.job is not None:
        train(arguments)
        return
    binary = pathlib.Path(os.environ.get("EGERIA_BIN", ROOT / "build" / "dev" / "bin")) / "egeria-run"
    with tempfile.TemporaryDirectory() as name:
        options = [
            f"--{key.replace('_', '-')}={value}"
            for key, value in vars(arguments).items()
            if key not in ("data", "job", "record")
        ]
        subprocess.run(
            [binary, "--nproc-per-node", str(arguments.ranks), __file__, arguments.data, *options, "--job", name],
            check=True,
            env=dict(os.environ, EGERIA_CACHE="none", OMP_NUM_THREADS="1"),
        )
        reports = [pathlib.Path(name) / f"rank{rank}.json" for rank in range(arguments.ranks)]
        ranks = [json.loads(report.read_text()) for report in reports]
    counters = ranks[0]["counters"]
    steps = arguments.steps
    plain = [turn["plain"][0] / steps for turn in ranks[0]["times"]]
    print(f"step: {1e3 * statistics.median(plain):.1f} ms plain, {len(plain)} rounds of {steps} steps of each")
    print(f"samples sent {counters['samples_sent']}, probes {1e3 * ranks[0]['spent'].get('probes', 0):.0f} ms in all")
    recording = Recording()
    for number, rank in enumerate(ranks):
        for place, what in enumerate(("clock", "processor")):
            for kind in ("observe", "again"):
                ratios = [turn[kind][place] / turn["plain"][place] for turn in rank["times"]]
                show(f"{kind:7} / plain, {what:9}, rank {number}", ratios)
                recording.add(f"{kind}, of the plain time, rank {number}", percents(ratios), "%", what)
    recording.write(arguments.record, arguments.rounds)


if __name__ == "__main__":
    main()
