"""Every document is named by another one, and what documents link to is there."""

from __future__ import annotations

import ast
import pathlib
import re

from source_tree import ROOT, files, name, text

FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]+)")
NAMED = re.compile(r"`([\w./-]+\.md)`")
# A path in backquotes; without an ending it may leave one open, as `tests/e2e` and `common/base/ids` do.
PATH = re.compile(r"`((?:bench|common|controller|deploy|docs|jobs|launcher|proto|tests|worker)/[\w./-]+)`")


def links(document: pathlib.Path) -> list[str]:
    """The targets of a document's links, but those into the web."""
    return [link for link in LINK.findall(FENCE.sub("", text(document))) if "://" not in link]


def targets(document: pathlib.Path) -> set[pathlib.Path]:
    """The files that a document links to or names by their path from the root; a folder stands for its README.md."""
    paths = {(document.parent / link).resolve() for link in links(document)}
    paths |= {ROOT / path for path in NAMED.findall(FENCE.sub("", text(document)))}
    return {path / "README.md" if path.is_dir() else path for path in paths}


def documents() -> list[pathlib.Path]:
    return list(files("*.md"))


def test_every_document_is_named_by_another() -> None:
    named = {target for document in documents() for target in targets(document) - {document}}
    assert [name(document) for document in documents() if document not in named | {ROOT / "README.md"}] == []


def test_what_documents_link_to_is_there() -> None:
    assert [
        f"{name(document)}: {link}"
        for document in documents()
        for link in links(document)
        if not (document.parent / link).exists()
    ] == []


def test_the_readme_stays_short() -> None:
    assert len(text(ROOT / "README.md").splitlines()) <= 120


def test_no_document_and_no_example_puts_a_socket_where_everybody_can_write() -> None:
    shown = [*documents(), *files("worker/python/examples/*", "deploy/*")]
    assert [name(path) for path in shown if "unix:/tmp" in text(path)] == []


def test_the_paths_that_documents_name_are_there() -> None:
    assert [
        f"{name(document)}: {path}"
        for document in documents()
        for path in PATH.findall(text(document))
        if not (ROOT / path).exists() and not list(ROOT.glob(f"{path}.*"))
    ] == []


def test_links_in_fences_and_into_the_web_do_not_count(tmp_path: pathlib.Path) -> None:
    document = tmp_path / "a.md"
    document.write_text("[b](b.md#part) `docs/c.md` [web](https://d.md)\n```\n[e](e.md)\n```\n")
    assert targets(document) == {tmp_path / "b.md", ROOT / "docs" / "c.md"}


def test_every_refusal_has_a_row_and_every_row_a_refusal_and_a_test() -> None:
    page = text(ROOT / "docs" / "reference" / "refusals.md")
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    listed = set(rows)
    assert len(listed) == len(rows)
    package = [ast.parse(text(path)) for path in files("*.py") if name(path).startswith("worker/python/egeria/")]
    raised = {refusal for tree in package for refusal in _refusals_in(tree)} - {"UNKNOWN_OP"}  # it is a graph's
    native = "\n".join(text(path) for path in files("*.cc") if name(path).startswith("worker/"))
    assert raised - listed == set()
    assert {refusal for refusal in listed - raised if f'"{refusal}"' not in native} == set()
    programs = {path.name for path in files("*.py", "*.cc")}
    cited = re.findall(r"`(test_\w+\.py)`", page)
    assert cited and set(cited) <= programs
    later = page.split("## Said while training")[1].split("\n## ")[0]
    assert [row for row in re.findall(r"^\| `\w+`.*", later, re.MULTILINE) if not row.endswith("` |")] == []


def test_the_page_of_the_protocol_has_the_errors_of_the_protocol() -> None:
    named = {found for path in files("proto/*.proto") for found in re.findall(r"\[([A-Z]\w+)\]", text(path))}
    page = set(re.findall(r"\[([A-Z]\w+)\]", text(ROOT / "docs" / "reference" / "protocol.md")))
    assert named and page == named


def _refusals_in(tree: ast.AST) -> set[str]:
    """Names with which errors are raised, and those at the beginning of a text."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    kinds = ("EgeriaError", "Refused", "_NoTorchScript")
    errors = [node.args[0] for node in calls if getattr(node.func, "id", "") in kinds]
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    found = {node.value for node in errors if isinstance(node, ast.Constant)}
    return found | {match[1] for value in texts if (match := re.match(r"\[([A-Z][A-Z0-9_]+)\] ", value))}
