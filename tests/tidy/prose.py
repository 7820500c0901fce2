"""Measures the prose of the documents: python tests/tidy/prose.py [PAGE ...] prints the figures of each page.

Where pages are named, it also prints what each sentence breaks.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import sys
from collections.abc import Iterator

from comments import HEADLESS
from markdown_text import Block, blocks, sentences, words
from source_tree import ROOT, files, name, text

MOST_NUMBERS = 3.0  # in 100 words
LONG_SENTENCE = 25  # words
LEAST_SHORT = 0.9  # the share of sentences that are not long
LONGEST_SENTENCE = 40  # words

# Pages may have many numbers in these folders, and may tell history in those.
WITH_NUMBERS = ("docs/results/", "docs/reference/", "docs/adr/", "CHANGELOG.md")
WITH_HISTORY = ("docs/results/", "CHANGELOG.md")
WITH_TABLE_OF_RESULTS = "README.md"  # the numbers in its tables do not count

CODE = re.compile(r"`[^`]*`")
ADDRESS = re.compile(r"\w+://\S+")
# A word of digits and signs only, such as "12", "1,000", "0.5", "±2", "10-14" or "3x"; "ResNet-50" is a name.
NUMBER = re.compile(r"[-+±~<>=≤≥−–/:×.,%\d]*\d[-+±~−–/:×.,%\d]*x?")
HISTORY = re.compile(
    r"\b(?:no longer|(?<!from )now(?! and then)|previously|formerly|at present|later still|until recently|than before"
    r"|used to be|(?:it|they|this|that|which|who) used to|before (?:this|that) (?:change|version)|^before(?=,)"
    r"|(?:earlier|later|older|newer|former) (?:runs?|versions?|releases?))\b",
    re.IGNORECASE,
)
BARE_DECIMAL = re.compile(r"(?<![\w.])\.\d")
RATIO = re.compile(r"(?<![\w.])[01]?\.\d+(?: ?± ?[\d.]+)? of\b")
STACKED = re.compile(r"\b(?:that|those) of (?:which|whom|what|that|those)\b|\bof what (?:is|are|was|were)\b")


@dataclasses.dataclass(frozen=True)
class Figures:
    words: int
    numbers: int
    sentences: int
    long: int  # sentences of more than LONG_SENTENCE words
    longest: int  # words of the longest sentence
    broken: tuple[str, ...]  # "LINE: RULE: SENTENCE" for rules that allow no exception

    @property
    def numbers_in_100(self) -> float:
        return 100 * self.numbers / self.words if self.words else 0.0

    @property
    def short(self) -> float:
        return 1 - self.long / self.sentences if self.sentences else 1.0


def numbers(text: str) -> int:
    """How many numbers stand in a text. Those in code spans and addresses do not count."""
    plain = (word.strip("()[]{}\"'*;:!?.,") for word in ADDRESS.sub("", CODE.sub("", text)).split())
    return sum(len(re.findall(r"\d+(?:[.,]\d+)*", word)) for word in plain if NUMBER.fullmatch(word))


def _broken(block: Block, page: str) -> Iterator[tuple[str, str]]:
    """(rule, sentence) for each sentence of a block that breaks a rule."""
    if block.kind == "cell" and ";" in CODE.sub("", block.text):
        yield "semicolon in a table cell", block.text
    for sentence in sentences(block.text):
        plain = CODE.sub("`x`", sentence)
        if len(words(sentence)) > LONGEST_SENTENCE:
            yield f"more than {LONGEST_SENTENCE} words", sentence
        if not page.startswith(WITH_HISTORY) and (found := HISTORY.search(plain)):
            yield f'history ("{found[0]}")', sentence
        if BARE_DECIMAL.search(plain):
            yield "decimal without a leading zero", sentence
        if RATIO.search(plain):
            yield "ratio where a percent should stand", sentence
        if HEADLESS.match(plain) and block.kind == "text" and not plain.endswith("?"):
            yield "no subject", sentence
        if found := STACKED.search(plain):
            yield f'"{found[0]}"', sentence


def measure(markdown: str, page: str) -> Figures:
    """The figures of a page; its name, from the repository's root on, says which rules hold for it."""
    found = list(blocks(markdown))
    counted = [block for block in found if block.kind != "cell" or page != WITH_TABLE_OF_RESULTS]
    lengths = [len(words(each)) for block in found if block.kind == "text" for each in sentences(block.text)]
    return Figures(
        words=sum(len(words(block.text)) for block in counted),
        numbers=sum(numbers(block.text) for block in counted),
        sentences=len(lengths),
        long=sum(length > LONG_SENTENCE for length in lengths),
        longest=max(lengths, default=0),
        broken=tuple(f"{block.line}: {rule}: {each}" for block in found for rule, each in _broken(block, page)),
    )


def faults(figures: Figures, page: str) -> list[str]:
    """The rules that a page breaks; empty where it passes."""
    found = list(figures.broken)
    if not page.startswith(WITH_NUMBERS) and figures.numbers_in_100 > MOST_NUMBERS:
        found.append(f"{figures.numbers_in_100:.1f} numbers in 100 words; at most {MOST_NUMBERS:.0f} are allowed")
    if figures.short < LEAST_SHORT:
        few = f"{100 * figures.short:.0f} % of the sentences have at most {LONG_SENTENCE} words"
        found.append(f"{few}; at least {100 * LEAST_SHORT:.0f} % should")
    return found


def pages() -> tuple[pathlib.Path, ...]:
    return files("*.md")


def page_faults(path: pathlib.Path) -> list[str]:
    return faults(measure(text(path), name(path)), name(path))


def _print_long(path: pathlib.Path) -> None:
    for block in blocks(text(path)):
        for sentence in sentences(block.text) if block.kind == "text" else ():
            if len(words(sentence)) > LONG_SENTENCE:
                print(f"  {block.line}: {len(words(sentence))} words: {sentence}")


def main() -> None:
    wanted = [pathlib.Path(page).resolve() for page in sys.argv[1:]]
    print(f"{'page':55} {'words':>6} {'numbers/100':>12} {'short':>6} {'longest':>8} {'broken':>7}  passes")
    for path in wanted or pages():
        page = name(path) if path.is_relative_to(ROOT) else str(path)
        figures = measure(text(path), page)
        found = faults(figures, page)
        row = f"{page:55} {figures.words:6} {figures.numbers_in_100:12.1f} {100 * figures.short:4.0f} %"
        print(f"{row} {figures.longest:8} {len(figures.broken):7}  {'no' if found else 'yes'}")
        if wanted:
            print("".join(f"  {fault}\n" for fault in found), end="")
            _print_long(path)


if __name__ == "__main__":
    main()
