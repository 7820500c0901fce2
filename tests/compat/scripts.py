"""The list of the suite's scripts, read from their sources: nothing of theirs is imported."""

from __future__ import annotations

import ast
import dataclasses
import pathlib

_SHAPES = pathlib.Path(__file__).resolve().parent / "shapes"


@dataclasses.dataclass(frozen=True)
class Script:
    """One script; shapes/__init__.py documents the facts that are declared of it.

    Attributes:
      name: file and function, such as "optimizers.sam".
      kind: what the scripts of its file have in common.
      does: what it is, in a few words.
    """

    name: str
    kind: str
    does: str
    steps: int
    counts: tuple[int, ...] = ()
    prefix: int = 2
    freezes: bool = True
    refused: str | None = None
    tells: tuple[str, ...] = ()
    ranks: int = 1
    launcher: str | None = None
    ci: bool = True


def all_scripts() -> list[Script]:
    """In the order of files' names and of the functions in them."""
    return [
        script
        for file in sorted(_SHAPES.glob("*.py"))
        for function in ast.parse(file.read_text()).body
        if isinstance(function, ast.FunctionDef) and (script := _script_of(file, function)) is not None
    ]


def _script_of(file: pathlib.Path, function: ast.FunctionDef) -> Script | None:
    for call in function.decorator_list:
        if isinstance(call, ast.Call) and getattr(call.func, "id", None) == "shape":
            facts = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
            kind = (ast.get_docstring(ast.parse(file.read_text())) or "").splitlines()[0]
            does = " ".join((ast.get_docstring(function) or "").split())
            return Script(f"{file.stem}.{function.name}", kind, does, **facts)
    return None
