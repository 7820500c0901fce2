"""Fixtures of the end-to-end tests."""

import pathlib
import subprocess
import sys

import pytest
from harness import ROOT, Controller


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The digits data set, exported once."""
    path = tmp_path_factory.mktemp("digits") / "digits.bin"
    subprocess.run([sys.executable, ROOT / "deploy" / "digits" / "export_digits.py", path], check=True)
    return path


@pytest.fixture
def controller(tmp_path: pathlib.Path):
    """A running controller."""
    with Controller(tmp_path) as running:
        yield running
