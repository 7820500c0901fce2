"""Man pages and shell completions of the programs, made of what they print for --help.

usage: help_files.py FOLDER VERSION PROGRAM ...

Calls each program and each of its subcommands with --help. help2man makes man pages of the texts, and shtab makes
completions for bash, zsh and fish of the options in them. They lie below FOLDER as they do below /usr/local.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import shtab

OPTION = re.compile(r" {2,4}(-\S.*?)(?:  +(.*))?")
COMMAND = re.compile(r"  (\w[\w-]*)  +(\w.*)")
CHOICES = re.compile(r"\{([^{}]+)\}")
NUMBER = re.compile(r"(INT|UINT|FLOAT|BOOLEAN|N|SECONDS)\b")
SHELLS = {
    "bash": "share/bash-completion/completions/{}",
    "zsh": "share/zsh/site-functions/_{}",
    "fish": "share/fish/vendor_completions.d/{}.fish",
}


@dataclasses.dataclass
class Option:
    """An option of a command. `value` is the word that stands for its value, and is empty for a flag."""

    names: list[str]
    value: str
    help: str


@dataclasses.dataclass
class Command:
    """A program or a subcommand. `words` call it, and `takes_words` says whether more than options may follow them."""

    words: list[str]
    text: str
    about: str
    options: list[Option]
    takes_words: bool
    commands: list[Command]


def options_in(text: str) -> list[Option]:
    found = []
    for line in text.splitlines():
        if match := OPTION.fullmatch(line):
            *names, last = re.split(r", ?(?=-)", match.group(1))
            last, _, value = last.partition(" ")
            values = {value, *(name.partition(" ")[2] for name in names)} - {"", "REQUIRED"}
            names = [name.partition(" ")[0] for name in [*names, last]]
            found.append(Option(names, max(values, default=""), match.group(2) or ""))
        elif found and not found[-1].help and line.startswith(" " * 10):
            found[-1].help = line.strip()
    return found


def read(program: pathlib.Path, words: list[str]) -> Command | None:
    """Has a program, or the subcommand that `words` end with, print what it says of itself.

    None where it fails. No build ends for it, as subcommands in Python fail where their packages cannot be loaded.
    """
    environment = {**os.environ, "COLUMNS": "100", "EGERIA_PYTHON": sys.executable}
    call = [str(program), *words[1:], "--help"]
    ran = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        print(f"help_files.py: {shlex.join(call)} ends with {ran.returncode}: {ran.stderr}", file=sys.stderr)
        return None
    text = ran.stdout.replace("-h,--help", "-h, --help")
    _, _, listed = text.partition("\nSubcommands:\n")
    commands = [match.groups() for line in listed.splitlines() if (match := COMMAND.fullmatch(line))]
    described = [line for line in text.splitlines() if line and not line.lower().startswith("usage:")]
    about = next((line for line in described if not line.startswith(" ")), words[-1])
    return Command(
        words=words,
        text=text,
        about=about.removeprefix(f"{words[0]}: ").removeprefix("Egeria: ").rstrip("."),
        options=options_in(text),
        takes_words=bool(re.search(r"^(Positionals|positional arguments):|TORCHRUN'S ARGUMENTS$", text, re.MULTILINE)),
        commands=[child for name, _ in commands if (child := read(program, [*words, name]))],
    )


def fill(parser: argparse.ArgumentParser, command: Command) -> None:
    """Gives a parser, by which nothing is parsed, what shtab completes."""
    for option in command.options:
        if not option.value:
            parser.add_argument(*option.names, help=escape(option.help), action="store_true")
            continue
        choices = CHOICES.search(option.value)
        added = parser.add_argument(
            *option.names, help=escape(option.help), choices=choices.group(1).split(",") if choices else None
        )
        if not choices and not NUMBER.match(option.value):
            added.complete = shtab.FILE
    if command.takes_words:
        parser.add_argument("words", nargs="*").complete = shtab.FILE
    if command.commands:
        below = parser.add_subparsers()
        for child in command.commands:
            fill(below.add_parser(child.words[-1], help=escape(child.about), add_help=False), child)


def escape(text: str) -> str:
    return text.replace("%", "%%")


def write_man_pages(command: Command, version: str, folder: pathlib.Path) -> None:
    """The page of a subcommand is named as Git's are: egeria-submit(1)."""
    name = "-".join(command.words)
    with tempfile.TemporaryDirectory() as scratch:
        printer = pathlib.Path(scratch) / name
        printer.write_text(f"#!/bin/sh\ncat <<'END_OF_HELP'\n{command.text}END_OF_HELP\n", encoding="utf-8")
        printer.chmod(0o755)
        about = command.about[0].lower() + command.about[1:]
        subprocess.run(
            ["help2man", "--no-info", f"--name={about}", f"--version-string={version}", "--manual=Egeria"]
            + ["-o", str(folder / f"{name}.1"), str(printer)],
            check=True,
        )
    for child in command.commands:
        write_man_pages(child, version, folder)


def main() -> None:
    folder, version, *programs = sys.argv[1:]
    manuals = pathlib.Path(folder) / "share" / "man" / "man1"
    manuals.mkdir(parents=True, exist_ok=True)
    for program in map(pathlib.Path, programs):
        command = read(program.absolute(), [program.name])
        if command is None:
            continue
        write_man_pages(command, version, manuals)
        parser = argparse.ArgumentParser(command.words[0], add_help=False)
        fill(parser, command)
        for shell, place in SHELLS.items():
            file = pathlib.Path(folder) / place.format(program.name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(shtab.complete(parser, shell), encoding="utf-8")


if __name__ == "__main__":
    main()
