"""The pages in docs/results, and README.md's table of results, say what the records there say."""

from __future__ import annotations

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.harness import measured
from bench.harness.report import README_MARKS, page_texts, read_groups, readme_table

RESULTS = ROOT / "docs" / "results"
REPEAT = "run `egeria bench report --out docs/results --readme README.md`"


def test_pages_of_results_are_what_the_records_give() -> None:
    pages = page_texts(RESULTS, read_groups(RESULTS))
    assert [file.name for file, text in pages.items() if file.read_text(encoding="utf-8") != text] == [], REPEAT


def test_the_table_of_results_in_the_readme_is_what_the_records_give() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert measured.fill(text, *README_MARKS, readme_table(RESULTS, "docs/results")) == text, REPEAT
