"""Fixtures of the Python package's tests."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e"))
from harness import Controller  # noqa: E402  pylint: disable=wrong-import-position


@pytest.fixture
def controller(tmp_path: pathlib.Path) -> Iterator[Controller]:
    """A running controller of this test's own."""
    with Controller(tmp_path) as running:
        yield running
