"""Every option that a program prints for --help is on its man page and in its completions, which their tools take."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

BUILD = pathlib.Path(os.environ["EGERIA_BUILD"])
SHARE = BUILD / "help" / "share"
PROGRAMS = ["egeria", "egeria-run", "egeria-controller", "egeria-cache", "egeria-train"]
SUBCOMMANDS = ["submit", "compile", "status", "logs", "cancel", "list", "export", "freeze", "unfreeze", "pause"]
SUBCOMMANDS += ["resume", "mode", "replay", "doctor", "top", "bench"]
COMMANDS = [[program] for program in PROGRAMS] + [["egeria", name] for name in SUBCOMMANDS]

pytestmark = pytest.mark.skipif(not SHARE.exists(), reason="the build has made none: it lacks help2man or shtab")


@functools.cache
def printed(program: str, *words: str) -> str:
    call = [str(BUILD / "bin" / program), *words, "--help"]
    ran = subprocess.run(call, env={**os.environ, "COLUMNS": "100"}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def options(command: list[str]) -> set[str]:
    """The long names, which stand at the beginning of a line or behind a short name."""
    found = re.findall(r"^ {2,4}(?:-\w, ?)?(--[a-z][\w-]+)", printed(*command), re.MULTILINE)
    assert found
    return set(found)


def plain(page: pathlib.Path) -> str:
    """Returns the page as a reader sees it."""
    ran = subprocess.run(
        ["man", "-l", str(page)], capture_output=True, text=True, env={**os.environ, "MANWIDTH": "200"}
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("command", COMMANDS, ids="-".join)
def test_every_option_is_on_the_man_page(command: list[str]):
    if shutil.which("man") is None:
        pytest.skip("there is no man on this machine")
    shown = plain(SHARE / "man" / "man1" / f"{'-'.join(command)}.1")
    on_page = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", shown))
    assert options(command) - on_page == set()


@pytest.mark.parametrize("page", sorted(SHARE.glob("man/man1/*.1")), ids=lambda page: page.stem)
def test_man_has_no_complaint_about_the_page(page: pathlib.Path):
    if shutil.which("man") is None:
        pytest.skip("there is no man on this machine")
    call = ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(page)]
    ran = subprocess.run(call, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"}, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def completed_by_bash(words: list[str]) -> list[str]:
    """Returns what bash offers for the last of the words."""
    script = (
        'shopt -s extglob; source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; '
        'completer=$(complete -p "$1" | sed "s/.* -F \\([^ ]*\\) .*/\\1/"); '
        '"$completer" "$1" "${!#}" "${COMP_WORDS[-2]}"; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    file = SHARE / "bash-completion" / "completions" / words[0]
    ran = subprocess.run(["bash", "-c", script, "bash", str(file), *words], capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.mark.parametrize("command", COMMANDS, ids="-".join)
def test_bash_completes_every_option(command: list[str]):
    assert options(command) - set(completed_by_bash([*command, "--"])) == set()


def test_bash_completes_subcommands_values_and_nothing_else():
    assert completed_by_bash(["egeria", "sub"]) == ["submit"]
    assert completed_by_bash(["egeria-train", "--task", "res"]) == ["resnet20", "resnet56"]
    assert completed_by_bash(["egeria-cache", "--no-such"]) == []


@pytest.mark.parametrize("command", COMMANDS, ids="-".join)
@pytest.mark.parametrize("place", ["zsh/site-functions/_{}", "fish/vendor_completions.d/{}.fish"])
def test_zsh_and_fish_know_every_option(place: str, command: list[str]):
    text = (SHARE / place.format(command[0])).read_text(encoding="utf-8")
    shell = place.split("/")[0]
    assert {name for name in options(command) if not re.search(rf"(--|-l ){name[2:]}(?![\w-])", text)} == set()
    if shutil.which(shell) is not None:
        ran = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, "")


def test_the_page_of_the_command_line_has_the_help_texts():
    script = pathlib.Path(__file__).parents[2] / "docs" / "reference_pages.py"
    place = {**os.environ, "EGERIA_BIN": str(BUILD / "bin"), "PYTHONPATH": str(BUILD / "python")}
    checked = subprocess.run(
        [sys.executable, str(script), "--check", "command-line.md"], env=place, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
