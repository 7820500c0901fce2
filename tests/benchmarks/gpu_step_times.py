"""Measures steps on a GPU: plain, watched, with half of the model frozen, and with that half taken from the cache.

usage: gpu_step_times.py resnet50|bert [options]
Needs the package (PYTHONPATH=build/dev/python), EGERIA_BIN (build/dev/bin), and for bert the package transformers.

Trains copies of one model with the same random data in turn, in bfloat16 autocast: rounds of blocks of steps, whose
order rotates. Ratios to the first plain copy are taken within a round; those of the second plain copy tell what noise
alone does. The first round does not count. At the end, each kind by itself tells what it takes of the GPU's memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
sys.path[:0] = [str(ROOT), str(TESTS), str(TESTS / "e2e"), str(TESTS / "worker" / "python" / "support")]

import torch
import torch.nn.functional as F
from cache_daemon import Daemon
from harness import Controller
from torch import Tensor, nn

import egeria
from bench.harness.turns import in_rotation
from benchmarks.recording import Recording, add_record_option, percents
from egeria import data

BATCHES = 6  # that come again and again
MIB = 1 << 20


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["resnet50", "bert"])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12, help="of a block (default 12)")
    parser.add_argument("--small", action="store_true", help="a small model, to try the script")
    parser.add_argument("--json", type=pathlib.Path, help="file that the times are written to")
    add_record_option(parser)
    return parser.parse_args()


class Bert(nn.Module):
    """BERT-base with a classifier; a batch is its token ids."""

    def __init__(self, small: bool) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 64}
        self.bert = BertModel(BertConfig(**sizes if small else {}), add_pooling_layer=False)
        self.head = nn.Linear(self.bert.config.hidden_size, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.bert(input_ids=tokens).last_hidden_state[:, 0])


class Problem:
    """A model, its data, and how it is trained."""

    def __init__(self, arguments: argparse.Namespace):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._arguments = arguments
        torch.manual_seed(1)
        size, small = arguments.batch_size, arguments.small
        if arguments.model == "bert":
            inputs = [torch.randint(0, 30_000, (size, 16 if small else 128)) for _ in range(BATCHES)]
        else:
            side = 32 if small else 224
            inputs = [torch.randn(size, 3, side, side).to(memory_format=torch.channels_last) for _ in range(BATCHES)]
        self.batches = [
            (list(range(number * size, (number + 1) * size)), batch.to(self.device), torch.arange(size) % 10)
            for number, batch in enumerate(inputs)
        ]
        self.batches = [(ids, batch, labels.to(self.device)) for ids, batch, labels in self.batches]

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        if self._arguments.model == "bert":
            return Bert(self._arguments.small).to(self.device)
        from bench.tasks.models.resnet50 import ResNet50

        model = ResNet50(8 if self._arguments.small else 64)
        return model.to(self.device, memory_format=torch.channels_last)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        fused = self.device.type == "cuda"
        if self._arguments.model == "bert":
            return torch.optim.AdamW(model.parameters(), 1e-5, fused=fused)
        return torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, fused=fused)


class Trained:
    """One copy of the model that trains."""

    def __init__(self, problem: Problem, config: dict[str, Any] | None):
        self.problem, self.config = problem, config
        self.model = problem.model()
        self.optimizer = problem.optimizer(self.model)
        self.session = None
        if config is not None:
            self.session = egeria.attach(self.model, self.optimizer, config=egeria.Config(**config))
        self.done = 0

    def steps(self, count: int) -> None:
        for _ in range(count):
            ids, inputs, labels = self.problem.batches[self.done % BATCHES]
            self.done += 1
            if self.session is not None and self.session._training.cache.caching is not None:
                data.current().announce(ids)
            with torch.autocast(self.problem.device.type, torch.bfloat16):
                loss = F.cross_entropy(self.model(inputs).float(), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.session is not None:
                self.session.step(loss)


def timed(device: torch.device, work: Callable[[], None]) -> float:
    """Seconds until the device is done."""
    synchronize(device)
    begin = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - begin


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def kinds_of(controller: Controller, cache: Daemon, modules: int) -> dict[str, dict[str, Any] | None]:
    """The sessions' configurations; those that freeze do so at the fourth step."""
    watched = {"controller": controller.address, "observe": True}
    plasticity = {"policy": "plasticity", "options": {"interval_steps": 24, "bootstrap": False}}
    frozen = {"controller": "none", "plans": [(4, modules // 2)], "cache": "none"}
    return {
        "plain": None,
        "plain again": None,
        "watched, no readings": {**watched, "policy": "none"},
        "watched, gradients": {**watched, "policy": "gradnorm", "options": {"interval_steps": 24}},
        "watched, plasticity": {**watched, **plasticity},
        "half frozen": frozen,
        "half frozen, cache where it pays": {**frozen, "cache": cache.address},
        "half frozen, cache always": {**frozen, "cache": cache.address, "cache_use": "always"},
    }


def measure(arguments: argparse.Namespace, controller: Controller, cache: Daemon) -> dict[str, Any]:
    problem = Problem(arguments)
    probe = Trained(problem, {"controller": "none"})
    modules = len(probe.session.modules)
    probe.session.close()
    del probe
    configs = kinds_of(controller, cache, modules)
    kinds = {kind: Trained(problem, config) for kind, config in configs.items()}
    for trained in kinds.values():  # until layers are frozen, links have started, and the cache is full
        trained.steps(6 * BATCHES)
        time.sleep(0.5)
    times: list[dict[str, float]] = []
    for turn in range(arguments.rounds + 1):
        measured = {
            kind: timed(problem.device, lambda kind=kind: kinds[kind].steps(arguments.steps))
            for kind in in_rotation(list(kinds), turn)
        }
        if turn > 0:
            times.append({kind: seconds / arguments.steps for kind, seconds in measured.items()})
    told = {}
    for kind, trained in kinds.items():
        if trained.session is not None:
            summary = trained.session.summary()
            told[kind] = {
                "spent": summary["spent_seconds"],
                "prefix": trained.session.prefix,
                "modules": modules,
                "frozen_share": trained.session.scalars().get("egeria/frozen_share"),
                "steps": trained.done,
                "counters": trained.session.counters(),
                "cache": summary["cache"],
            }
            trained.session.close(finished=False)
    kinds.clear()
    return {"times": times, "told": told, "memory": memory(problem, configs)}


def memory(problem: Problem, configs: dict[str, dict[str, Any] | None]) -> dict[str, list[float]]:
    """MiB of the GPU's memory for each kind by itself, between steps and at most in a step."""
    found = {}
    for kind in ("plain", "watched, plasticity", "half frozen"):
        gc.collect()
        if problem.device.type != "cuda":
            break
        before = torch.cuda.memory_allocated()
        trained = Trained(problem, configs[kind])
        trained.steps(8)
        trained.optimizer.zero_grad()
        torch.cuda.synchronize()
        gc.collect()
        rest = torch.cuda.memory_allocated() - before
        torch.cuda.reset_peak_memory_stats()
        trained.steps(8)
        torch.cuda.synchronize()
        found[kind] = [rest / MIB, (torch.cuda.max_memory_allocated() - before) / MIB]
        if trained.session is not None:
            trained.session.close(finished=False)
        del trained
    return found


def show(result: dict[str, Any]) -> None:
    times = result["times"]
    for kind in times[0]:
        own = sorted(1e3 * entry[kind] for entry in times)
        ratios = sorted(entry[kind] / entry["plain"] for entry in times)
        print(
            f"{kind:34} {statistics.median(own):7.2f} ms [{own[0]:.2f}, {own[-1]:.2f}]   over plain "
            f"{statistics.median(ratios):.3f} [{ratios[0]:.3f}, {ratios[-1]:.3f}]"
        )
    for kind, told in result["told"].items():
        spent = {what: round(1e3 * seconds) for what, seconds in told["spent"].items() if seconds > 1e-3}
        print(f"{kind}: {told['prefix']} of {told['modules']} modules frozen, {told['steps']} steps, spent ms {spent}")
        if told["cache"]:
            print(f"   cache: {told['cache']}")
    for kind, (rest, most) in result["memory"].items():
        print(f"memory, {kind}: {rest:.0f} MiB between steps, {most:.0f} MiB at most")


def recording_of(result: dict[str, Any], model: str) -> Recording:
    found = Recording()
    for kind in result["times"][0]:
        found.add(f"{kind}, a step", [1e3 * entry[kind] for entry in result["times"]], "ms", model)
        ratios = [entry[kind] / entry["plain"] for entry in result["times"]]
        found.add(f"{kind}, of the plain step", percents(ratios), "%", model)
    for kind, (_, most) in result["memory"].items():
        found.add(f"{kind}, memory at most in a step", [most], "MiB", model)
    return found


def main() -> None:
    arguments = parse_arguments()
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    print(
        f"{arguments.model}, batch {arguments.batch_size}, {card}, torch {torch.__version__}, "
        f"{arguments.rounds} rounds of {arguments.steps} steps"
    )
    os.environ["EGERIA_CACHE"] = "none"
    with tempfile.TemporaryDirectory() as name, Controller(pathlib.Path(name), "--log-level", "warning") as controller:
        cache = Daemon(pathlib.Path(name))
        cache.start()
        try:
            result = {"card": card, **measure(arguments, controller, cache)}
        finally:
            cache.end()
    show(result)
    recording_of(result, arguments.model).write(arguments.record, arguments.rounds)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
