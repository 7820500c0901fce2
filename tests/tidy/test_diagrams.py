"""The diagrams of docs/internals belong to their sources, have dark colours, and are shown on a page."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree
from types import ModuleType

from source_tree import ROOT, text

FOLDER = ROOT / "docs" / "internals"


def _draw() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw", FOLDER / "draw.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_diagram_was_drawn_from_its_source() -> None:
    draw = _draw()
    assert {path.stem for path in draw.sources()} == {path.stem for path in FOLDER.glob("*.svg")}
    stale = [path.name for path in draw.sources() if draw.mark(path) not in text(path.with_suffix(".svg"))]
    assert stale == [], "run python docs/internals/draw.py"


def test_diagrams_are_pictures_with_dark_colours_that_a_page_shows() -> None:
    pages = "".join(text(page) for page in FOLDER.glob("*.md"))
    for picture in FOLDER.glob("*.svg"):
        assert xml.etree.ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        assert "prefers-color-scheme: dark" in text(picture)
        assert f"]({picture.name})" in pages
