"""The example scripts with their lines for Egeria and a controller: they freeze, unfreeze, and take readings."""

from __future__ import annotations

import json
import pathlib

import torch
from example_scripts import (
    EXAMPLES,
    READINGS,
    SMALL_GPT,
    a_prefix,
    a_reading_of,
    launch,
    losses,
    paced,
    plain_script,
    readings,
    write_questions,
    write_text,
)
from harness import Controller


def test_a_script_freezes_and_unfreezes_and_its_weights_load_into_the_plain_one(
    tmp_path: pathlib.Path, controller: Controller
):
    text = write_text(tmp_path / "text.txt")
    schedule = [{"fraction": 0.2, "frozen_prefix": 2}, {"fraction": 0.6, "frozen_prefix": 0}]
    arguments = [text, *SMALL_GPT, "--steps", 60, "--compile", "aot_eager"]
    out = launch(
        EXAMPLES / "char_gpt.py",
        *arguments,
        "--losses",
        "losses.jsonl",
        "--save",
        "frozen.pt",
        folder=tmp_path,
        EGERIA_CONTROLLER=controller.address,
        EGERIA_POLICY="schedule",
        EGERIA_TOTAL_STEPS="60",
        EGERIA_POLICY_OPTIONS=json.dumps({"entries": schedule}),
        **paced(controller, a_prefix(13, 2), a_prefix(37, 0)),
    )
    assert "egeria: 60 steps" in out and "1 freeze, 1 unfreeze" in out and "DIFFERED" not in out
    values = losses(tmp_path / "losses.jsonl")
    assert values[-1] < values[0]
    launch(
        plain_script("char_gpt.py", tmp_path),
        *arguments[:-2],
        "--compile",
        "none",
        "--save",
        "plain.pt",
        folder=tmp_path,
    )
    frozen, plain = (torch.load(tmp_path / file, weights_only=True) for file in ("frozen.pt", "plain.pt"))
    assert frozen.keys() == plain.keys() and all(frozen[key].shape == plain[key].shape for key in plain)


def test_the_trainer_and_lightning_examples_run_with_a_controller(tmp_path: pathlib.Path, controller: Controller):
    options = json.dumps(READINGS)
    train, dev = write_questions(tmp_path / "train.json"), write_questions(tmp_path / "dev.json", 16, seed=1)
    out = launch(
        EXAMPLES / "hf_question_answering.py",
        train,
        dev,
        "--layers",
        2,
        "--heads",
        2,
        "--width",
        32,
        "--length",
        64,
        "--vocabulary",
        200,
        "--batch-size",
        8,
        "--epochs",
        12,
        folder=tmp_path,
        EGERIA_CONTROLLER=controller.address,
        EGERIA_POLICY="plasticity",
        EGERIA_POLICY_OPTIONS=options,
        EGERIA_TRAINING_JOB="answers",
        **paced(controller, a_reading_of("answers")),
    )
    assert "exact match" in out and "egeria: 36 steps" in out
    assert len(readings("answers", controller.address, tmp_path)) > 0
    out = launch(
        EXAMPLES / "lightning_digits.py",
        "--devices",
        2,
        "--epochs",
        2,
        folder=tmp_path,
        EGERIA_CONTROLLER=controller.address,
        EGERIA_POLICY="plasticity",
        EGERIA_POLICY_OPTIONS=options,
        EGERIA_TRAINING_JOB="digits",
        **paced(controller, a_reading_of("digits")),
    )
    assert "accuracy" in out and "egeria: 44 steps" in out
    assert len(readings("digits", controller.address, tmp_path)) > 0
