"""The differences that the README and the guides show, and the table of refusals, against what they speak of."""

from __future__ import annotations

import difflib
import pathlib
import re
from collections.abc import Iterable

import pytest
from example_scripts import EXAMPLES, MARK, ROOT, plain_source

PACKAGE = ROOT / "worker" / "python" / "egeria"
DOCS = ROOT / "docs"
REFUSALS = (DOCS / "reference" / "refusals.md").read_text(encoding="utf-8")
DIFF = re.compile(r"```diff\n(.*?)```", re.DOTALL)


def difference(name: str) -> str:
    """The lines that Egeria adds to an example, each piece with the code lines around it."""
    whole = (EXAMPLES / name).read_text(encoding="utf-8").splitlines()
    pieces: list[list[str]] = []
    for line in difflib.unified_diff(plain_source(name).splitlines(), whole, n=1, lineterm=""):
        if line.startswith("@@"):
            pieces.append([])
        elif pieces and line.strip():
            pieces[-1].append(line.removesuffix(MARK))
    return "...\n".join("\n".join(piece) + "\n" for piece in pieces)


@pytest.mark.parametrize(
    "page, name",
    [
        ("README.md", "digits.py"),
        ("docs/guides/pytorch.md", "cifar_resnet.py"),
        ("docs/guides/frozen-backbones.md", "distillation.py"),
        ("docs/guides/hugging-face.md", "hf_question_answering.py"),
        ("docs/guides/lightning.md", "lightning_digits.py"),
    ],
)
def test_the_difference_that_a_page_shows_is_that_of_the_example_named_above_it(page: str, name: str):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert DIFF.findall(text) == [difference(name)]
    assert f"worker/python/examples/{name}" in text.partition("```diff")[0]


def test_all_examples_in_a_loop_differ_by_the_same_lines():
    added = [
        [line.strip("+ ") for line in difference(name).splitlines() if line.startswith("+")]
        for name in ("cifar_resnet.py", "digits.py", "char_gpt.py")
    ]
    assert added[0] == added[1] == [line.replace("arguments.steps", "steps") for line in added[2]]


def reasons_in(paths: Iterable[pathlib.Path]) -> set[str]:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    return set(re.findall(r'Refused\(\s*"([A-Z0-9_]+)"', sources))


def test_every_reason_not_to_skip_has_an_entry():
    raised = reasons_in(path for path in PACKAGE.rglob("*.py") if path.parent.name != "frozen_forward")
    section = REFUSALS.split("## Not skipped by the cache")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", section, re.MULTILINE)) == raised


def test_every_reason_against_inference_form_has_an_entry():
    section = REFUSALS.split("## Not computed in inference form")[1].split("\n## ")[0]
    raised = reasons_in((PACKAGE / "frozen_forward").rglob("*.py"))
    assert raised - set(re.findall("`([A-Z_]+)`", REFUSALS)) == set()
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", section, re.MULTILINE)) <= raised
