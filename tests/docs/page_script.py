"""Makes a shell script of a page's code blocks, in the order in which a reader would type them.

- A block in `bash` is run as it stands; all of a page share one shell.
- A block in `python` is run as a program, or becomes the file that `<!-- file: train.py -->` above it names.
- A block in `yaml` becomes such a file, too.
- A block in `diff` patches the file that was last written on the page; on a page without one it shows an example.
- A block in `text` is what the commands above it print. Any number stands for any other one.
- A block without a language, or one below `<!-- not run: REASON -->`, is not run. Its syntax is looked at.

`<!-- setup` begins a comment with Python that goes before each program below it: what a reader has already.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator

PART = re.compile(
    r"<!-- setup\n(?P<setup>.*?)-->"
    r"|(?:<!-- file: (?P<file>\S+) -->\n+)?(?:<!-- not run: (?P<reason>[^\n]+) -->\n+)?"
    r"^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"-?\d[\d,.:]*")


@dataclasses.dataclass(frozen=True)
class Piece:
    language: str
    code: str
    file: str = ""  # it becomes this file
    reason: str = ""  # it is not run for this reason
    setup: str = ""  # the Python that goes before it

    @property
    def is_run(self) -> bool:
        return bool(self.language) and not self.reason


def pieces(page: str) -> Iterator[Piece]:
    setup = ""
    for part in PART.finditer(page):
        if part["setup"] is not None:
            setup = part["setup"]
        else:
            yield Piece(part["language"], part["code"], part["file"] or "", part["reason"] or "", setup)


def script(page: str) -> str:
    """The script of the page; it ends at the first command that fails."""
    lines, written, content = ["set -euo pipefail"], "", ""
    for piece in pieces(page):
        if not piece.is_run:
            continue
        if piece.file or piece.language == "diff" and written:
            written = piece.file or written
            content = piece.code if piece.file else patched(content, piece.code)
            lines.append(f"printf %s {shlex.quote(content)} > {shlex.quote(written)}")
        elif piece.language == "bash":
            lines.append(piece.code)
        elif piece.language == "python":
            lines.append(f"printf %s {shlex.quote(piece.setup + piece.code)} > program.py && python program.py")
    return "\n".join(lines) + "\n"


def patched(content: str, difference: str) -> str:
    """The text with a difference's pieces, which stand between lines of three dots, where their other lines are."""
    for part in difference.split("...\n"):
        rows = part.splitlines(keepends=True)
        old = "".join(row[1:] for row in rows if not row.startswith("+"))
        new = "".join(row[1:] for row in rows if not row.startswith("-"))
        if content.count(old) != 1:
            raise ValueError(f"these lines are in the file {content.count(old)} times, and not once:\n{old}")
        content = content.replace(old, new)
    return content


def shown(page: str) -> list[str]:
    """The lines that the page says are printed."""
    return [line for piece in pieces(page) if piece.language == "text" for line in piece.code.splitlines() if line]


def is_printed(line: str, output: str) -> bool:
    """Whether the output has the line, with any numbers and any spaces."""
    words = [r"\s+".join(map(re.escape, part.split())) for part in NUMBER.split(line)]
    return re.search(r"\s*-?\d[\d,.:]*\s*".join(words), output) is not None
