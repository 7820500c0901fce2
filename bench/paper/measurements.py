"""Reads from checkpoints of a plain run how far each layer module is from the final model, and its plasticity."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from egeria._native import compared, distance
from torch import Tensor, nn

from bench.harness import machine
from bench.harness.errors import BenchError
from bench.harness.task import Task
from bench.paper.similarity import cka, pwcca
from egeria.model.modules import LayerModule, partition

SAMPLES = 512  # held out, for CKA and PWCCA
POSITIONS = 4_096  # rows of feature maps, each a sample for PWCCA
READ_SAMPLES = 32  # for a reading of plasticity, as in the rule
WINDOWS = (3, 5, 10)  # readings after which the moving reference is renewed
FIXED = 0.1  # the share of the training at which the fixed reference was taken


def checkpoint_files(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """Checkpoints by their step. Raises BenchError [NO_CHECKPOINTS]."""
    found = sorted((int(file.stem), file) for file in folder.glob("*.pt"))
    if len(found) < 4:
        raise BenchError(
            "NO_CHECKPOINTS",
            f"{folder} has {len(found)} checkpoints; train the plain run with "
            "`egeria bench TASK --checkpoints 75 --keep-checkpoints`",
        )
    return dict(found)


def load_network(network: nn.Module, file: pathlib.Path) -> None:
    """Gives the network the weights and buffers of a checkpoint."""
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True)["network"])


def module_outputs(network: nn.Module, modules: Sequence[LayerModule], forward: Callable[[], Any]) -> list[Tensor]:
    """The output of each layer module's last unit during `forward`, which may have several passes."""
    kept: list[list[Tensor]] = [[] for _ in modules]

    def keep(_: nn.Module, __: Any, output: Any, index: int) -> None:
        kept[index].append(output.detach())

    hooks = [
        module.units[-1].register_forward_hook(functools.partial(keep, index=index))
        for index, module in enumerate(modules)
    ]
    try:
        network.eval()
        with torch.no_grad():
            forward()
    finally:
        for hook in hooks:
            hook.remove()
    return [torch.cat(parts) for parts in kept]


def measure_plain_run(task: Task, folder: pathlib.Path) -> dict[str, Any]:
    """The convergence and the plasticity of all layer modules over a plain run. The task's data has been loaded.

    The samples are held out: the task's first validation samples, in evaluation mode.
    """
    network = task.build_model()
    modules = partition(network, task.modules)
    samples = torch.arange(min(SAMPLES, task.validation_samples))
    files = checkpoint_files(folder)
    steps = list(files)

    def outputs_at(step: int) -> list[Tensor]:
        load_network(network, files[step])
        return module_outputs(network, modules, lambda: task.evaluate(network, samples, torch.device("cpu")))

    final = outputs_at(steps[-1])
    convergence: dict[str, list[list[float]]] = {"cka": [], "pwcca": []}
    grams: list[list[Tensor]] = []
    for step in steps:
        outputs = final if step == steps[-1] else outputs_at(step)
        convergence["cka"].append([cka(_rows(a), _rows(b)) for a, b in zip(outputs, final)])
        convergence["pwcca"].append([pwcca(_positions(a), _positions(b)) for a, b in zip(outputs, final)])
        grams.append([compared(output[:READ_SAMPLES].contiguous(), "sp") for output in outputs])
    fixed = max(range(len(steps)), key=lambda index: -abs(steps[index] - FIXED * steps[-1]))
    return {
        "modules": [module.name for module in modules],
        "parameters": [module.parameter_count() for module in modules],
        "samples": len(samples),
        "steps": steps,
        **convergence,
        "fixed_reference": steps[fixed],
        "plasticity": {
            "fixed": _readings(grams, [fixed] * len(steps)),
            **{f"moving {window}": _readings(grams, _moving(len(steps), window)) for window in WINDOWS},
        },
    }


def identity(task: Task, profile: str, ranks: int, seed: int) -> dict[str, Any]:
    """The part of a measurement that says which run it is about."""
    return {
        "task": task.name,
        "profile": profile,
        "settings": machine.settings_hash(task.profile),
        "ranks": ranks,
        "seed": seed,
        "machine": machine.facts(),
    }


def phases(task: Task) -> list[tuple[int, int]]:
    """The parts of the schedule between sudden drops of the rate: (first step, step after the last)."""
    steps = task.profile.steps
    rates = [task.rate(step / steps) for step in range(steps)]
    begins = [0, *(step for step in range(1, steps) if rates[step] < 0.5 * rates[step - 1])]
    return list(zip(begins, [*begins[1:], steps]))


def _rows(activations: Tensor) -> np.ndarray:
    return activations.flatten(1).numpy()


def _positions(activations: Tensor) -> np.ndarray:
    """Each position of each sample as a row of channels: POSITIONS of them at even distances."""
    rows = activations.flatten(2).transpose(1, 2).flatten(0, 1) if activations.dim() > 2 else activations
    return rows[:: max(1, len(rows) // POSITIONS)].double().numpy()


def _moving(count: int, window: int) -> list[int]:
    """The reference of each reading: the one before the first of its window."""
    return [max(0, index - 1 - (index - 1) % window) for index in range(count)]


def _readings(grams: Sequence[Sequence[Tensor]], references: Sequence[int]) -> list[list[float]]:
    """SP loss of each module at each checkpoint, against the checkpoint with that index."""
    return [
        [distance(gram, other, "sp") for gram, other in zip(row, grams[reference])]
        for row, reference in zip(grams, references)
    ]
