"""The examples with a cached network train to the bit as the plain scripts do, the first time and the second."""

from __future__ import annotations

import pathlib
import re
import sys
import urllib.request

import pytest
import torch
from cache_daemon import Daemon
from example_scripts import EXAMPLES, losses, plain_script, run, write_cifar
from harness import free_port

ARGUMENTS = {
    "distillation.py": ("--teacher-depth", 20, "--depth", 8, "--batch-size", 32, "--epochs", 3),
    "captions.py": ("--batch-size", 32, "--epochs", 3),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_losses_are_those_of_the_plain_script(name: str, tmp_path: pathlib.Path) -> None:
    daemon = Daemon(tmp_path, free_port())
    daemon.start()
    try:
        check(name, daemon, tmp_path)
    finally:
        daemon.end()


def check(name: str, daemon: Daemon, tmp_path: pathlib.Path) -> None:
    data = write_cifar(tmp_path / "cifar")
    plain = plain_script(name, tmp_path)

    def train(script: pathlib.Path, label: str) -> list[float]:
        command = [
            sys.executable,
            script,
            data,
            *ARGUMENTS[name],
            "--losses",
            f"{label}.jsonl",
            "--save",
            f"{label}.pt",
        ]
        done = run(command, tmp_path, EGERIA_CACHE=daemon.address, EGERIA_CACHE_USE="always")
        assert done.returncode == 0, done.stderr
        assert "epoch 3: loss" in done.stdout and "calls are computed" not in done.stderr
        return losses(tmp_path / f"{label}.jsonl")

    expected = train(plain, "plain")
    assert len(expected) == 3 * 10
    assert train(EXAMPLES / name, "first") == expected
    assert train(EXAMPLES / name, "second") == expected
    with urllib.request.urlopen(f"http://{daemon.metrics}/metrics", timeout=60) as answer:
        hits = re.search(r'^egeria_cache_gets_total{result="hit"} (\d+)', answer.read().decode(), re.MULTILINE)
    assert hits is not None and int(hits[1]) > 32 * 10, hits
    weights = [torch.load(tmp_path / f"{label}.pt") for label in ("plain", "first", "second")]
    assert all(torch.equal(weights[0][key], other[key]) for other in weights[1:] for key in weights[0])
