"""An export becomes event files, with values by module and step."""

from __future__ import annotations

import io
import json
import pathlib

import pytest

from egeria.monitor import tensorboard
from egeria.monitor.scalars import Scalar, scalars_of

RECORDS = [
    {"modules": ["stem", "head"]},
    {"step": 10, "loss": 2.5, "lr": 0.1},
    {"step": 20, "module": 0, "plasticity": 0.25},
    {"step": 24, "gradients": {"step": 22, "first_module": 1, "parts": 2, "square_of_mean": [9.0]}},
    {"step": 30, "account": {"saved_seconds": 1.5}},
    {
        "step": 40,
        "action": "freeze",
        "frozen_prefix": 1,
        "reason": "module 0: flat",
        "time": "2026-01-02T03:04:05.123456789Z",
    },
    {"step": 50, "frozen_prefix": 0, "action": "unfreeze", "reason": "by hand"},
]


def test_every_record_has_its_values():
    assert list(scalars_of(RECORDS)) == [
        Scalar("loss", 10, 2.5),
        Scalar("learning_rate", 10, 0.1),
        Scalar("plasticity/00 stem", 20, 0.25),
        Scalar("gradient_norm/01 head", 22, 3.0),
        Scalar("saved_seconds", 30, 1.5),
        Scalar("frozen_prefix", 40, 1.0, pytest.approx(1767323045.123456789)),
        Scalar("decision", 40, "freeze to 1: module 0: flat", pytest.approx(1767323045.123456789)),
        Scalar("frozen_prefix", 50, 0.0),
        Scalar("decision", 50, "unfreeze to 0: by hand"),
    ]


def test_tensorboard_reads_them(tmp_path: pathlib.Path, monkeypatch, capsys):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / "board"
    monkeypatch.setattr("sys.argv", ["tensorboard", str(folder)])
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(map(json.dumps, RECORDS)) + "\n"))
    assert tensorboard.main() == 0
    assert f"wrote 9 values to {folder}" in capsys.readouterr().out
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("plasticity/00 stem")] == [(20, 0.25)]
    assert [(event.step, event.value) for event in events.Scalars("frozen_prefix")] == [(40, 1.0), (50, 0.0)]
    assert events.Scalars("frozen_prefix")[0].wall_time == pytest.approx(1767323045.123, abs=0.01)
    assert tensorboard.main() == 2, "it adds nothing to files that are there"
    assert "has event files already" in capsys.readouterr().err
