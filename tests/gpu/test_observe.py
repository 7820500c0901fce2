"""Observing a training on a GPU changes no bit of it."""

from __future__ import annotations

import pytest
import torch
from gpu_training import Encoder, Options, Training, cuda_options, readings, same, trained
from harness import Controller

TRAININGS = {
    "fp32": Options(),
    "fp32-attention": Options(model=Encoder, optimizer="adamw"),
    "bf16": Options(autocast=torch.bfloat16),
    "fp16-with-a-scaler": cuda_options(autocast=torch.float16),
    "channels-last": Options(channels_last=True, autocast=torch.bfloat16),
    "pinned-and-side-stream": cuda_options(side_stream=True),
    "fused": Options(optimizer="adamw-fused"),
    "capturable": cuda_options(model=Encoder, optimizer="adamw-capturable"),
    "compiled": cuda_options(compile="default"),
    "compiled-in-place": cuda_options(compile="in-place"),
    "compiled-to-cuda-graphs": cuda_options(model=Encoder, compile="reduce-overhead"),
    "graphed-callables": cuda_options(graphed=("blocks.0", "blocks.2")),
}

READINGS = {
    "plasticity": {
        "policy": "plasticity",
        "options": {"interval_steps": 2, "window": 3, "bootstrap": False},
        "batch_size": 8,
    },
    "gradients": {"policy": "gradnorm", "options": {"interval_steps": 2}},
}


@pytest.mark.parametrize("kind", TRAININGS)
@pytest.mark.parametrize("reads", ["plasticity", "gradients"])
def test_watching_changes_no_bit_of_a_training(
    kind: str, reads: str, controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    options = TRAININGS[kind]
    watched = Training(options)
    session = watched.attach(controller=controller.address, observe=True, training_job="watched", **READINGS[reads])
    watched.train(8, session, pace=0.05)
    if reads == "plasticity" and options.graphed:
        watched.train(20, session, pace=0.02)
        assert "of which it has no copy" in caplog.text and readings(controller) == []
    else:
        watched.train_until(lambda: len(readings(controller)) > 2, session)
    session.close()
    plain = trained(options, watched.step)
    assert same(watched.losses, plain.losses)
    assert same(watched.state(), plain.state())
