"""Readings of a training on a GPU are those of the same training on a CPU."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch
from gpu_training import DEVICE, Convolutions, Encoder, Options, Training, readings
from harness import Controller

from egeria import _native


def read(model: type, device: torch.device, folder: pathlib.Path, **config: Any) -> dict[tuple[int, int], Any]:
    """The readings of a training, by step and first layer module."""
    folder.mkdir()
    with Controller(folder, "--max-cpu-load", "1") as controller:
        training = Training(Options(model=model), device=device)
        for layer in training.network.modules():
            if isinstance(layer, torch.nn.Dropout):
                layer.p = 0.0  # a GPU draws other numbers
        session = training.attach(controller=controller.address, observe=True, **config)
        training.train(20, session, pace=0.05)
        training.train_until(lambda: len(readings(controller)) > 10, session, pace=0.05)
        found = readings(controller)
        session.close()
    found = [{**line, **line.get("gradients", {})} for line in found]
    return {(line["step"], line.get("first_module", line.get("module", 0))): line for line in found}


@pytest.mark.parametrize("model", [Convolutions, Encoder])
def test_readings_of_gradients(model: type, tmp_path: pathlib.Path) -> None:
    config = {"policy": "gradnorm", "options": {"interval_steps": 1}}
    mine = read(model, DEVICE, tmp_path / "device", **config)
    theirs = read(model, torch.device("cpu"), tmp_path / "cpu", **config)
    both = sorted(mine.keys() & theirs.keys())
    assert len(both) > 5, (sorted(mine), sorted(theirs))
    for key in both:
        for kind in ("mean_of_squares", "square_of_mean"):
            assert mine[key][kind] == pytest.approx(theirs[key][kind], rel=0.1)  # weights drift apart a little


@pytest.mark.parametrize("reference", ["controller", "local"])
def test_readings_of_plasticity(reference: str, tmp_path: pathlib.Path) -> None:
    config = {
        "policy": "plasticity",
        "reference": reference,
        "batch_size": 8,
        "options": {"interval_steps": 1, "window": 3, "bootstrap": False},
    }
    mine = read(Encoder, DEVICE, tmp_path / "device", **config)
    theirs = read(Encoder, torch.device("cpu"), tmp_path / "cpu", **config)
    values = [[line["plasticity"] for line in found.values()] for found in (mine, theirs)]
    assert all(len(found) > 5 for found in values), values
    assert all(0 <= value < 1 for found in values for value in found)
    # The snapshots are of other steps, so that single readings differ.
    typical = [sorted(found)[len(found) // 2] for found in values]
    assert 0.1 < typical[0] / typical[1] < 10, typical


@pytest.mark.parametrize("metric", ["sp", "norm"])
def test_what_is_compared_of_activations(metric: str) -> None:
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        some = torch.randn(8, 16, 5, 5).to(dtype)
        other = (some.float() + 0.1 * torch.randn(8, 16, 5, 5)).to(dtype)
        known = [_native.compared(tensor, metric) for tensor in (some, other)]
        found = [_native.compared(tensor.to(DEVICE), metric) for tensor in (some, other)]
        for one, two in zip(known, found):
            torch.testing.assert_close(one, two.cpu(), rtol=1e-4, atol=1e-6)
        assert _native.distance(*found, metric) == pytest.approx(_native.distance(*known, metric), rel=1e-3)


def test_hashes_and_rows_are_those_of_the_host() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(5, 7), torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last), torch.arange(9)]
    tensors += [torch.randn(6).bfloat16(), torch.tensor(3), torch.zeros(0, 4)]
    moved = [tensor.to(DEVICE) for tensor in tensors]
    assert _native.hash_tensors(tensors) == _native.hash_tensors(moved)
    assert _native.fingerprint("x", tensors) == _native.fingerprint("x", moved)
    rows = [torch.randn(6, 4, device=DEVICE), torch.randn(6, 2, 2, device=DEVICE)]
    assert _native.same_rows([tensor[[4, 1]] for tensor in rows], rows, [4, 1])
    assert not _native.same_rows([tensor[[4, 2]] for tensor in rows], rows, [4, 1])
