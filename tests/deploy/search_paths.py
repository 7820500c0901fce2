"""Where ELF files look for libraries (DT_RPATH and DT_RUNPATH), as readelf says it."""

from __future__ import annotations

import pathlib
import re
import subprocess


def elf_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The programs and shared libraries below a folder, without those that a link leads to."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.suffix in {".o", ".a", ".gch", ".py", ".txt"}:
            continue
        with path.open("rb") as file:
            head = file.read(18)
        if head[:4] == b"\x7fELF" and head[16] in (2, 3):  # executable or shared object
            found.append(path)
    return found


def unsafe_entries(file: pathlib.Path) -> list[str]:
    """The entries that depend on the folder in which the program is run."""
    shown = subprocess.run(["readelf", "-dW", str(file)], text=True, capture_output=True, check=True).stdout
    entries = [entry for path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", shown) for entry in path.split(":")]
    return [entry for entry in entries if not entry.startswith(("/", "$ORIGIN", "${ORIGIN}"))]
