"""Finds comments that are no sentences: python tests/tidy/comments.py [FOLDER ...] prints them.

A comment's sentence has a subject and a verb, and its subject is the thing on the line that it speaks of. A few
patterns cannot check grammar, but they know how headless sentences begin: "Of the modules ...", "What it costs.". A
trailing comment may be a noun phrase, but not the rest of a sentence that the code begins ("// of the steps").
"""

from __future__ import annotations

import ast
import dataclasses
import io
import pathlib
import re
import sys
import tokenize
from collections.abc import Iterator

from source_tree import files, name, text

# A sentence that begins like this has lost its subject, or is only a subject.
HEADLESS = re.compile(
    r"(Of|That of|Those of|What|Which|Whose|Nor|Else|As (the )?(next|last|above|below|before|there))\b"
)
# A trailing comment may begin with a small letter, and must make sense alone.
HEADLESS_TRAILING = re.compile(f"(?i:{HEADLESS.pattern})")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
CPP_CODE = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')


@dataclasses.dataclass(frozen=True)
class Comment:
    line: int
    text: str  # without the marks, its lines joined
    trailing: bool = False


@dataclasses.dataclass(frozen=True)
class _Piece:
    """One line of a comment."""

    line: int
    column: int
    text: str
    trailing: bool


def _cpp_pieces(source: str) -> Iterator[_Piece]:
    for number, line in enumerate(source.splitlines(), 1):
        code = CPP_CODE.sub(lambda literal: "x" * len(literal[0]), line)
        column = code.find("//")
        if column >= 0:
            yield _Piece(number, column, line[column:].lstrip("/").strip(), bool(line[:column].strip()))


def _python_pieces(source: str) -> Iterator[_Piece]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield _Piece(*token.start, token.string.lstrip("#").strip(), bool(token.line[: token.start[1]].strip()))


def _joined(pieces: Iterator[_Piece]) -> Iterator[Comment]:
    """Comments of several lines: those that follow each other in one column. An empty line of a comment ends it."""
    block: list[_Piece] = []
    for piece in pieces:
        continues = (
            block and not piece.trailing and (piece.line, piece.column) == (block[-1].line + 1, block[-1].column)
        )
        if block and not (continues and piece.text):
            yield Comment(block[0].line, " ".join(part.text for part in block), block[0].trailing)
            block = []
        if piece.text:
            block.append(piece)
    if block:
        yield Comment(block[0].line, " ".join(part.text for part in block), block[0].trailing)


def _docstrings(source: str) -> Iterator[Comment]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            documented = ast.get_docstring(node)
            if documented:
                for paragraph in documented.split("\n\n"):
                    yield Comment(node.body[0].lineno, " ".join(paragraph.split()))


def comments(source: str, python: bool) -> list[Comment]:
    if python:
        return sorted([*_joined(_python_pieces(source)), *_docstrings(source)], key=lambda comment: comment.line)
    return list(_joined(_cpp_pieces(source)))


def headless(comment: Comment) -> list[str]:
    """The sentences of a comment that have no head."""
    sentences = SENTENCE_END.split(comment.text)
    pattern = HEADLESS_TRAILING if comment.trailing else HEADLESS
    return [sentence for sentence in sentences if pattern.match(sentence) and not sentence.endswith("?")]


def headless_in(path: pathlib.Path) -> list[str]:
    return [
        f"{name(path)}:{comment.line}: {sentence}"
        for comment in comments(text(path), path.suffix == ".py")
        for sentence in headless(comment)
    ]


def sources() -> tuple[pathlib.Path, ...]:
    return files("*.cc", "*.h", "*.py", "*.proto")


def main() -> None:
    wanted = tuple(folder.rstrip("/") for folder in sys.argv[1:])
    for path in sources():
        if not wanted or name(path).startswith(wanted):
            print("\n".join(headless_in(path)), end="\n" if headless_in(path) else "")


if __name__ == "__main__":
    main()
