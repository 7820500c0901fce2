"""Whether the account of seconds saved agrees with the clock.

usage: saved_seconds.py DIR [options]      DIR: CIFAR-10's binary files
Needs the package (PYTHONPATH=build/dev/python).

The ResNet of the example cifar_resnet.py on two ranks, trained without Egeria and with layers that freeze at given
epochs, in turn. By round and over all: the difference of the trainings' times, what the account of rank 0 says (saved
less spent), and their ratio. The exit code is 1 where the two differ over all by more than --within of the clock's
saving.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "worker" / "python" / "examples"), str(ROOT / "tests")]

from benchmarks.recording import Recording, add_record_option
from benchmarks.two_ranks import read_plans, run_two_ranks


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="folder of CIFAR-10's binary files")
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--samples", type=int, default=3_200)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank (default 32)")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--plans", default="1:2,3:4", help="epoch:frozen modules,... (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--within", type=float, default=0.1, help="part of the saving (default 0.1)")
    add_record_option(parser)
    parser.add_argument("--job", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--enabled", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args()


def train(arguments: argparse.Namespace) -> None:
    """One rank."""
    import cifar_resnet
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    import egeria
    from support.ending import end_process_group

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = cifar_resnet.ResNet(arguments.depth)
    model = DistributedDataParallel(network)
    data = cifar_resnet.Cifar10([arguments.data / "data_batch_1.bin"], False, arguments.samples)
    loader = DataLoader(data, arguments.batch_size, sampler=DistributedSampler(data, seed=7), drop_last=True)
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    plans = read_plans(arguments.plans, len(loader))
    session = egeria.attach(
        model,
        optimizer,
        config=egeria.Config(controller="none", plans=plans, cache="none", enabled=bool(arguments.enabled)),
    )
    begin = time.perf_counter()
    for epoch in range(arguments.epochs):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.step(loss)
    seconds = time.perf_counter() - begin
    if dist.get_rank() == 0:
        summary = session.summary()
        report = {"seconds": seconds, "saved": summary["saved_seconds"], "spent": summary["spent_seconds"]}
        arguments.job.write_text(json.dumps(report), encoding="utf-8")
    session.close(finished=False)
    end_process_group()


def run(enabled: int, report: pathlib.Path) -> dict:
    run_two_ranks(__file__, ["--job", str(report), "--enabled", str(enabled)])
    return json.loads(report.read_text())


def agree(account: float, clock: float, within: float) -> bool:
    """Whether the account differs from the clock's saving by at most that part of it."""
    return abs(account - clock) <= within * clock


def main() -> int:
    arguments = parse_arguments()
    if arguments.job is not None:
        train(arguments)
        return 0
    differences, accounts = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            runs = {enabled: run(enabled, pathlib.Path(folder) / f"{number}.{enabled}") for enabled in order}
            spent = sum(runs[1]["spent"].values())
            differences.append(runs[0]["seconds"] - runs[1]["seconds"])
            accounts.append(runs[1]["saved"] - spent)
            print(
                f"round {number + 1}: plain {runs[0]['seconds']:.1f} s, freezing {runs[1]['seconds']:.1f} s: "
                f"{differences[-1]:.1f} s less; the account: {runs[1]['saved']:.1f} s saved, {spent:.2f} s spent; "
                f"ratio {accounts[-1] / differences[-1]:.2f}",
                flush=True,
            )
    account, clock = sum(accounts), sum(differences)
    recording = Recording()
    recording.add("saved by the clock", differences, "s")
    recording.add("saved by the session's account", accounts, "s")
    recording.write(arguments.record, arguments.rounds)
    print(
        f"over all rounds: the account's {account:.1f} s over the clock's {clock:.1f} s: {account / clock:.3f}; by "
        f"round, median {statistics.median(one / other for one, other in zip(accounts, differences)):.3f}"
    )
    right = agree(account, clock, arguments.within)
    print(
        f"they differ by {abs(account - clock):.1f} s, {'within' if right else 'NOT within'} {arguments.within:.0%} "
        "of the clock's saving"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
