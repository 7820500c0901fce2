"""docs/reference/python.md has the signatures of the package, and each member of a session."""

from __future__ import annotations

import importlib
import inspect
import pathlib
import re
from typing import Any

import egeria

PAGE = (pathlib.Path(__file__).parents[4] / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
SIGNATURES = re.findall(r"^egeria\.([\w.]+?)(?:\(\)\.(\w+))?\((.*)\)$", PAGE, re.MULTILINE)


def named(path: str, member: str) -> Any:
    """The object behind `egeria.path`, or behind `egeria.path().member`."""
    folder, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(f"egeria.{folder}") if folder else egeria, name)
    found = egeria.doctor.examine if path == "doctor" else found
    return getattr(found(), member) if member else found


def parameters(signature: inspect.Signature) -> str:
    words, star = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            words, star = [*words, "*"], True
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}".replace("'", '"')
        words.append(parameter.name + default)
    return ", ".join(words)


def test_signatures_are_those_of_the_package() -> None:
    assert len(SIGNATURES) == 12
    for path, member, shown in SIGNATURES:
        assert parameters(inspect.signature(named(path, member))) == shown, path


def test_each_public_name_has_an_entry() -> None:
    public = set(egeria.__all__) - {"__version__", "EgeriaError"}
    assert {name for name in public if f"egeria.{name}`" not in PAGE} == set()


def test_each_member_of_a_session_has_a_row() -> None:
    table = PAGE.split("\n## Session")[1].split("\n### summary")[0]
    shown = set(re.findall(r"^\| `(\w+)", table, re.MULTILINE))
    assert shown == {name for name in vars(egeria.Session) if not name.startswith("_")}


def test_each_key_of_a_summary_has_a_row() -> None:
    table = PAGE.split("\n### summary")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`\w.*?) \|", table, re.MULTILINE)
    keys = set(egeria.Session(None, egeria.Config(enabled=False)).summary())
    assert {key for row in rows for key in re.findall(r"\w+", row)} == keys
