"""The example scripts with their three lines in observe mode: they train exactly as the plain scripts do."""

from __future__ import annotations

import json
import pathlib

import pytest
import torch
from example_scripts import (
    EXAMPLES,
    READINGS,
    SMALL_GPT,
    a_reading_of,
    launch,
    losses,
    paced,
    plain_script,
    readings,
    write_cifar,
    write_text,
)
from harness import Controller


def observe_and_compare(name: str, arguments: list, controller: Controller, folder: pathlib.Path) -> None:
    """Runs the plain script and the watched one, and compares each loss and each weight to the bit."""
    launch(plain_script(name, folder), *arguments, "--losses", "plain.jsonl", "--save", "plain.pt", folder=folder)
    out = launch(
        EXAMPLES / name,
        *arguments,
        "--losses",
        "watched.jsonl",
        "--save",
        "watched.pt",
        folder=folder,
        EGERIA_CONTROLLER=controller.address,
        EGERIA_OBSERVE="1",
        EGERIA_TRAINING_JOB="watched",
        EGERIA_POLICY="plasticity",
        EGERIA_POLICY_OPTIONS=json.dumps(READINGS),
        **paced(controller, a_reading_of("watched")),
    )
    assert "steps observed, nothing was frozen" in out
    assert len(readings("watched", controller.address, folder)) > 0
    assert losses(folder / "watched.jsonl") == losses(folder / "plain.jsonl")
    plain, watched = (torch.load(folder / file, weights_only=True) for file in ("plain.pt", "watched.pt"))
    assert plain.keys() == watched.keys()
    assert all(torch.equal(plain[key], watched[key]) for key in plain)


def test_a_resnet_in_observe_mode_has_the_plain_ones_losses_to_the_bit(tmp_path: pathlib.Path, controller: Controller):
    data = write_cifar(tmp_path / "cifar")
    arguments = [data, "--depth", 8, "--epochs", 4, "--batch-size", 16]
    observe_and_compare("cifar_resnet.py", arguments, controller, tmp_path)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_gpt_in_observe_mode_has_the_plain_ones_losses_to_the_bit(
    backend: str, tmp_path: pathlib.Path, controller: Controller
):
    text = write_text(tmp_path / "text.txt")
    arguments = [text, *SMALL_GPT, "--steps", 40, "--dropout", 0.1, "--compile", backend, "--eval-interval", 20]
    observe_and_compare("char_gpt.py", arguments, controller, tmp_path)
