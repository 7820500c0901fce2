"""The processor time of a step's parts by frozen prefix, on one thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bench.harness.task import Task
from egeria.model.modules import LayerModule, partition

ROUNDS = 15
_PARTS = ("forward", "backward", "update")


def measure_step(task: Task, ranks: int, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """The parts of a rank's step with each prefix k frozen, from none on: medians over interleaved rounds, in processor
    milliseconds. `frozen_forward` is the part of `forward` in the frozen modules, which a cache saves. Its hits
    cost something, which is not in it. The task's data has been loaded."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        network = task.build_model()
        step = _Step(task, network, partition(network, task.modules), task.profile.batch_size // ranks)
        taken: list[list[dict[str, float]]] = [[] for _ in step.modules]
        for _ in range(rounds + 1):
            for prefix, rows in enumerate(taken):
                rows.append(step.take(prefix))
    finally:
        torch.set_num_threads(threads)
    return [
        {"frozen_prefix": prefix}
        | {part: round(statistics.median(row[part] for row in rows[1:]), 4) for part in (*_PARTS, "frozen_forward")}
        for prefix, rows in enumerate(taken)
    ]


class _Step:
    """One step of one rank, taken again and again."""

    def __init__(self, task: Task, network: nn.Module, modules: Sequence[LayerModule], batch: int):
        self.modules = modules
        self._task, self._network = task, network
        self._samples = task.order(0, torch.Generator().manual_seed(0))[:batch]
        self._optimizer = task.optimizer(network)
        self._left = 0.0
        for module in modules:
            module.units[-1].register_forward_hook(self._leave)
        self._boundary: nn.Module | None = None

    def take(self, prefix: int) -> dict[str, float]:
        """The milliseconds of its parts."""
        self._network.train()
        for index, module in enumerate(self.modules):
            for unit in module.units:
                unit.requires_grad_(index >= prefix)
                if index < prefix:
                    unit.eval()
        self._optimizer.zero_grad()
        self._boundary = self.modules[prefix - 1].units[-1] if prefix else None
        begin = self._left = time.process_time()
        loss: Tensor = self._task.loss(self._network, self._samples, torch.device("cpu"))
        forward = time.process_time()
        loss.backward()
        backward = time.process_time()
        self._optimizer.step()
        update = time.process_time()
        seconds = (forward - begin, backward - forward, update - backward, self._left - begin)
        return {part: 1_000 * value for part, value in zip((*_PARTS, "frozen_forward"), seconds)}

    def _leave(self, unit: nn.Module, *_: Any) -> None:
        if unit is self._boundary:
            self._left = time.process_time()
