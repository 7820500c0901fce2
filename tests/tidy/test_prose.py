"""The documents keep the rules of prose.py."""

from __future__ import annotations

from markdown_text import Block, blocks, sentences, words
from prose import faults, measure, numbers, page_faults, pages
from source_tree import name


def test_pages_keep_the_rules_of_prose() -> None:
    broken = {name(page): page_faults(page) for page in pages()}
    assert {page: found for page, found in broken.items() if found} == {}


def test_a_page_is_taken_apart() -> None:
    page = """
# A heading
First line,
second line with `a code span` and a [link](else.md "title"). <!-- 7 comments --> ![8 pictures](p.png)

```
code 9
```

- one **item**
  1. an inner item

| a | b |
|---|---|
| c | d |

<p>html</p>
"""
    assert list(blocks(page)) == [
        Block("heading", 2, "A heading"),
        Block("text", 3, "First line, second line with `a_code_span` and a link."),
        Block("text", 10, "one item"),
        Block("text", 11, "an inner item"),
        Block("header", 13, "a"),
        Block("header", 13, "b"),
        Block("cell", 15, "c"),
        Block("cell", 15, "d"),
    ]


def test_sentences_end_at_full_stops_and_not_at_abbreviations_or_in_code() -> None:
    text = "It runs torch, e.g. Linear. See `a.b` and 1.5. `x` is (on)! (Is it?) 3 are. Then vs. Now."
    expected = [
        "It runs torch, e.g. Linear.",
        "See `a.b` and 1.5.",
        "`x` is (on)!",
        "(Is it?",
        "3 are.",
        "Then vs. Now.",
    ]
    assert sentences(text) == expected


def test_a_word_has_a_letter_or_a_digit() -> None:
    assert words("It – is `a_b` (at) 3 %, &") == ["It", "is", "`a_b`", "(at)", "3"]


def test_numbers_are_counted_and_names_are_not() -> None:
    assert numbers("ResNet-50, int8, C++20, x86-64, `n=3`, https://a.b/7 and k-1") == 0
    assert numbers("12 % (10 to 14), ±0.5, 1,000; 3x, 6–13 and [1.5].") == 9


def broken(text: str, page: str = "docs/guides/a.md") -> list[str]:
    return [fault.split(": ")[1] for fault in measure(text, page).broken]


def test_each_rule_finds_what_breaks_it() -> None:
    assert broken("The agent sends samples. Why? It is asked.\n\n## What holds\n") == []
    assert broken("It saves .5 points.") == ["decimal without a leading zero"]
    assert broken("It takes 0.88 of the time.") == ["ratio where a percent should stand"]
    assert broken("It takes .88 ± .02 of it.") == [
        "decimal without a leading zero",
        "ratio where a percent should stand",
    ]
    assert (
        broken("Of these few stay.") == broken("What it costs is known.") == broken("- Which is so.") == ["no subject"]
    )
    assert broken("It is that of which we speak.") == ['"that of which"']
    assert broken("| a |\n|---|\n| b; c |\n") == ["semicolon in a table cell"]
    assert broken("| a |\n|---|\n| `b; c` |\n") == []
    assert broken("one " * 41) == ["more than 40 words"]
    assert broken("one " * 40) == []


def test_history_is_told_in_results_and_the_changelog_only() -> None:
    history = (
        "It is no longer so.",
        "It used to wait.",
        "In an earlier run it was so.",
        "It is now so.",
        "Before, it was.",
    )
    for sentence in history:
        assert len(broken(sentence)) == 1, sentence
    for sentence in (
        "It is used to wait.",
        "It looks now and then.",
        "It stops before the step.",
        "From now on it is frozen.",
    ):
        assert broken(sentence) == [], sentence


def test_a_page_fails_by_its_shares() -> None:
    def found(text: str, page: str = "docs/guides/a.md") -> list[str]:
        return faults(measure(text, page), page)

    assert found("one " * 96 + "1 2 3 4") != []
    assert found(("one " * 24 + ". One ") * 4 + "1 2 3") == []
    assert found(("one " * 24 + ". One ") * 4 + "1 2 3 4") == ["3.8 numbers in 100 words; at most 3 are allowed"]
    assert found(("one " * 24 + ". One ") * 4 + "1 2 3 4", "docs/reference/a.md") == []
    short, long = "One is. ", "One " * 26 + "is. "
    assert found(short * 9 + long) == []
    assert found(short * 8 + long) == ["89 % of the sentences have at most 25 words; at least 90 % should"]


def test_the_table_of_results_may_have_numbers() -> None:
    table = "| task | saved |\n|---|---|\n| a | 12 % (10 to 14) |\n"
    assert faults(measure(table, "README.md"), "README.md") == []
    assert faults(measure(table, "docs/guides/a.md"), "docs/guides/a.md") != []
