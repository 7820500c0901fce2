"""Writes docs/reference/config.md and command-line.md from what the code says of its options.

    python docs/reference_pages.py [PAGE ...]           writes them, or those that are named
    python docs/reference_pages.py --check [PAGE ...]   fails where a file differs from what would be written

config.md comes from the installed package, the sample files of the daemons' options in deploy (a test compares those
with the options) and the table of variables in common/config/environment.cc. command-line.md has the help text of each
program in EGERIA_BIN, as the man pages have it.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import sys
from pathlib import Path

from egeria import Config
from egeria.config import FROM_ENVIRONMENT
from egeria.training.settings_agreement import _OF_RANK_0

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PROGRAMS = ("egeria-run", "egeria", "egeria-controller", "egeria-cache", "egeria-train")

# The variables that no setting of Config stands for, in the order of the page.
VARIABLES = {
    "ADMIN": "The controller's address for operators, for the command `egeria`.",
    "TRUSTED_USERS": "Users, by name or number and with commas between them, who may listen at a Unix socket.",
    "TLS_CA": "The PEM file of the authority that has signed the controller's certificate.",
    "TLS_CERT": "The PEM file of this process's certificate chain.",
    "TLS_KEY": "The PEM file of this process's private key.",
    "JOB_ID": "The job's id, a UUID, which stays over restarts. `egeria-run` sets it.",
    "JOB_SECRET": "The secret by which ranks show that a job is theirs. `egeria-run` sets it.",
    "NODE": "The name of the node, by which ranks find the ranks beside them. `egeria-run` sets it.",
    "GENERATION": "The number of the job's start, for launchers that count starts themselves.",
    "WORKER_METRICS": "The address at which `egeria-train` serves its metrics, `HOST:PORT` or `PORT`.",
    "TORCHRUN": "The program that `egeria-run` starts in place of `torchrun`.",
    "PYTHON": "The Python by which the command `egeria` runs `doctor`, `trial`, `top` and `bench`.",
    "TRIAL": "What a training is to do as a part of a trial. `egeria trial` sets it.",
    "SOURCE": "The checkout in which `egeria bench` finds its tasks.",
    "BIN": "The folder of the programs, for the tests.",
}

# The default folders of a user other than root in help texts, and those of root, which the page has.
FOLDERS = {"~/.local/state/egeria": "/var/lib/egeria", "~/.cache/egeria": "/var/cache/egeria"}

CONFIG = """# Settings

This page is made by `docs/reference_pages.py`. It lists every setting of the Python package, every environment
variable, and every option of the daemons. The options of the programs on their command lines are on [a page of their
own](command-line.md), and so are the keys of the [job file](job-file.md).

## In Python

`egeria.Config(...)` takes these fields. `egeria.Config.from_env(...)` takes from the environment what it is not
given, and `attach()` without `config` does the same. An unknown or contradictory value raises `EgeriaError` with the
name `BAD_CONFIG`. Variables for True and False hold 1 or 0, and `EGERIA_POLICY_OPTIONS` holds a JSON object.

{fields}
### Ranks compare their settings

Every rank attaches, and should be told the same. The ranks compare their settings once, before anything can freeze.

| setting | where ranks differ |
|---|---|
| {agreed} | All ranks take the value of rank 0, and `SETTINGS_DIFFER` names the rank. |
| `enabled`, `plans`, `pin_frozen_modes`, the model, its layer modules, versions, and whether there is a controller \
| All ranks train plainly, and the difference is named. |
| `controller` | The address of rank 0 holds on its node. Ranks of other nodes may use another one. |
| `metrics`, `cache` and all that begins with `cache` | Each rank has its own. |

A rank that does not attach is waited for, once, and then named, `RANK_MISSING`.

## Other environment variables

{variables}
A variable that begins with `EGERIA_` and that nothing reads is named in a warning, `UNKNOWN_VARIABLE`.

## Options of egeria-controller

Each option is a key of the YAML file that `--config` or `EGERIA_CONTROLLER_CONFIG` names, an environment variable,
and a flag. The flag wins over the variable, and the variable over the file. `reference.threads` is
`EGERIA_CONTROLLER_REFERENCE_THREADS` and `--reference-threads`. The controller that a training brings reads the
variables, too. `egeria-controller --print-config` prints what is in force.

{controller}
The folder of the journal is the default of root. Other users have `$XDG_STATE_HOME/egeria`, or else
`~/.local/state/egeria`.

## Options of egeria-cache

They are given in the same ways: `quota` is a key of the file of `EGERIA_CACHE_CONFIG`, `EGERIA_CACHE_QUOTA` and
`--quota`. The cache that a training starts reads the variables, too.

{cache}"""

COMMANDS = """# The command line

This page is made by `docs/reference_pages.py` from the programs' help texts. The man pages and the completions of
shells are made from the same texts. `egeria bench`, which runs in a checkout only, is in
[benchmarks](benchmarks.md).

{contents}
"""


def table(*rows: tuple[str, ...]) -> str:
    """The rows, of which the first one is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"


def sentence(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def fields() -> str:
    """The fields of Config, with their variables, defaults and what its docstring says of them."""
    attributes = (Config.__doc__ or "").partition("Attributes:")[2]
    described = dict(re.findall(r"^ {6}(\w+): (.*?)(?=^ {6}\w+: |\Z)", attributes, re.MULTILINE | re.DOTALL))
    rows = [("field", "variable", "default", "meaning")]
    for field in dataclasses.fields(Config):
        variable = {"options": "policy_options"}.get(field.name, field.name)
        named = variable in FROM_ENVIRONMENT or field.name == "controller"
        default = "{}" if field.name == "options" else repr(field.default).replace("'", '"')
        meaning = re.sub(r'("[^"]*"|\{[^}]*\}|EGERIA_\w+)', r"`\1`", sentence(described[field.name]))
        meaning = meaning.replace("(docs/reference/policies.md)", "([policies](policies.md))")
        rows.append((code(field.name), code(f"EGERIA_{variable.upper()}" if named else ""), code(default), meaning))
    return table(*rows)


def variables() -> str:
    source = (ROOT / "common" / "config" / "environment.cc").read_text(encoding="utf-8")
    known = set(re.findall(r'^    "(\w+)",$', source, re.MULTILINE))
    settings = {field.upper() for field in FROM_ENVIRONMENT} | {"CONTROLLER", "CACHE_FORMAT"}
    if known - settings != set(VARIABLES):
        differ = ", ".join(sorted((known - settings) ^ set(VARIABLES)))
        raise SystemExit(f"VARIABLES of {__file__} and the names in environment.cc differ in {differ}")
    return table(("variable", "meaning"), *((code(f"EGERIA_{name}"), VARIABLES[name]) for name in VARIABLES))


def options(program: str) -> str:
    """The options of a daemon, from its sample file."""
    rows, group, help_text = [("key", "default", "meaning")], "", ""
    for line in (ROOT / "deploy" / f"{program}.yaml").read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"( *)# (.*)", line):
            help_text = found[2]
        elif found := re.fullmatch(r"(\w+):", line):
            group = f"{found[1]}."
        elif found := re.fullmatch(r"( *)(\w+): (.*)", line):
            key = (group if found[1] else "") + found[2]
            rows.append((code(key), code(found[3].strip('"')), re.sub(r"(<[\w_]+>[\w./]*)", r"`\1`", help_text)))
    return table(*rows)


def config_page() -> str:
    return CONFIG.format(
        fields=fields(),
        agreed=", ".join(map(code, _OF_RANK_0)),
        variables=variables(),
        controller=options("egeria-controller"),
        cache=options("egeria-cache"),
    )


def command_line_page() -> str:
    """The help texts of all programs and subcommands, as deploy/help/help_files.py reads them for the man pages."""
    spec = importlib.util.spec_from_file_location("help_files", ROOT / "deploy" / "help" / "help_files.py")
    help_files = importlib.util.module_from_spec(spec)
    sys.modules["help_files"] = help_files
    spec.loader.exec_module(help_files)
    parts, contents = [], [("program", "what it does")]
    os.environ["HOME"] = "~"  # in the default folders of users other than root
    for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        os.environ.pop(variable, None)
    for program in PROGRAMS:
        command = help_files.read(Path(os.environ["EGERIA_BIN"]) / program, [program])
        if command is None:
            raise SystemExit(f"{program} does not print its help")
        contents.append((f"[{program}](#{program})", sentence(command.about)))
        parts += sections(command, 2)
    return COMMANDS.format(contents=table(*contents)) + "\n".join(parts)


def sections(command, level: int) -> list[str]:
    text = "\n".join(line.rstrip() for line in command.text.strip().splitlines())
    for of_user, of_root in FOLDERS.items():
        text = text.replace(of_user, of_root)
    part = f"{'#' * level} {' '.join(command.words)}\n\n```text\n{text}\n```\n"
    below = [child for child in command.commands if child.words != ["egeria", "bench"]]
    return [part, *(each for child in below for each in sections(child, level + 1))]


PAGES = {"config.md": config_page, "command-line.md": command_line_page}


def main() -> int:
    check, status = "--check" in sys.argv[1:], 0
    for name in [word for word in sys.argv[1:] if word != "--check"] or PAGES:
        path = DOCS / "reference" / name
        made = PAGES[name]()
        if not check:
            path.write_text(made, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != made:
            print(f"{path} differs from what the code says; run {sys.argv[0]}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
