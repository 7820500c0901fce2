"""This program says what the cache costs a training whose samples never come again as they were.

usage: taskset -c 1 never_repeating.py DIR [options]      DIR: CIFAR-10's binary files
Needs the package (PYTHONPATH=build/dev/python) and EGERIA_BIN (build/dev/bin).

A ResNet freezes its first layers after two steps, and trains with and without a cache, in three forms: the data set
draws random numbers that everybody draws; it draws them from a generator of its own; and noise is added in the loop.
The two trainings of a round run at the same time on one core, in turns of a few steps, so that the machine is the same
for both.
By form, it prints the processor time with the cache over that without, the daemon's included: of the whole training,
of its first epoch and of the later ones; the median of the rounds, and the least and the most. It also prints how many
samples were written after the first epoch. The exit code is 1 where the weights differ, or where a whole training takes
over 1.01 (median).
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "worker" / "python" / "examples"), str(ROOT / "tests"), str(ROOT)]

from bench.harness.turns import run_in_turns
from benchmarks.cache.frozen_backbone import spread
from benchmarks.cache.side_by_side import HUGE_PAGES, EpochClock, StepTurns
from benchmarks.recording import Recording, add_record_option, percents

FORMS = ("loader", "generator", "loop")
MOST = 1.01


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="folder of CIFAR-10's binary files")
    parser.add_argument("--forms", default=",".join(FORMS), help="default %(default)s")
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--frozen", type=int, default=6, help="layer modules (default %(default)s)")
    parser.add_argument("--samples", type=int, default=3_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--null", action="store_true", help="no run has a cache, which says what the ratios are worth")
    add_record_option(parser)
    parser.add_argument("--form", help=argparse.SUPPRESS)
    parser.add_argument("--job", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--turns", help=argparse.SUPPRESS)
    return parser.parse_args()


def train(arguments: argparse.Namespace) -> None:
    """One run, in a process of its own."""
    import cifar_resnet
    import numpy as np
    import torch
    import torch.nn.functional as F
    from torch.utils.data import DataLoader, Dataset, default_collate

    import egeria

    class Noisy(Dataset):
        """CIFAR-10 with noise from a generator of its own."""

        def __init__(self, images: Dataset):
            self.images = images
            self.generator = np.random.default_rng(0)

        def __len__(self) -> int:
            return len(self.images)

        def __getitem__(self, index: int) -> Any:
            image, label = self.images[index]
            return image + 0.1 * torch.from_numpy(self.generator.standard_normal(image.shape, np.float32)), label

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = cifar_resnet.ResNet(arguments.depth)
    data: Any = cifar_resnet.Cifar10(
        [arguments.data / "data_batch_1.bin"], arguments.form == "loader", arguments.samples
    )
    if arguments.form == "generator":
        data = Noisy(data)
    collate = StepTurns(arguments.turns).before(default_collate)
    loader = egeria.data.wrap(DataLoader(data, arguments.batch_size, shuffle=True, collate_fn=collate))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    config = egeria.Config.from_env(plans=[(2, arguments.frozen)])
    clock = EpochClock(arguments.job / "cache")
    offered = []
    with egeria.attach(model, optimizer, config=config, total_steps=arguments.epochs * len(loader)) as session:
        clock.begin()
        for _ in range(arguments.epochs):
            for images, labels in loader:
                if arguments.form == "loop":
                    images = images + 0.1 * torch.randn(images.shape)
                loss = F.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            clock.end_epoch()
            offered.append(session.cache_counters().get("cache_offered", 0))
        state = session.cache_estimates().get("reason", "")
    weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    report = {"epochs": clock.epochs, "weights": weights.hexdigest(), "offered": offered, "state": state}
    (arguments.job / "report.json").write_text(json.dumps(report), encoding="utf-8")


def run(form: str, cache: bool, folder: pathlib.Path, turns: str) -> dict[str, Any]:
    folder.mkdir()
    environment = {**os.environ, **HUGE_PAGES, "OMP_NUM_THREADS": "1", "EGERIA_CONTROLLER": "none"}
    environment["EGERIA_CACHE"] = str(folder / "cache") if cache and "--null" not in sys.argv else "none"
    options = ["--form", form, "--job", str(folder), "--turns", turns]
    command = [sys.executable, __file__, *sys.argv[1:], *options]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return json.loads((folder / "report.json").read_text())


def run_round(form: str, folder: pathlib.Path) -> list[dict[str, Any]]:
    """Returns what the training without the cache reports, and the one with it."""
    folder.mkdir()
    calls = [functools.partial(run, form, cache, folder / str(cache)) for cache in (False, True)]
    return run_in_turns(folder, calls)


def seconds(report: dict[str, Any], epochs: slice) -> float:
    return sum(epoch["processor"] + epoch["daemon"] for epoch in report["epochs"][epochs])


def compare(arguments: argparse.Namespace, form: str, scratch: pathlib.Path, recording: Recording) -> bool:
    """Returns whether the weights are the same, and a whole training takes no more than MOST."""
    rounds = [run_round(form, scratch / f"{form}{number}") for number in range(arguments.rounds)]
    same = all(plain["weights"] == cached["weights"] for plain, cached in rounds)
    print(f"{form}: processor time with the cache over that without; the weights are", "equal" if same else "OTHERS")
    ratios = {}
    for name, epochs in (("all", slice(None)), ("first epoch", slice(1)), ("later ones", slice(1, None))):
        ratios[name] = [seconds(cached, epochs) / seconds(plain, epochs) for plain, cached in rounds]
        print(f"  {name:12}", spread(ratios[name]))
        recording.add(form, percents(ratios[name]), "%", column=name)
    late = [cached["offered"][-1] - cached["offered"][0] for _, cached in rounds]
    print(f"  written in the first epoch {rounds[0][1]['offered'][0]}, later {max(late)}; {rounds[0][1]['state'][:60]}")
    return same and sorted(ratios["all"])[len(rounds) // 2] <= MOST


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
