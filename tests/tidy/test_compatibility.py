"""docs/reference/compatibility.md has the scripts of the suite in tests/compat, no more and no fewer."""

from __future__ import annotations

import re
import sys

from source_tree import ROOT, text

sys.path.insert(0, str(ROOT / "tests" / "compat"))
from scripts import all_scripts

ROW = re.compile(r"^\| `(\w+\.\w+)` \| (.*?) \|", re.MULTILINE)


def test_the_table_has_the_scripts_of_the_suite() -> None:
    rows = ROW.findall(text(ROOT / "docs" / "reference" / "compatibility.md"))
    assert rows == [(script.name, script.does) for script in all_scripts()]


def test_there_are_at_least_forty_scripts_and_each_says_what_it_is() -> None:
    scripts = all_scripts()
    assert len(scripts) >= 40
    assert [script.name for script in scripts if not script.does] == []
