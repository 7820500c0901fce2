"""Measures the cost of a reading of gradients: steps with and without one, in turn, in the same training.

usage: gradient_reading_cost.py [--model resnet20|transformer] [--ranks 2] [--steps N]

Every second step is measured, with one rank three of four; a ratio is taken of a step and the one before it. Needs the
package (PYTHONPATH=build/dev/python) and a build with tests. Prints the median seconds of both kinds of steps, and the
median and the quartiles of the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT / "tests" / "worker" / "python" / "support"),
    str(ROOT / "worker" / "python" / "examples"),
    str(ROOT / "tests"),
    str(ROOT),
]

from bench.harness.processes import find_program
from benchmarks.recording import Recording, add_record_option, percents


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20", choices=["resnet20", "transformer"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=32)
    add_record_option(parser)
    parser.add_argument("--out", type=pathlib.Path, help=argparse.SUPPRESS)  # one rank of it
    return parser.parse_args()


def train(arguments: argparse.Namespace) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from cifar_resnet import ResNet
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import egeria
    from support.ending import end_process_group

    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if arguments.model == "resnet20":
        network: nn.Module = ResNet(20)
        inputs = torch.randn(arguments.batch_size, 3, 32, 32)
        modules = [["stem"], "layer1", "layer2", "layer3", "fc"]
    else:
        layers = [nn.TransformerEncoderLayer(128, 4, 512, 0.1, batch_first=True) for _ in range(4)]
        network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 32, 10))
        inputs = torch.randn(arguments.batch_size, 32, 128)
        modules = ["0", "1", "2", "3", "5"]
    labels = torch.randint(10, (arguments.batch_size,))
    model = DistributedDataParallel(network) if distributed else network
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    session = egeria.attach(
        model, optimizer, modules=modules, config=egeria.Config.from_env(total_steps=arguments.steps)
    )
    times = []
    for step in range(1, arguments.steps + 1):
        begin = time.perf_counter()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
        while step == 2 and not session.counters().get("connected"):
            time.sleep(0.01)
    (arguments.out / f"rank{os.environ.get('RANK', '0')}.json").write_text(json.dumps(times))
    session.close()
    if distributed:
        end_process_group()


def main() -> None:
    arguments = parse_arguments()
    if arguments.out is not None:
        train(arguments)
        return
    from fake_controller import FakeController

    os.environ.setdefault("EGERIA_BIN", str(find_program("egeria").parent))  # fake_controller is built beside it
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        interval = 2 if arguments.ranks > 1 else 4
        directive = {"gradients": {"intervalSteps": interval, "version": 1}}
        launcher = (
            [
                str(pathlib.Path(sys.executable).parent / "torchrun"),
                "--nproc-per-node",
                str(arguments.ranks),
                "--rdzv-backend",
                "c10d",
                "--rdzv-endpoint",
                "127.0.0.1:0",
            ]
            if arguments.ranks > 1
            else [sys.executable]
        )
        with FakeController(folder, **directive) as controller:
            subprocess.run(
                [*launcher, __file__, *sys.argv[1:], "--out", name],
                check=True,
                env={**os.environ, "EGERIA_CONTROLLER": controller.address, "OMP_NUM_THREADS": "1"},
            )
            controller.close()
        times = json.loads((folder / "rank0.json").read_text())[20:]
    # With one rank steps 4, 5 and 6 of a round are measured, and 7 is not.
    plain, measured = (times[0::2], times[1::2]) if arguments.ranks > 1 else (times[2::4], times[3::4])
    ratios = sorted(after / before for before, after in zip(plain, measured))
    quarter = len(ratios) // 4
    recording = Recording()
    recording.add(f"{arguments.model}, {arguments.ranks} rank(s): a step with a reading", percents(ratios), "%")
    recording.write(arguments.record, len(ratios))
    print(
        f"{arguments.model}, {arguments.ranks} rank(s): "
        f"{len(controller.gradients)} readings; "
        f"{1e3 * statistics.median(plain):.1f} ms a step, {1e3 * statistics.median(measured):.1f} ms with a reading; "
        f"ratio {statistics.median(ratios):.3f} ({ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f})"
    )


if __name__ == "__main__":
    main()
