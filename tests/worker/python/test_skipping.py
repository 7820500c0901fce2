"""Skipped frozen layers: trainings end with the same bits."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from skipping_runs import DictStore, epochs, train

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "worker" / "python" / "examples"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


IMAGES = torch.randn(22, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def resnet() -> nn.Module:
    return example("cifar_resnet").ResNet(8)


RESNET_LAYERS = ["stem", "layer1", "layer2", "layer3", "fc"]


def images(ids: list[int]) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    return (IMAGES[ids],), {}


def square(output: Tensor) -> Tensor:
    return output.square().mean()


@pytest.mark.parametrize("prefix", range(1, len(RESNET_LAYERS)))
def test_resnet_ends_with_the_same_bits_cached_and_uncached(prefix: int) -> None:
    steps = epochs(22, 8, 4, images)
    plain = train(resnet, RESNET_LAYERS, prefix, steps, square)
    cached = train(resnet, RESNET_LAYERS, prefix, steps, square, DictStore())
    print(cached.skipper.refusal, dict(cached.skipper.counters))
    assert cached.skipper.refusal is None
    cached.assert_same(plain)
    assert cached.skipper.counters["passes_skipped"] > 0.5 * len(steps)
