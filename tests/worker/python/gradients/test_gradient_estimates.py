"""The controller's estimates from readings: SNR against a brute-force one, one rank's steps against two ranks."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import pathlib
import re
import subprocess
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gradient_models import MODULES, make_batch, make_model
from test_gradient_step import Metered
from torch import Tensor, nn

from egeria.gradients.gradient_norms import Squares
from egeria.model.modules import partition

PART = 32  # samples of a part
READINGS = 64
# Two-sided, 90 %, Student's with 63 degrees of freedom.
Z = 1.669


@functools.cache
def trained(kind: str) -> nn.Module:
    """Somewhat trained, so that the gradient is neither all signal nor all noise."""
    model = make_model(kind)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(25):
        inputs, labels = make_batch(kind, 32, 10_000 + step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model


def gradient_of(kind: str, seed: int, samples: int = PART) -> list[Tensor]:
    """By layer module, of one part's mean loss."""
    model = trained(kind)
    inputs, labels = make_batch(kind, samples, seed)
    modules = partition(model, MODULES[kind])
    flat = iter(
        torch.autograd.grad(
            F.cross_entropy(model(inputs), labels), [value for module in modules for _, value in module.parameters()]
        )
    )
    return [torch.cat([next(flat).reshape(-1) for _ in module.parameters()]).double() for module in modules]


@functools.cache
def brute_force(kind: str, parts: int = 600) -> list[float]:
    """SNR at PART samples from many parts: of ||E g||^2 hardly any noise is left."""
    sums, squares = [0.0] * 5, [0.0] * 5
    for seed in range(parts):
        for index, gradient in enumerate(gradient_of(kind, 50_000 + seed)):
            sums[index] = sums[index] + gradient
            squares[index] += float(gradient.square().sum()) / parts
    means = [float((total / parts).square().sum()) for total in sums]
    return [(parts * mean - square) / (parts - 1) / square for mean, square in zip(means, squares)]


@functools.cache
def readings_of_ranks(kind: str) -> list[Squares]:
    """As two ranks tell them; that they do is shown in test_gradient_readings."""
    found = []
    for step in range(READINGS):
        one, other = (gradient_of(kind, 2 * step + rank) for rank in range(2))
        found.append(
            Squares(
                [float(a.square().sum() + b.square().sum()) / 2 for a, b in zip(one, other)],
                [float(((a + b) / 2).square().sum()) for a, b in zip(one, other)],
                2,
                2 * PART,
            )
        )
    return found


@functools.cache
def readings_of_steps(kind: str) -> list[Squares]:
    """As one rank tells them of steps in a row, of batches of a part; the weights stay."""
    metered = Metered(trained(kind), MODULES[kind])
    found = []
    for step in range(3 * READINGS):
        inputs, labels = make_batch(kind, PART, step)
        reading = metered.step(lambda: F.cross_entropy(metered.model(inputs), labels).backward())
        if reading is not None:
            found.append(reading)
    assert len(found) == READINGS and not metered.told
    return found


@dataclasses.dataclass
class Estimate:
    """An estimate of the SNR at the batch of all parts, with its 90 % interval."""

    value: float
    lower: float
    upper: float

    @property
    def error(self) -> float:
        return (self.upper - self.lower) / 2 / Z


def estimate(readings: list[Squares], module: int, folder: pathlib.Path) -> Estimate:
    """The controller's own, out of the reason that it gives for a freeze."""
    steps = len(readings) + 30  # fewer would be too few for a freeze
    lines: list[dict[str, Any]] = [{"job": {"modules": 2, "ranks": 2, "total_steps": steps}}]
    for step, reading in enumerate(readings, 1):
        lines.append(
            {
                "step": step,
                "gradients": {
                    "step": step,
                    "first_module": 0,
                    "parts": reading.parts,
                    "samples": reading.samples,
                    "mean_of_squares": [reading.mean_of_squares[module], 1.0],
                    "square_of_mean": [reading.square_of_mean[module], 1.0],
                },
            }
        )
    recording = folder / "readings.jsonl"
    recording.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    constants = {
        "start": 0,
        "threshold": 0.99,
        "late_threshold": 0.99,
        "min_readings": len(readings),
        "readings": len(readings),
    }
    command = [
        f"{os.environ['EGERIA_BIN']}/egeria",
        "replay",
        str(recording),
        "--policy",
        "snr",
        "--options",
        json.dumps(constants),
    ]
    (decision,) = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = re.search(r"gradient SNR (\S+) \((\S+?)\.\.(\S+?)\)", json.loads(decision)["reason"])
    assert found is not None, decision
    return Estimate(*(_at_two_parts(float(snr), readings[0].parts) for snr in found.groups()))


def _at_two_parts(snr: float, parts: int) -> float:
    of_one = snr / (snr + parts * (1 - snr))
    return at_both_parts(of_one)


def at_both_parts(snr: float) -> float:
    return 2 * snr / (1 + snr)


@pytest.mark.parametrize("kind", ["resnet", "transformer"])
@pytest.mark.parametrize("source", [readings_of_ranks, readings_of_steps], ids=["ranks", "steps"])
def test_an_estimate_has_the_brute_force_one_in_its_interval(kind: str, source, tmp_path):
    inside = 0
    for module in range(5):
        found, truth = estimate(source(kind), module, tmp_path), at_both_parts(brute_force(kind)[module])
        print(f"{kind} {source.__name__} module {module}: {found}, {truth:.4f}")
        inside += found.lower <= truth <= found.upper
        assert abs(found.value - truth) <= 3 * found.error, module
    assert inside >= 4  # five are estimated


@pytest.mark.parametrize("kind", ["resnet", "transformer"])
def test_two_ranks_and_the_steps_of_one_agree(kind: str, tmp_path):
    for module in range(5):
        ranks = estimate(readings_of_ranks(kind), module, tmp_path)
        steps = estimate(readings_of_steps(kind), module, tmp_path)
        assert abs(ranks.value - steps.value) <= 3 * math.hypot(ranks.error, steps.error), module
