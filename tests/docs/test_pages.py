"""The examples of the README, the tutorial and the guides run, as a reader would type them."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Iterator

import pytest
import yaml
from page_script import Piece, is_printed, patched, pieces, script, shown

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
PAGES = [page for page in PAGES if page.exists()]
LANGUAGES = ("", "bash", "python", "diff", "yaml", "text")
# This finds a program with its arguments, up to the end of the command or to a `--`, behind which another begins.
CALL = re.compile(r"\b(egeria(?:-\w+)?)((?:[ \t]+(?!--[ \t])[^\s|;&]+)*)")


def text(page: pathlib.Path) -> str:
    return page.read_text(encoding="utf-8")


def environment(folder: pathlib.Path) -> dict[str, str]:
    """A user's environment, with the programs of the build and a home of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EGERIA_")}
    programs = [os.environ["EGERIA_BIN"], str(pathlib.Path(os.sys.executable).parent), os.environ["PATH"]]
    home = folder / "home"
    home.mkdir(mode=0o700)
    return {
        **kept,
        "PATH": ":".join(programs),
        "HOME": str(home),
        "TMPDIR": str(home),
        "XDG_CACHE_HOME": str(home),
        "XDG_RUNTIME_DIR": str(home),
        "EGERIA_BIN": os.environ["EGERIA_BIN"],
        "EGERIA_CONTROLLER_METRICS_LISTEN": "127.0.0.1:0",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(name="folder")
def folder_fixture() -> Iterator[pathlib.Path]:
    """An empty folder whose path is short, as sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="page", ignore_cleanup_errors=True) as folder:
        yield pathlib.Path(folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_runs_and_prints_what_it_says(page: pathlib.Path, folder: pathlib.Path):
    commands = script(text(page))
    if commands.count("\n") == 1:
        pytest.skip("nothing on the page can be run here")
    variables = environment(folder)
    ran = subprocess.run(
        ["bash", "-c", commands], cwd=folder, env=variables, text=True, capture_output=True, timeout=1200
    )
    output = ran.stdout + ran.stderr
    assert ran.returncode == 0, output[-6000:]
    assert [line for line in shown(text(page)) if not is_printed(line, output)] == [], output[-6000:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_block_says_its_language_and_one_that_is_not_run_says_why(page: pathlib.Path):
    for piece in pieces(text(page)):
        assert piece.language in LANGUAGES, piece
        assert piece.language or piece.reason, piece.code
        check_syntax(piece)


def check_syntax(piece: Piece) -> None:
    if piece.language in ("", "bash") and piece.reason:
        checked = subprocess.run(["bash", "-n"], input=piece.code, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr
    elif piece.language == "python":
        ast.parse(piece.code)
    elif piece.language == "yaml":
        assert yaml.safe_load(piece.code) is not None


def help_of(program: str, subcommand: str, known: dict[tuple[str, str], str]) -> str:
    key = program, subcommand
    if key not in known:
        call = [str(pathlib.Path(os.environ["EGERIA_BIN"]) / program), *([subcommand] if subcommand else []), "--help"]
        known[key] = subprocess.run(call, text=True, capture_output=True, timeout=120, check=False).stdout
    return known[key]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_option_of_our_programs_on_a_page_is_one(page: pathlib.Path):
    known: dict[tuple[str, str], str] = {}
    spans = re.findall(r"`(egeria[^`]*)`", text(page)) + [
        line.partition("#")[0]
        for piece in pieces(text(page))
        if piece.language in ("", "bash")
        for line in piece.code.replace("\\\n", " ").splitlines()
        if not line.startswith(("docker ", "kubectl ", "systemctl "))
    ]
    wrong = []
    for program, arguments in (call for span in spans for call in CALL.findall(span)):
        if not (pathlib.Path(os.environ["EGERIA_BIN"]) / program).exists():
            continue
        words = arguments.split()
        subcommand = words[0] if program == "egeria" and words and words[0][0] != "-" else ""
        options = [word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)]
        if program == "egeria-run":  # the other options are torchrun's or the script's
            options = [option for option in options if option.startswith("--egeria")]
        printed = help_of(program, subcommand, known) if options or subcommand else ""
        wrong += [f"{program} {subcommand} {option}" for option in options if f"{option} " not in f"{printed} "]
        if subcommand and "sage" not in printed:
            wrong.append(f"{program} {subcommand}")
    assert wrong == []


PAGE = """
<!-- file: a.py -->
```python
print("one", 1)
```

```bash
python a.py
```

```diff
 print("one", 1)
+print("two", 2)
```

```bash
python a.py
```

```text
two 3
```

<!-- setup
x = 5
-->

```python
print("x is", x)
```

<!-- not run: it would end the test -->
```bash
exit 1
```
"""


def test_a_page_becomes_a_script(tmp_path: pathlib.Path):
    ran = subprocess.run(["bash", "-c", script(PAGE)], cwd=tmp_path, text=True, capture_output=True, check=True)
    assert ran.stdout == "one 1\none 1\ntwo 2\nx is 5\n"
    assert shown(PAGE) == ["two 3"] and is_printed("two 3", ran.stdout)
    assert not is_printed("three 3", ran.stdout)


def test_options_behind_two_dashes_are_the_other_programs():
    assert CALL.findall("egeria trial --steps 9 -- egeria-run --nproc-per-node 2 train.py; egeria jobs --json") == [
        ("egeria", " trial --steps 9"),
        ("egeria-run", " --nproc-per-node 2 train.py"),
        ("egeria", " jobs --json"),
    ]


def test_a_command_that_fails_ends_the_script(tmp_path: pathlib.Path):
    page = "```bash\nfalse\necho on\n```\n"
    assert subprocess.run(["bash", "-c", script(page)], cwd=tmp_path, capture_output=True, check=False).stdout == b""


def test_the_pieces_of_a_difference_find_their_places():
    assert patched("z\na\nc\ne\n", " a\n+b\n...\n c\n+d\n e\n") == "z\na\nb\nc\nd\ne\n"
    with pytest.raises(ValueError, match="0 times"):
        patched("z\n", " a\n+b\n")
