"""This program says what an epoch on JPEG files costs behind frozen layers, where samples need not be loaded.

usage: skipped_loading.py DIR [options]      DIR: a folder of folders of JPEG files, one for each class
Needs the package (PYTHONPATH=build/dev/python), EGERIA_BIN (build/dev/bin) and Pillow.

A head is trained behind four convolutions, or a ResNet-50's stages, which freeze after the first step. The same
training in several forms, which take turns: plain; cached; cached with skip_loading; and on features that a script
computes once and keeps in memory, as people write it by hand. Prints for each epoch the seconds by the wall clock and
the processor seconds of all processes, the daemon's and the workers' included, and at the end both over the plain
form's: the median of the rounds, the least and the most. The exit code is 1 where the weights of the plain form, the
cached one and that with skip_loading were not the same to the bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench.harness.turns import in_rotation
from benchmarks.recording import Recording, add_record_option, percents

FORMS = ("plain", "cached", "skip_loading", "features")
# A record has these columns.
COLUMNS = {"cached": "cached", "skip_loading": "with `skip_loading`", "features": "features by hand"}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="folder of folders of JPEG files")
    parser.add_argument("--samples", type=int, default=2_000)
    parser.add_argument("--size", type=int, default=128, help="images are resized to it (default 128)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trunk", choices=["small", "resnet50"], default="small", help="small: four convolutions")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    add_record_option(parser)
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    parser.add_argument("--job", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args()


# One run, in a process of its own.


def train(arguments: argparse.Namespace) -> None:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from PIL import Image
    from torch import Tensor, nn
    from torch.utils.data import DataLoader, Dataset, TensorDataset

    import egeria

    class Images(Dataset):
        def __init__(self) -> None:
            classes = sorted(path for path in arguments.data.iterdir() if path.is_dir())
            every = [(str(path), number) for number, folder in enumerate(classes) for path in sorted(folder.iterdir())]
            self.samples = every[:: max(1, len(every) // arguments.samples)][: arguments.samples]

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            path, label = self.samples[index]
            with Image.open(path) as file:
                pixels = np.array(file.convert("RGB").resize((arguments.size, arguments.size)))
            return torch.from_numpy(pixels).permute(2, 0, 1).float().div_(255), label

    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU())

    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(device.type == "cuda")  # on a CPU it would only slow allocations
    torch.manual_seed(0)
    if arguments.trunk == "resnet50":
        from bench.tasks.models.resnet50 import Features

        features = Features()
        blocks, width = [features.stem, *features.stages], features.channels
    else:
        blocks, width = [block(3, 32), block(32, 64), block(64, 128), block(128, 256)], 256
    blocks[-1] = nn.Sequential(blocks[-1], nn.AdaptiveAvgPool2d(1))
    frozen = len(blocks)
    model = nn.Sequential(*blocks, nn.Sequential(nn.Flatten(), nn.Linear(width, 10))).to(device)
    images: Any = Images()
    form = arguments.form
    clock = Clock(arguments.job)
    if form == "features":
        trunk, model = model[:frozen].eval(), model[frozen:]
        with torch.no_grad():
            parts = [
                (trunk(batch.to(device)), labels.to(device))
                for batch, labels in DataLoader(images, arguments.batch_size, num_workers=arguments.workers)
            ]
        images = TensorDataset(*(torch.cat(part) for part in zip(*parts)))
    workers = 0 if form == "features" else arguments.workers
    loader = DataLoader(
        images,
        arguments.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    loader = egeria.data.wrap(loader, skip_loading=form == "skip_loading")
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    config = egeria.Config(
        controller="none",
        plans=[] if form == "features" else [(1, frozen)],
        cache=str(arguments.job / "cache") if form in ("cached", "skip_loading") else "none",
        enabled=form != "features",
    )
    modules = None if form == "features" else [str(number) for number in range(frozen + 1)]
    with egeria.attach(model, optimizer, modules=modules, config=config) as session:
        for _ in range(arguments.epochs):
            for batch, labels in loader:
                loss = F.cross_entropy(model(batch.to(device)), labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                session.step(loss)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            clock.end_epoch()
        counters = session.cache_counters()
    weights = hashlib.sha256(b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values()))
    report = {"epochs": clock.epochs, "weights": weights.hexdigest(), "counters": counters}
    (arguments.job / "report.json").write_text(json.dumps(report), encoding="utf-8")


class Clock:
    """Takes the time of each epoch: by the wall clock, and of all processors for this process, those that it has
    started, and the cache's daemon in the job's folder."""

    def __init__(self, job: pathlib.Path):
        self.epochs: list[tuple[float, float]] = []
        self._job = os.fsencode(job)
        self._begin = self._now()

    def end_epoch(self) -> None:
        now = self._now()
        self.epochs.append((now[0] - self._begin[0], now[1] - self._begin[1]))
        self._begin = now

    def _now(self) -> tuple[float, float]:
        ended = os.times()
        running = sum(_seconds(process) for process in self._others())
        return time.perf_counter(), time.process_time() + ended.children_user + ended.children_system + running

    def _others(self) -> Iterator[pathlib.Path]:
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == os.getpid() or (b"egeria-cache" in command and self._job in command):
                yield process


def _seconds(process: pathlib.Path) -> float:
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# All runs.


def run(form: str, folder: pathlib.Path) -> dict[str, Any]:
    folder.mkdir()
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "EGERIA_CONTROLLER": "none",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS does not repeat its bits
    }
    subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--form", form, "--job", str(folder)], check=True, env=environment
    )
    return json.loads((folder / "report.json").read_text())


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def main() -> int:
    arguments = parse_arguments()
    if arguments.form:
        train(arguments)
        return 0
    rounds: list[dict[str, dict[str, Any]]] = []
    same = True
    for number in range(arguments.rounds):
        order = in_rotation(FORMS, number)
        with tempfile.TemporaryDirectory() as scratch:
            reports = {form: run(form, pathlib.Path(scratch) / form) for form in order}
        rounds.append(reports)
        for form in FORMS:
            seconds = "  ".join(f"{wall:.2f} ({processor:.2f})" for wall, processor in reports[form]["epochs"])
            print(f"round {number + 1}, {form}, seconds by epoch (processor): {seconds}", flush=True)
        same &= len({reports[form]["weights"] for form in FORMS[:3]}) == 1

    def over_plain(form: str, place: int) -> list[list[float]]:
        """Returns the ratios of the rounds by epoch. `place` is 0 for wall time and 1 for processor time."""
        return [
            [one[form]["epochs"][epoch][place] / one["plain"]["epochs"][epoch][place] for one in rounds]
            for epoch in range(arguments.epochs)
        ]

    for what, place in (("Wall time", 0), ("Processor time", 1)):
        print(f"{what} of an epoch over the plain one's; median, least and most of the rounds:")
        for form in FORMS[1:]:
            print(f"  {form:13}", "  ".join(map(spread, over_plain(form, place))))
    recording = Recording("epoch")
    for form, column in COLUMNS.items():
        for epoch, values in enumerate(over_plain(form, 0), 1):
            recording.add(str(epoch), percents(values), "%", column=column)
    recording.write(arguments.record, arguments.rounds)
    counters = rounds[-1]["skip_loading"]["counters"]
    print("Samples:", {name: value for name, value in counters.items() if name.startswith("samples_")})
    print("The weights are", "the plain ones, to the bit" if same else "OTHERS THAN THE PLAIN ONES")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
