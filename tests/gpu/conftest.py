"""These tests train on a GPU, and are skipped where there is none.

python -m pytest -q tests/gpu                             # after the build; see HACKING.md
TEST_DEVICE=cpu python -m pytest -q tests/gpu      # those that a CPU can run, to try the tests themselves
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts

import pytest
import torch
from gpu_training import DEVICE
from harness import Controller

from egeria.training import session as session_module

_MISSING = DEVICE.type == "cuda" and not torch.cuda.is_available()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only_cuda: what it tries exists on CUDA alone")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _MISSING:
        pytest.skip("torch sees no GPU")
    if DEVICE.type != "cuda" and item.get_closest_marker("only_cuda"):
        pytest.skip("the CPU has nothing like it")


@pytest.fixture
def controller(tmp_path: pathlib.Path) -> Iterator[Controller]:
    """Its reference engine does not give way to the tests that run beside this one."""
    with Controller(tmp_path, "--max-cpu-load", "1") as running:
        yield running


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    """Two trainings with the same numbers end with the same bits."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    for session in list(session_module._open.values()):
        session.close(finished=False)
    torch.use_deterministic_algorithms(False)
    torch.compiler.reset()
