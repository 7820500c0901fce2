"""A session takes little of a GPU's memory, and freezing gives some back."""

from __future__ import annotations

import gc

import pytest
import torch
from gpu_training import Options, Training
from harness import Controller

pytestmark = pytest.mark.only_cuda

MIB = 1 << 20


def measured(training: Training, session, steps: int = 5) -> tuple[int, int]:
    """Bytes of the GPU's memory in use between steps, and at most within them."""
    training.train(3, session)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    training.train(steps, session)
    torch.cuda.synchronize()
    training.losses.clear()
    gc.collect()
    return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()


def test_watching_takes_little(controller: Controller) -> None:
    options = Options(optimizer="adamw-fused")
    plain = Training(options, batch=64)
    rest, peak = measured(plain, None)
    del plain
    gc.collect()
    training = Training(options, batch=64)
    session = training.attach(controller=controller.address, policy="none", observe=True)
    training.train(4, session, pace=0.1)
    own_rest, own_peak = measured(training, session)
    print(
        f"memory: plain {rest / MIB:.2f} MiB at rest, {peak / MIB:.2f} at most; watched {own_rest / MIB:.2f} and "
        f"{own_peak / MIB:.2f}"
    )
    assert own_rest <= rest + MIB and own_peak <= peak + MIB
    session.close()
    del session
    assert measured(training, None)[0] <= rest + MIB // 8


def test_a_freeze_gives_back_the_gradients() -> None:
    options = Options(optimizer="adamw-fused")
    training = Training(options, batch=64)
    session = training.attach(plans=[(12, 3)])
    rest, peak = measured(training, session)
    training.train(12 - training.step, session)
    assert session.prefix == 3
    frozen_rest, frozen_peak = measured(training, session)
    gradients = sum(
        parameter.numel() * parameter.element_size()
        for module in session.modules[:3]
        for _, parameter in module.parameters()
    )
    print(
        f"memory: {rest / MIB:.2f} MiB at rest, {peak / MIB:.2f} at most; three of four modules frozen: "
        f"{frozen_rest / MIB:.2f} and {frozen_peak / MIB:.2f}; their gradients {gradients / MIB:.2f}"
    )
    assert frozen_rest <= rest - 0.9 * gradients
    assert frozen_peak < peak - gradients
