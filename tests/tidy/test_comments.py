"""Comments and docstrings are sentences, as far as comments.py can tell."""

from __future__ import annotations

import pytest
from comments import Comment, comments, headless, headless_in, sources


def test_no_comment_is_headless() -> None:
    assert [found for path in sources() for found in headless_in(path)] == []


@pytest.mark.parametrize(
    ("text", "trailing"),
    [
        ("Of the modules of one freeze some unfreeze.", False),
        ("The rate falls. What is left is small.", False),
        ("As the next one.", False),
        ("of the steps", True),
        ("which is late", True),
    ],
)
def test_a_headless_sentence_is_found(text: str, trailing: bool) -> None:
    assert headless(Comment(1, text, trailing))


@pytest.mark.parametrize(
    ("text", "trailing"),
    [
        ("The gate asks which modules are due.", False),
        ("Most of the steps are cheap.", False),
        ("What if it fails?", False),
        ("Offers wait in a queue.", False),
        ("share of the steps", True),
        ("Whatever comes is kept.", False),
    ],
)
def test_a_sentence_is_none(text: str, trailing: bool) -> None:
    assert not headless(Comment(1, text, trailing))


def test_comments_are_found_with_their_lines_and_kinds() -> None:
    cpp = '// One\n// sentence.\n//\n// Another.\nint a = 1;  // trailing\nauto url = "http://host";\n'
    assert comments(cpp, python=False) == [
        Comment(1, "One sentence."),
        Comment(4, "Another."),
        Comment(5, "trailing", trailing=True),
    ]
    python = '#!/usr/bin/env python\n"""A module."""\n\n# One\n# sentence.\na = "# none"  # trailing\n'
    assert comments(python, python=True) == [
        Comment(2, "A module."),
        Comment(4, "One sentence."),
        Comment(6, "trailing", trailing=True),
    ]
