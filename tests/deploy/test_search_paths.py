"""No program or library of the build takes libraries from the folder in which somebody runs it."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest
from search_paths import elf_files, unsafe_entries

BUILD = pathlib.Path(os.environ.get("EGERIA_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build" / "dev"))


def test_no_file_of_the_build_has_an_empty_or_relative_entry():
    files = [file for name in ("bin", "tests", "python", "benchmarks") for file in elf_files(BUILD / name)]
    assert BUILD / "bin" / "egeria-controller" in files
    assert {str(file): unsafe_entries(file) for file in files if unsafe_entries(file)} == {}


@pytest.mark.parametrize("path", ["", "relative", "/usr/lib:", ":/usr/lib", "/usr/lib::/lib"])
def test_such_an_entry_is_found(path: str, tmp_path: pathlib.Path):
    compiler = shutil.which("cc") or shutil.which("c++")
    source = tmp_path / "main.c"
    source.write_text("int main(void) { return 0; }\n", encoding="utf-8")
    command = [compiler, source, "-o", tmp_path / "program", f"-Wl,-rpath,{path}:$ORIGIN"]
    subprocess.run(command, check=True, capture_output=True)
    (program,) = elf_files(tmp_path)
    assert unsafe_entries(program)
