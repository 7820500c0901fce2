"""The pages of docs/adr have one form, are short, and are listed in their index by their titles."""

from __future__ import annotations

import re

from source_tree import ROOT, text

FOLDER = ROOT / "docs" / "adr"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))
SECTIONS = ["Context", "Decision", "Consequences", "Alternatives"]
MOST_WORDS = 450  # a page


def test_each_decision_has_a_numbered_title_and_four_sections() -> None:
    for page in PAGES:
        assert re.match(rf"# {int(page.name[:4])}\. \S", text(page)), page.name
        assert re.findall(r"^## (.*)$", text(page), re.MULTILINE) == SECTIONS, page.name


def test_no_decision_takes_more_than_a_page() -> None:
    assert [page.name for page in PAGES if len(text(page).split()) > MOST_WORDS] == []


def test_the_index_lists_each_decision_once_by_its_title() -> None:
    titles = {page.name: text(page).splitlines()[0].partition(". ")[2] for page in PAGES}
    listed = re.findall(r"^- \[(\d+)\]\((\S+)\) (.*)$", text(FOLDER / "README.md"), re.MULTILINE)
    assert len(listed) == len(PAGES)
    assert {name: title for _, name, title in listed} == titles
    assert [name for number, name, _ in listed if int(number) != int(name[:4])] == []
