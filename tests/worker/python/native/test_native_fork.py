"""Forked and spawned children of a process whose stream to the controller is open."""

from __future__ import annotations

import os
import pathlib
import time

import pytest
import torch
from harness import Controller, wait_until
from launching import Program
from link_job import describe_job
from torch.utils.data import DataLoader, Dataset

from egeria import EgeriaError, _native


def test_a_child_that_uses_and_drops_the_link(tmp_path: pathlib.Path, controller: Controller):
    with Program(
        tmp_path, "link_job.py", "--controller", controller.address, "--out", tmp_path, "--end", "fork", "--steps", 60
    ) as program:
        program.succeed()
        assert "hangs" not in program.text()


def test_a_child_of_one_rank_of_two(tmp_path: pathlib.Path, controller: Controller):
    with Program(
        tmp_path,
        "link_job.py",
        "--controller",
        controller.address,
        "--out",
        tmp_path,
        "--end",
        "fork",
        "--steps",
        60,
        ranks=2,
    ) as program:
        program.succeed()


def test_a_child_cannot_have_a_link_of_its_own(controller: Controller):
    link = _native.RankLink(describe_job(), controller=controller.address)
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            _native.RankLink(describe_job(), controller=controller.address)
        except EgeriaError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.wait()
    assert text.startswith("[FORKED] ") and "'spawn'" in text
    link.stop(finished=True)


class Squares(Dataset):
    """Numbers made in a loader's process; `holder` carries whatever a careless user keeps beside the data."""

    def __init__(self, holder: list[object] | None = None):
        self.holder = holder or []

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        for link in self.holder:
            assert link.sampling_for(2) is None
            link.report(index, torch.tensor(1.0), [0.1], 0)
            link.stop(finished=True)
        return torch.tensor(index * index)


@pytest.mark.parametrize(
    "method, persistent, epochs", [("fork", False, 2), ("fork", True, 2), ("forkserver", False, 1), ("spawn", False, 1)]
)
def test_data_loader_workers(controller: Controller, method: str, persistent: bool, epochs: int):
    link = _native.RankLink(describe_job(), controller=controller.address)
    wait_until(lambda: link.counters()["connected"], 30, "the stream")
    # A link cannot be pickled; what a forked child inherits it may touch.
    data = Squares([link] if method == "fork" else None)
    loader = DataLoader(
        data, batch_size=8, num_workers=2, multiprocessing_context=method, persistent_workers=persistent
    )
    for epoch in range(epochs):
        assert sorted(torch.cat(list(loader)).tolist()) == [n * n for n in range(64)]
        link.report(epoch + 1, torch.tensor(1.0), [0.1], 0)
    del loader
    # The parent's stream has lived through it.
    link.report(10, torch.tensor(0.5), [0.1], 0)
    wait_until(lambda: '"step":10' in controller.egeria("list", "--json").replace(" ", ""), 30, "the report")
    counters = link.counters()
    assert counters["connected"] and counters["reconnects"] == 0
    link.stop(finished=True)


def test_forks_while_uploads_are_under_way(controller: Controller):
    link = _native.RankLink(describe_job(), controller=controller.address)
    wait_until(lambda: link.counters()["connected"], 30, "the stream")
    weights = torch.randn(16, 16)
    loader = DataLoader(Squares([link]), batch_size=8, num_workers=2, multiprocessing_context="fork")
    deadline = time.monotonic() + 30
    epochs, step = 0, 0
    while epochs < 3 or link.counters()["samples_sent"] < 3:
        assert time.monotonic() < deadline, link.counters()
        for _ in loader:
            step += 1
            inputs = torch.randn(4, 16)
            if (sampling := link.sampling_for(step)) is not None:
                link.offer_sample(sampling, step, [("x", inputs)], inputs @ inputs.T)
            if (wanted := link.snapshot_wanted(step)) is not None:
                link.offer_snapshot(wanted, wanted.module, step, [("w", weights)])
            link.commit(step)
            link.report(step, torch.tensor(1.0), [0.1], 0)
        epochs += 1
    assert link.counters()["reconnects"] == 0
    link.stop(finished=True)
