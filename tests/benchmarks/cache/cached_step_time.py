"""Measures the cost of a cached step: trainings that are active, frozen, frozen with their activations in memory, and
frozen with them in a real egeria-cache, interleaved in one process.

usage: cached_step_time.py [CASE ...] [options]      CASE: resnet20, resnet56, bert, segmentation (all)
Needs the package (PYTHONPATH=build/dev/python) and EGERIA_BIN (build/dev/bin).

All four train copies of one model on the same batches, which come from a loader as egeria.data.wrap() makes it.
They take turns: blocks of steps, whose order rotates. The first steps of a block do not count: what has been read
ahead while others trained is used up in them. A block's time is the median of its steps, loading included; a ratio
is taken within a round of blocks. "memory" is the upper bound: each sample's activation lies in a dict, and is put
together with the others without a hash or a question. The losses of the three that are frozen have to be the same,
to the bit. Before anything is measured the daemon is started anew, so that it reads files, and not what it has not
written yet.
"""

from __future__ import annotations

import argparse
import copy
import json
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
from cached_step_models import CASES, Case
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import egeria
from egeria.cache.cut_proof import Proof, prove
from egeria.cache.forward_patches import ForwardPatches
from egeria.cache.model_call import Call
from egeria.data import current, wrap

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "worker" / "python" / "support")]
from cache_daemon import Daemon, wait_until_kept

from bench.harness.turns import in_rotation
from benchmarks.recording import Recording, add_record_option, percents

CLOCKS = {"wall": time.perf_counter, "processor": time.thread_time}
KINDS = ("active", "frozen", "memory", "cached")
RATIOS = (
    ("frozen", "active"),
    ("memory", "active"),
    ("cached", "active"),
    ("memory", "frozen"),
    ("cached", "frozen"),
    ("cached", "memory"),
)
# These columns go into a record.
RECORDED = {
    "cached/frozen": "of the frozen step without the cache",
    "cached/active": "of a step with nothing frozen",
    "cached/memory": "of a step with a dictionary in place of the daemon",
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8, help="of a block that count (default 8)")
    parser.add_argument("--unmeasured", type=int, default=10, help="of a block, before those (default 10)")
    parser.add_argument("--epoch", type=int, default=24, help="steps of an epoch (default 24)")
    parser.add_argument("--threads", type=int, default=1, help="compute threads (default 1)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="wall; or processor: the training thread's time, waits left out, for a machine that others use too",
    )
    parser.add_argument("--use", default="always", help="of the cache: always, or auto (default always)")
    parser.add_argument("--json", type=pathlib.Path, help="file that a line for each case and depth is added to")
    add_record_option(parser)
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"there is no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    return arguments


class Training:
    """One of the four."""

    def __init__(
        self,
        kind: str,
        case: Case,
        prefix: int,
        model: nn.Module,
        data: TensorDataset,
        address: str,
        arguments: argparse.Namespace,
    ):
        self.losses: list[float] = []
        self._kind = kind
        self._case = case
        self._clock = CLOCKS[arguments.clock]
        self._device = torch.device(arguments.device)
        self._model = model.to(self._device).train()
        self._optimizer = case.optimizer(self._model)
        plans = [] if kind == "active" else [(1, prefix)]
        config = egeria.Config(
            controller="none", plans=plans, cache=address if kind == "cached" else "none", cache_use=arguments.use
        )
        self._session = egeria.attach(self._model, self._optimizer, modules=case.modules, config=config)
        self._batches = endless(
            wrap(DataLoader(data, case.batch, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(2)))
        )
        self._ids: list[int] | None = None
        self._proof: Proof | None = None
        self._rows: dict[int, tuple[Tensor, ...]] = {}
        self._patches = ForwardPatches()
        if kind == "memory":
            self._model.register_forward_pre_hook(self._from_memory, with_kwargs=True)
            self._model.register_forward_hook(lambda *_: self._patches.release())

    def step(self) -> float:
        """Returns its seconds."""
        torch.manual_seed(len(self.losses))  # dropout is the same in all
        begin = self._clock()
        batch = [tensor.to(self._device) for tensor in next(self._batches)]
        if self._kind != "cached":  # where the session takes them
            self._ids = current().take(self._case.batch)
        loss = self._case.loss(self._model, batch)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._session.step(loss)
        self.losses.append(loss.item())
        return self._clock() - begin

    def counters(self) -> dict[str, Any]:
        return {**self._session.cache_counters(), **self._session.cache_estimates()}

    def wait_until_kept(self, attachments: int) -> None:
        """Until the cache is there, for this number of times, and has all that it was given."""
        wait_until_kept(self._session, attachments=attachments)

    def close(self) -> None:
        self._session.close(finished=False)  # an unfinished session prints no summary

    def _from_memory(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a pass: what is frozen is skipped; computed first, for samples that have not been seen."""
        if self._session.prefix == 0:
            return
        assert self._ids is not None
        if not all(sample in self._rows for sample in self._ids):
            call = Call(args, kwargs, len(self._ids))
            if self._proof is None:
                self._proof = prove(model, self._session.modules[: self._session.prefix], call)
            tensors = self._proof.compute(call)
            self._rows.update(
                {sample: tuple(tensor[row].clone() for tensor in tensors) for row, sample in enumerate(self._ids)}
            )
        crossing = [
            spec.placed(torch.stack([self._rows[sample][number] for sample in self._ids]))
            for number, spec in enumerate(self._proof.cut.tensors)
        ]
        self._proof.cut.skip(self._patches, crossing)

    def entry_bytes(self) -> int:
        """The bytes of a sample's entry."""
        return sum(tensor.nbytes for tensor in next(iter(self._rows.values())))


def endless(loader: DataLoader) -> Iterator[list[Tensor]]:
    while True:
        yield from loader


def measure(name: str, prefix: int, arguments: argparse.Namespace, daemon: Daemon) -> dict[str, Any]:
    """One case at one depth."""
    case = CASES[name]()
    torch.manual_seed(0)
    model = case.build()
    data = case.data(arguments.epoch * case.batch)
    trainings = {
        kind: Training(kind, case, prefix, copy.deepcopy(model), data, daemon.address, arguments) for kind in KINDS
    }
    # An epoch to see whether samples come again and one more to prove it, where that is asked; one to fill the cache.
    epochs = 1 if arguments.use == "always" else 3
    for training in trainings.values():
        for _ in range(1 + epochs * arguments.epoch + 2 * arguments.unmeasured):
            training.step()
    trainings["cached"].wait_until_kept(1)
    daemon.end()
    daemon.start()
    trainings["cached"].wait_until_kept(2)
    before = trainings["cached"].counters()
    rounds = []
    for turn in range(arguments.rounds):
        seconds = {}
        for kind in in_rotation(KINDS, turn):
            steps = [trainings[kind].step() for _ in range(arguments.unmeasured + arguments.steps)]
            seconds[kind] = statistics.median(steps[arguments.unmeasured :])
        rounds.append(seconds)
    after = trainings["cached"].counters()
    frozen = trainings["frozen"].losses
    assert frozen == trainings["memory"].losses == trainings["cached"].losses, "skipping changed the training"
    result = {
        "case": name,
        "prefix": prefix,
        "clock": arguments.clock,
        "batch": case.batch,
        "entry_bytes": trainings["memory"].entry_bytes(),
        "milliseconds": {kind: [1e3 * turn[kind] for turn in rounds] for kind in KINDS},
        "ratios": {f"{one}/{other}": [turn[one] / turn[other] for turn in rounds] for one, other in RATIOS},
        "skipped": (after.get("passes_skipped", 0) - before.get("passes_skipped", 0))
        / (arguments.rounds * (arguments.unmeasured + arguments.steps)),
        "counters": after,
    }
    for training in trainings.values():
        training.close()
    return result


def row_of(result: dict[str, Any]) -> str:
    """A line of the table: medians, and of ratios the quartiles."""
    cells = [f"{result['case']:12} {result['prefix']:2} {result['entry_bytes'] / 1024:7.0f}"]
    cells += [f"{statistics.median(values):8.1f}" for values in result["milliseconds"].values()]
    for one, other in RATIOS:
        low, middle, high = statistics.quantiles(result["ratios"][f"{one}/{other}"], n=4, method="inclusive")
        cells.append(f"{middle:5.2f} [{low:.2f}, {high:.2f}]")
    return "  ".join([*cells, f"{100 * result['skipped']:4.0f} %"])


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    head = [
        f"{'case':12} {'k':>2} {'KiB':>7}",
        *(f"{kind:>8}" for kind in KINDS),
        *(f"{one}/{other}".ljust(18) for one, other in RATIOS),
        "skipped",
    ]
    recording = Recording("network, modules")
    print("KiB of a sample; milliseconds of a step; ratios: median [quartiles] of the rounds")
    print("  ".join(head))
    for name in arguments.cases or CASES:
        for prefix in CASES[name]().prefixes:
            with tempfile.TemporaryDirectory() as folder:
                daemon = Daemon(pathlib.Path(folder))
                daemon.start()
                try:
                    result = measure(name, prefix, arguments, daemon)
                finally:
                    daemon.end()
            print(row_of(result), flush=True)
            for ratio, column in RECORDED.items():
                what = f"{CASES[name]().title}, {prefix} frozen"
                recording.add(what, percents(result["ratios"][ratio]), "%", column=column)
            if arguments.json is not None:
                with arguments.json.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(result) + "\n")
    recording.write(arguments.record, arguments.rounds)


if __name__ == "__main__":
    main()
