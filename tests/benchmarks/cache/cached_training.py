"""Whole trainings with and without the cache of frozen activations: weights, share of skipped passes, wall time.

usage: cached_training.py DIR [options]      DIR: CIFAR-10's binary files
Needs the package (PYTHONPATH=build/dev/python) and EGERIA_BIN (build/dev/bin).

A ResNet on two ranks that freezes, freezes further, unfreezes and freezes again at given epochs, shuffled, with a
partial last batch; with --augment each image is shifted and mirrored at random, as usual, so that nothing can be
reused. Runs without and with a cache take turns. Prints, by round, the ratio of wall times of the training loops, the
share of them that the cache's own code took of the training thread, and whether the weights of each rank were the same
to the bit. The exit code is 1 if they were not, or if with --augment that share was over 1 % (median).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [
    str(ROOT / "worker" / "python" / "examples"),
    str(ROOT / "tests" / "worker" / "python" / "support"),
    str(ROOT / "tests"),
]

from benchmarks.recording import Recording, add_record_option, percents
from benchmarks.two_ranks import read_plans, run_two_ranks

# The cache's own code may take this part of a training's time where nothing can be reused.
MOST_IN_VAIN = 0.01


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="folder of CIFAR-10's binary files")
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--samples", type=int, default=2_000)
    parser.add_argument("--batch-size", type=int, default=64, help="per rank (default 64)")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--plans", default="2:2,5:5,8:0,9:4", help="epoch:frozen modules,... (default %(default)s)")
    parser.add_argument("--augment", action="store_true")
    parser.add_argument("--use", choices=["auto", "always"], default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    add_record_option(parser)
    parser.add_argument("--job", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--cache", default="none", help=argparse.SUPPRESS)
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
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = cifar_resnet.ResNet(arguments.depth)
    torch.manual_seed(1 + rank)
    model = DistributedDataParallel(network)
    data = cifar_resnet.Cifar10([arguments.data / "data_batch_1.bin"], arguments.augment, arguments.samples)
    sampler = DistributedSampler(data, seed=7)
    loader = egeria.data.wrap(DataLoader(data, arguments.batch_size, sampler=sampler, num_workers=arguments.workers))
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    plans = read_plans(arguments.plans, len(loader))
    session = egeria.attach(
        model,
        optimizer,
        config=egeria.Config(controller="none", plans=plans, cache=arguments.cache, cache_use=arguments.use),
    )
    epochs, states = [], []
    processor = time.process_time()
    for epoch in range(arguments.epochs):
        begin = time.perf_counter()
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.step(loss)
        epochs.append(time.perf_counter() - begin)
        states.append(session.cache_estimates())
    weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in network.state_dict().values()))
    report = {
        "epochs": epochs,
        "weights": weights.hexdigest(),
        "summary": session.summary(),
        "estimates": states,
        "counters": session.cache_counters(),
        "processor": time.process_time() - processor,
    }
    (arguments.job / f"rank{rank}.json").write_text(json.dumps(report), encoding="utf-8")
    session.close()
    end_process_group()


def run(cache: str, folder: pathlib.Path) -> list[dict]:
    folder.mkdir()
    run_two_ranks(__file__, ["--job", str(folder), "--cache", cache])
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@dataclasses.dataclass
class Round:
    """A training with the cache beside one without it; shares are 0..1.

    Attributes:
      time: wall time with the cache, of that without it.
      last_epoch: the same of the last epoch alone.
      spent: part of the training that the cache's own code takes.
      skipped: part of the passes with frozen layers that the cache spared.
      same: the weights are equal to the bit.
    """

    time: float
    last_epoch: float
    spent: float
    skipped: float
    same: bool


def compare(arguments: argparse.Namespace, number: int, address: str, folder: pathlib.Path) -> Round:
    """Trains once without and once with the cache, and prints what each took."""
    order = [("none", "plain"), (address, "cached")]
    runs = {name: run(cache, folder / f"{name}{number}") for cache, name in (order if number % 2 == 0 else order[::-1])}
    seconds = {name: max(sum(rank["epochs"]) for rank in ranks) for name, ranks in runs.items()}
    ratio = seconds["cached"] / seconds["plain"]
    spent = max(rank["summary"]["cache"]["spent_seconds"] / sum(rank["epochs"]) for rank in runs["cached"])
    same = all(a["weights"] == b["weights"] for a, b in zip(runs["plain"], runs["cached"]))
    print(
        f"round {number + 1}: plain {seconds['plain']:.1f} s, cached {seconds['cached']:.1f} s, ratio {ratio:.3f}, "
        f"the cache's own code {100 * spent:.2f} %, weights {'equal' if same else 'DIFFER'}"
    )
    for name, ranks in sorted(runs.items()):
        print(
            f"  {name}, seconds by epoch:",
            *(f"{epoch:.2f}" for epoch in ranks[0]["epochs"]),
            "; processor time of the ranks:",
            *(f"{rank['processor']:.1f}" for rank in ranks),
        )
    for rank in runs["cached"]:
        cache = rank["summary"]["cache"]
        print(
            f"  skipped {cache['passes_skipped']} of {cache['passes']} passes with frozen layers, hits "
            f"{cache['hits']:,}, misses {cache['misses']:,}, saved {cache['saved_seconds']:.1f} s"
        )
        print("   ", {name: value for name, value in rank["counters"].items() if value})
    for epoch, state in enumerate(runs["cached"][0]["estimates"], 1):
        print(f"  epoch {epoch}: {state['state']}: {state['reason']}")
    last = {name: max(rank["epochs"][-1] for rank in ranks) for name, ranks in runs.items()}
    caches = [rank["summary"]["cache"] for rank in runs["cached"]]
    skipped = sum(cache["passes_skipped"] for cache in caches) / max(1, sum(cache["passes"] for cache in caches))
    return Round(ratio, last["cached"] / last["plain"], spent, skipped, same)


def main() -> int:
    arguments = parse_arguments()
    if arguments.job is not None:
        train(arguments)
        return 0
    from cache_daemon import Daemon

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        daemon = Daemon(folder)
        daemon.start()
        try:
            rounds = [compare(arguments, number, daemon.address, folder) for number in range(arguments.rounds)]
        finally:
            daemon.end()
    recording = Recording()
    for what, values in {
        "training with the cache, of the time without it": [one.time for one in rounds],
        "its last epoch alone": [one.last_epoch for one in rounds],
        "the cache's own code, of the training": [one.spent for one in rounds],
        "passes that the cache spared, of those with frozen layers": [one.skipped for one in rounds],
    }.items():
        print(f"{what}: {statistics.median(values):.4f} [{min(values):.4f}, {max(values):.4f}]")
        recording.add(what, percents(values), "%")
    recording.write(arguments.record, arguments.rounds)
    too_much = arguments.augment and statistics.median(one.spent for one in rounds) > MOST_IN_VAIN
    return 0 if all(one.same for one in rounds) and not too_much else 1


if __name__ == "__main__":
    sys.exit(main())
