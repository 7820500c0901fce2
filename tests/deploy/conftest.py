"""The wheel of `pip wheel .`, which is built once for all tests that install it."""

from __future__ import annotations

import pathlib
import sys

import pytest
from commands import call

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session", name="wheel")
def wheel_fixture(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Compiled as the dev preset is, so that ccache has most of it already."""
    folder = tmp_path_factory.mktemp("wheel")
    settings = [
        f"-Cbuild-dir={ROOT / 'build' / 'pip'}",
        "-Ccmake.build-type=RelWithDebInfo",
        "-Ccmake.define.CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1",
    ]
    build = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-build-isolation"]
    call(*build, *settings, "-w", folder, ROOT, folder=folder, seconds=3000, CXX="c++")
    return next(folder.glob("egeria-*.whl"))
