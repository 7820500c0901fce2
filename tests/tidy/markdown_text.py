"""Takes a Markdown page apart into the texts that a reader reads: paragraphs, list items, headings and table cells.

Code blocks, images and HTML are left out. A code span counts as one word, whatever stands in it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token

PARSER = MarkdownIt("commonmark").enable("table")
# A sentence ends at a full stop that a capital, a digit, a quote, a bracket or a code span follows.
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[A-Z0-9`\"'(\[])")
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|vs|cf|etc|resp|approx)\.$", re.IGNORECASE)
KINDS = {"heading_open": "heading", "td_open": "cell", "th_open": "header"}


@dataclasses.dataclass(frozen=True)
class Block:
    kind: str  # "text" (a paragraph or a list item), "heading", "cell" or "header" (a table's)
    line: int  # where it begins, from 1 on
    text: str  # its lines joined, code spans in backquotes and without spaces


def _plain(inline: Token) -> str:
    parts = []
    for token in inline.children or ():
        if token.type == "text":
            parts.append(token.content)
        elif token.type == "code_inline":
            parts.append("`" + "_".join(token.content.split()) + "`")
        elif token.type in ("softbreak", "hardbreak"):
            parts.append(" ")
    return "".join(parts).strip()


def blocks(markdown: str) -> Iterator[Block]:
    kind, line = "text", 1
    for token in PARSER.parse(markdown):
        if token.map:
            line = token.map[0] + 1
        if token.nesting == 1:
            kind = KINDS.get(token.type, "text")
        elif token.type == "inline" and (text := _plain(token)):
            yield Block(kind, line, text)


def sentences(text: str) -> list[str]:
    found: list[str] = []
    for part in SENTENCE_END.split(text):
        if found and ABBREVIATION.search(found[-1]):
            found[-1] += f" {part}"
        else:
            found.append(part)
    return found


def words(text: str) -> list[str]:
    return [word for word in text.split() if any(character.isalnum() for character in word)]
