"""Readings of gradients from trainings with a session, over the wire to a controller that only listens."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fake_controller import FakeController
from gradient_models import make_batch, make_model
from launching import Program

EVERY_STEP = {"intervalSteps": 1, "version": 1}
# The line is up when the third step begins. Alone a rank knows of the request at its end; two of them have heard it
# from each other two boundaries later.
FIRST_STEP = {1: 4, 2: 6}


def train(
    folder: pathlib.Path, *options: object, ranks: int = 2, plans: int = 0, gradients: dict[str, Any] | None = None
) -> tuple[FakeController, list[dict[str, Any]], str]:
    """Returns what the controller heard, what each rank says, and what was printed.

    All ranks are asked, and all send: each reading comes as often, and the same."""
    folder.mkdir(exist_ok=True)
    directive: dict[str, Any] = {"gradients": gradients} if gradients is not None else {}
    if plans > 0:
        directive["plans"] = [{"planId": 1, "frozenPrefix": plans}]
    with FakeController(folder, **directive) as controller:
        with Program(
            folder,
            "gradient_job.py",
            "--out",
            folder,
            *options,
            ranks=ranks,
            environment={"EGERIA_CONTROLLER": controller.address},
        ) as program:
            program.succeed()
        controller.close()
        by_step = {reading["step"]: {**reading, "upload_id": 0} for reading in controller.gradients}
        assert all({**reading, "upload_id": 0} == by_step[reading["step"]] for reading in controller.gradients)
        assert len(controller.gradients) == ranks * len(by_step)
        controller.gradients = [by_step[step] for step in sorted(by_step)]
        results = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
        return controller, results, program.text()


def expected(kind: str, step: int, ranks: int = 2, accumulate: int = 1, batch: int = 8) -> list[list[float]]:
    """[mean of squares, square of mean] by layer module, at the weights of the beginning, by hand."""
    model = make_model(kind)
    parts = []
    for rank in range(ranks):
        loss = torch.zeros(())
        for micro in range(accumulate):
            inputs, labels = make_batch(kind, batch, (step * accumulate + micro) * ranks + rank)
            loss = loss + F.cross_entropy(model(inputs), labels) / accumulate
        parts.append(torch.autograd.grad(loss, list(model.parameters())))
    names = [name for name, _ in model.named_parameters()]
    mean = [sum(gradients) / ranks for gradients in zip(*parts)]
    squares = [_squares(names, part) for part in parts]
    return [[sum(column) / ranks for column in zip(*squares)], _squares(names, mean)]


def _squares(names: list[str], gradients: Any) -> list[float]:
    """The layer modules are the front, with the positions, three layers or blocks, and the head."""
    sums = [0.0] * 5
    for name, gradient in zip(names, gradients):
        layer = re.match(r"(?:layers|blocks)\.(\d)", name)
        module = int(layer[1]) + 1 if layer else 4 if name.startswith("head") else 0
        sums[module] += float(gradient.double().square().sum())
    return sums


def test_progress_of_gradient_descent_is_the_signal_times_the_rate(tmp_path: pathlib.Path):
    steps = 12
    controller, _, text = train(tmp_path, "--rate", 0.5, "--steps", steps, gradients=EVERY_STEP)
    assert controller.gradients, text
    for reading in controller.gradients:
        rate = 0.5 * (1 - (reading["step"] - 1) / (2 * steps))
        signal = [2 * mean - squares for squares, mean in zip(reading["mean_of_squares"], reading["square_of_mean"])]
        scale = max(reading["mean_of_squares"])  # the two nearly cancel
        assert reading["progress"] == pytest.approx([rate * value for value in signal], rel=1e-5, abs=1e-6 * scale)


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--accumulate 2",
        "--accumulate 2 --sync-always",
        "--views --static --model resnet",
        "--wrap later",
        "--wrap compile_ddp",
        "--wrap ddp_compile",
        "--comm-hook fp16",
        "--scale",
        "--closure",
        "--closure --accumulate 2",
        "--optimizers first_steps_first",
        "--optimizers first_steps_last",
    ],
)
def test_ranks_tell_their_gradients_apart(options: str, tmp_path: pathlib.Path):
    controller, results, text = train(
        tmp_path, "--fixed-weights", "--steps", 12, *options.split(), gradients=EVERY_STEP
    )
    kind = "resnet" if "resnet" in options else "transformer"
    steps = [reading["step"] for reading in controller.gradients]
    assert steps == list(range(FIRST_STEP[2], 11)), text  # the readings of the last two are on their way at the end
    accumulate = 2 if "--accumulate 2" in options and "always" not in options else 1
    for reading in controller.gradients:
        assert (reading["parts"], reading["first_module"], reading["request_version"]) == (2, 0, 1)
        assert reading["samples"] == 16 * accumulate
        step = reading["step"] * (2 if "always" in options else 1)  # its first micro-batch is told of
        squares, mean = expected(kind, step, accumulate=accumulate)
        factor = 0.25 if "always" in options else 256.0**2 if "scale" in options else 1.0
        near = 0.1 if "scale" in options else 1e-3
        assert reading["mean_of_squares"] == pytest.approx([factor * value for value in squares], rel=near)
        assert reading["square_of_mean"] == pytest.approx([factor * value for value in mean], rel=near)
    assert results[0]["parameters"] == results[1]["parameters"]


@pytest.mark.parametrize(
    "options, reason",
    [
        ("--wrap fsdp2", "under FSDP2"),
        ("--wrap manual", "not averaged by DistributedDataParallel"),
        ("--comm-hook powersgd", "powerSGD_hook"),
    ],
)
def test_no_number_is_told_where_it_would_be_wrong(options: str, reason: str, tmp_path: pathlib.Path):
    controller, _, text = train(tmp_path, "--steps", 12, *options.split(), gradients=EVERY_STEP)
    assert not controller.gradients and text.count(reason) == 2


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["resnet", "transformer"])
def test_readings_change_nothing(ranks: int, kind: str, tmp_path: pathlib.Path):
    """Two layer modules are frozen at once, and the others are asked for; to the bit as when nothing is asked."""
    options = ["--model", kind, "--steps", 16, "--dropout", 0.2]
    silent, plain, _ = train(tmp_path / "plain", *options, ranks=ranks, plans=2)
    wanted = {**EVERY_STEP, "firstModule": 2}
    asked, measured, text = train(tmp_path / "asked", *options, ranks=ranks, plans=2, gradients=wanted)
    assert not silent.gradients and len(asked.gradients) >= 2, text
    for one, other in zip(plain, measured):
        assert one["prefixes"] == other["prefixes"] and one["prefixes"][-1] == 2
        assert one["weights"] == other["weights"] and one["random"] == other["random"]
    frozen = [reading for reading in asked.gradients if reading["step"] >= 8]
    assert frozen and all(value > 0 for reading in frozen for value in reading["mean_of_squares"])
    assert all(reading["samples"] == 8 * (3 if ranks == 1 else 2) for reading in frozen)


@pytest.mark.parametrize("ranks", [1, 2])
def test_of_frozen_modules_there_are_no_readings(ranks: int, tmp_path: pathlib.Path):
    controller, _, text = train(tmp_path, "--steps", 14, ranks=ranks, plans=2, gradients=EVERY_STEP)
    assert not [reading for reading in controller.gradients if reading["step"] >= 8], text


def test_steps_of_a_compiled_model_are_measured_on_one_rank(tmp_path: pathlib.Path):
    controller, _, text = train(
        tmp_path, "--wrap", "ddp_compile", "--steps", 12, "--fixed-weights", ranks=1, gradients=EVERY_STEP
    )
    first = FIRST_STEP[1] + 2
    assert [reading["step"] for reading in controller.gradients] == list(range(first, 13, 3)), text
    assert all(reading["parts"] == 3 and reading["samples"] == 24 for reading in controller.gradients)
