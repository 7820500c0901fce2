"""The files of the repository, as the tidy tests read them."""

from __future__ import annotations

import functools
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


@functools.cache
def files(*patterns: str) -> tuple[pathlib.Path, ...]:
    """The files that git tracks or would add, whose names match one of the patterns, such as "*.py"."""
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run([*command, "--", *patterns], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(path for name in sorted(set(listed.split("\0")) - {""}) if (path := ROOT / name).is_file())


@functools.cache
def text(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf-8")


def name(path: pathlib.Path) -> str:
    """The path as it is written in messages: from the repository's root, with slashes."""
    return path.relative_to(ROOT).as_posix()
