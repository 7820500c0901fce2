"""The formatters, pinned in deploy/requirements*.txt, would change no file; no line is longer than 120 columns."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

from source_tree import ROOT, files, name, text

LONGEST_LINE = 120
TOOLS = pathlib.Path(sys.executable).parent


def installed(tool: str) -> str:
    """The version of a tool beside this Python, such as "21.1.8"."""
    said = subprocess.run([TOOLS / tool, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"\d+(?:\.\d+)+", said)
    assert found, said
    return found[0]


def complaints(command: list[str | pathlib.Path]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_formatters_are_those_that_are_pinned() -> None:
    pinned = "\n".join(text(path) for path in files("deploy/requirements*.txt"))
    for tool in ("clang-format", "ruff"):
        assert f"\n{tool}=={installed(tool)}\n" in f"\n{pinned}\n"


def test_clang_format_would_change_no_file() -> None:
    sources = files("*.cc", "*.h")
    batches = [sources[first : first + 50] for first in range(0, len(sources), 50)]
    commands = [[TOOLS / "clang-format", "--dry-run", "-Werror", *batch] for batch in batches]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        assert "".join(pool.map(complaints, commands)) == ""


def test_ruff_would_change_no_file_and_finds_nothing() -> None:
    sources = files("*.py")
    assert complaints([TOOLS / "ruff", "format", "--no-cache", "--check", "--quiet", *sources]) == ""
    assert complaints([TOOLS / "ruff", "check", "--no-cache", "--quiet", *sources]) == ""


def test_no_line_is_longer_than_120_columns() -> None:
    long = [
        f"{name(path)}:{number}: {len(line)} columns"
        for path in files("*.cc", "*.h", "*.py", "*.proto", "*.cmake", "*CMakeLists.txt", "*.sh")
        for number, line in enumerate(text(path).splitlines(), 1)
        if len(line) > LONGEST_LINE
    ]
    assert long == []
