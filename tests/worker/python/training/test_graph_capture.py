"""A training of which a part is captured in a CUDA graph. Here the capture is only said to be one; tests/gpu has real
ones."""

from __future__ import annotations

import pytest
import torch
from layered_models import Layered

import egeria
from egeria.training import graph_capture


def test_hooks_do_nothing_while_a_graph_is_captured_and_nothing_switches_afterwards(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    torch.manual_seed(0)
    model = Layered()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    session = egeria.attach(model, optimizer, config=egeria.Config(plans=[(2, 1), (5, 2), (7, 0)]))

    def step() -> None:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        session.step(loss)

    for _ in range(3):
        step()
    assert session.prefix == 1 and session.state_dict()["step"] == 3
    monkeypatch.setattr(graph_capture, "is_capturing", lambda: True)
    step()
    assert session.state_dict()["step"] == 3 and "[CUDA_GRAPH]" in caplog.text
    monkeypatch.setattr(graph_capture, "is_capturing", lambda: False)
    for _ in range(6):
        step()
    assert session.state_dict()["step"] == 9
    assert session.prefix == 1 and len(session.switches) == 1
    session.close()
