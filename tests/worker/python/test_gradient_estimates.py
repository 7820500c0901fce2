"""What the readings come to: signal-to-noise against a brute-force one, and one rank's against two ranks'."""

from __future__ import annotations

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from egeria.gradients import Squares
from egeria.modules import partition
from gradient_models import MODULES, make_batch, make_model
from test_gradients import Metered

PART = 32  # samples of a part
READINGS = 64
# Two-sided, 90 %.
Z = 1.645


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
    flat = iter(torch.autograd.grad(F.cross_entropy(model(inputs), labels),
                                    [value for module in modules for _, value in module.parameters()]))
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
        found.append(Squares([float(a.square().sum() + b.square().sum()) / 2 for a, b in zip(one, other)],
                             [float(((a + b) / 2).square().sum()) for a, b in zip(one, other)], 2, 2 * PART))
    return found


@functools.cache
def readings_of_halves(kind: str) -> list[Squares]:
    """As one rank tells them, of batches of two parts."""
    metered = Metered(trained(kind), MODULES[kind])
    found = []
    for step in range(READINGS):
        parts = [make_batch(kind, PART, 2 * step + rank) for rank in range(2)]
        inputs, labels = (torch.cat(pair) for pair in zip(*parts))
        reading = metered.step(lambda: F.cross_entropy(metered.model(inputs), labels).backward())
        assert reading is not None, metered.told
        found.append(reading)
    return found


def estimate(readings: list[Squares], modules: list[int]) -> tuple[float, float]:
    """SNR at a part, over all of `modules`, and its standard error by the jackknife over readings."""
    signal = [sum(2 * reading.square_of_mean[m] - reading.mean_of_squares[m] for m in modules) for reading in readings]
    total = [sum(reading.mean_of_squares[m] for m in modules) for reading in readings]
    count = len(readings)
    left_out = [(sum(signal) - s) / (sum(total) - t) for s, t in zip(signal, total)]
    mean = sum(left_out) / count
    return sum(signal) / sum(total), math.sqrt((count - 1) / count * sum((value - mean)**2 for value in left_out))


@pytest.mark.parametrize("kind", ["resnet", "transformer"])
@pytest.mark.parametrize("source", [readings_of_ranks, readings_of_halves], ids=["ranks", "halves"])
def test_an_estimate_has_the_brute_force_one_in_its_interval(kind: str, source):
    inside = 0
    for module in range(5):
        snr, error = estimate(source(kind), [module])
        inside += abs(snr - brute_force(kind)[module]) <= Z * error
        print(f"{kind} {source.__name__} module {module}: {snr:.4f} +- {Z * error:.4f}, {brute_force(kind)[module]:.4f}")
        assert abs(snr - brute_force(kind)[module]) <= 3 * error, module
    assert inside >= 4  # of five


@pytest.mark.parametrize("kind", ["resnet", "transformer"])
def test_two_ranks_and_the_halves_of_one_agree(kind: str):
    for module in range(5):
        ranks, error = estimate(readings_of_ranks(kind), [module])
        halves, other_error = estimate(readings_of_halves(kind), [module])
        assert abs(ranks - halves) <= 3 * math.hypot(error, other_error), module
