"""deploy/install.sh --packages, on a machine whose dpkg-query, apt-get and id are stand-ins."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTED = (ROOT / "deploy" / "packages.txt").read_text(encoding="utf-8").splitlines()
PACKAGES = [line for line in LISTED if line and not line.startswith("#")]


@pytest.fixture(name="machine")
def machine_fixture(tmp_path: pathlib.Path) -> pathlib.Path:
    """A checkout with the installer alone, and programs that say what they were asked for. The file `there` lists the
    packages that are installed, and `user` is the user's number."""
    (tmp_path / "deploy").mkdir()
    for name in ("install.sh", "packages.txt"):
        shutil.copy(ROOT / "deploy" / name, tmp_path / "deploy")
    programs = {
        "dpkg-query": 'for package; do :; done; grep -qx "$package" there && printf "ii "',
        "apt-get": 'echo "$*" >> asked',
        "id": "cat user",
    }
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        program.chmod(0o700)
    (tmp_path / "there").write_text("", encoding="utf-8")
    (tmp_path / "user").write_text("0\n", encoding="utf-8")
    return tmp_path


def install(machine: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PATH": f"{machine / 'bin'}:{os.environ['PATH']}"}
    call = ["bash", "deploy/install.sh", *arguments]
    return subprocess.run(call, cwd=machine, env=variables, text=True, capture_output=True, timeout=60)


def asked(machine: pathlib.Path) -> list[str]:
    file = machine / "asked"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def test_packages_alone_are_installed_where_root_asks(machine: pathlib.Path):
    (machine / "there").write_text("\n".join(PACKAGES[1:-1]) + "\n", encoding="utf-8")
    done = install(machine, "--packages")
    assert done.returncode == 0, done.stderr
    assert asked(machine) == ["update", f"install -y --no-install-recommends {PACKAGES[0]} {PACKAGES[-1]}"]
    assert not (machine / ".venv").exists()


def test_another_user_is_told_what_is_missing(machine: pathlib.Path):
    (machine / "there").write_text("\n".join(PACKAGES[2:]) + "\n", encoding="utf-8")
    (machine / "user").write_text("1000\n", encoding="utf-8")
    done = install(machine, "--packages")
    assert done.returncode == 1
    assert f"apt-get install --no-install-recommends {PACKAGES[0]} {PACKAGES[1]}\n" in done.stderr
    assert asked(machine) == []


def test_nothing_is_done_where_all_is_there(machine: pathlib.Path):
    (machine / "there").write_text("\n".join(PACKAGES) + "\n", encoding="utf-8")
    assert install(machine, "--packages").returncode == 0
    assert asked(machine) == []


def test_another_option_is_refused(machine: pathlib.Path):
    done = install(machine, "--all")
    assert (done.returncode, done.stderr) == (2, "usage: deploy/install.sh [--tests | --packages]\n")
