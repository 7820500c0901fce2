"""Wrong job files get messages that help; the schema and the page are those of the program."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess

import pytest
from job_files import EGERIA, EXAMPLE, ROOT, compile_file

GOOD = "name: digits\napplication: {script: train.py}\noutput: {folder: out}\n"

# Each row has a name, the file, the line that the message names, and the message behind it.
WRONG = {
    "an unknown key": (
        GOOD + "resources: {node: 2}\n",
        4,
        "resources.node: this key is not known; did you mean 'resources.nodes'?",
    ),
    "an unknown section": (
        GOOD + "resource: {nodes: 2}\n",
        4,
        "resource.nodes: this key is not known; did you mean 'resources.nodes'?",
    ),
    "a key that is like no other": (
        GOOD + "zzzzzzzzzzzzzzzz: 1\n",
        4,
        "zzzzzzzzzzzzzzzz: this key is not known; docs/reference/job-file.md lists all keys",
    ),
    "a section that is a word": (
        GOOD + "resources: many\n",
        4,
        "resources: it takes keys with values; write them below it",
    ),
    "no name": (GOOD.replace("name: digits\n", ""), 1, "name: it is missing; add it, such as 'name: digits'"),
    "a name with a space and a quote": (
        GOOD.replace("digits", '"my \'job"'),
        1,
        "name: 'my 'job' is not at most 40 lower-case letters, digits and hyphens, from a letter on; choose another",
    ),
    "nothing to run": (
        GOOD.replace("script: train.py", "arguments: [--epochs, 3]"),
        2,
        "application: exactly one of application.command and application.script says what to run; add one",
    ),
    "two things to run": (
        GOOD.replace("script: train.py", "script: train.py, command: [train]"),
        2,
        "application.script: exactly one of application.command and application.script says what to run; remove one",
    ),
    "no output": (
        GOOD.replace("output: {folder: out}\n", ""),
        1,
        "output.folder: it is missing; add it, such as 'output: {folder: out}'",
    ),
    "a word for a list": (
        GOOD.replace("script: train.py", "command: train.py"),
        2,
        "application.command: it takes a list; write [train.py]",
    ),
    "a list for a word": (
        GOOD.replace("script: train.py", "script: [train.py]"),
        2,
        "application.script: it takes one value, not a list",
    ),
    "a number out of range": (
        GOOD + "resources:\n  nodes: 0\n",
        5,
        "resources.nodes: it must be between 1 and 4096, and is 0",
    ),
    "a word for a number": (
        GOOD + "resources: {nodes: two}\n",
        4,
        "resources.nodes: expected a whole number, not 'two'",
    ),
    "a size without a unit that is known": (
        GOOD + "resources: {memory_per_node: 4GB}\n",
        4,
        "resources.memory_per_node: expected a size such as 4GiB or 1000, not '4GB'",
    ),
    "a duration that is none": (
        GOOD + "resources: {time_limit: 1 hour}\n",
        4,
        "resources.time_limit: expected a duration such as 90s, 1h30m or 30d, not '1 hour'",
    ),
    "a limit that is too short": (
        GOOD + "resources: {time_limit: 5s}\n",
        4,
        "resources.time_limit: it is 5s; give one minute or more, or 0",
    ),
    "a signal behind the limit": (
        GOOD + "resources: {time_limit: 2m}\ncheckpoints:\n  signal_before: 2m\n",
        6,
        "checkpoints.signal_before: it is 2m, and the time limit is 2m; give less than that",
    ),
    "an unknown policy": (
        GOOD + "egeria: {policy: plastic}\n",
        4,
        "egeria.policy: 'plastic' is not one of auto, staged, plasticity, finetune, gradnorm, actnorm, schedule, snr, "
        "none; did you mean 'plasticity'?",
    ),
    "a controller without a port": (
        GOOD + "egeria: {controller: login1}\n",
        4,
        "egeria.controller: 'login1' is not own, none, unix:/path or host:port",
    ),
    "a cache in a relative folder": (
        GOOD + "egeria: {cache: cache}\n",
        4,
        "egeria.cache: 'cache' is not default, none or an absolute folder; a folder begins with /",
    ),
    "a variable with a hyphen": (
        GOOD.replace("script: train.py", "script: train.py, environment: {MY-NAME: 1}"),
        2,
        "application.environment.MY-NAME: 'MY-NAME' is not letters, digits and underscores; choose another",
    ),
    "a variable without a name": (
        GOOD.replace("script: train.py", "script: train.py, environment: A=1"),
        2,
        "application.environment: it takes names with values; write them as NAME: VALUE below it",
    ),
    "a placeholder without its folder": (
        GOOD.replace("script: train.py", 'script: train.py, arguments: ["--data={data}"]'),
        1,
        "data.folders: the arguments have {data}, but there is no folder; list one",
    ),
    "data to be copied that are nowhere": (
        GOOD + "data: {stage: true}\n",
        4,
        "data.stage: there is nothing to copy; list data.folders, or remove it",
    ),
    "a line break in an argument": (
        GOOD.replace("script: train.py", 'script: train.py, arguments: ["a\\nb"]'),
        2,
        "application.arguments: it has a line break or another control character; write it on one line",
    ),
    "an option of sbatch with a command in it": (
        GOOD + 'slurm: {options: ["--constraint=a; rm -rf /"]}\n',
        4,
        "slurm.options: '--constraint=a; rm -rf /' is not an option of sbatch such as --constraint=a100; "
        "choose another",
    ),
    "a key twice": (GOOD + "name: other\n", 4, "'name' is said twice"),
    "no YAML": (GOOD + "resources: {nodes: 2\n", 5, "end of map flow not found"),
}

# A schema cannot say these: two keys together, lines, and a key that is given twice.
ONLY_SAID_BY_EGERIA = {
    "a limit that is too short",
    "a signal behind the limit",
    "a controller without a port",
    "a cache in a relative folder",
    "a placeholder without its folder",
    "data to be copied that are nowhere",
    "a line break in an argument",
    "a key twice",
    "no YAML",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_gets_a_message_with_line_key_and_what_to_do(name: str, tmp_path: pathlib.Path) -> None:
    content, line, message = WRONG[name]
    path = tmp_path / "egeria.yaml"
    path.write_text(content)
    result = compile_file(path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"egeria compile: {path}:{line}: {message}\n"


def test_the_good_file_compiles(tmp_path: pathlib.Path) -> None:
    (tmp_path / "egeria.yaml").write_text(GOOD)
    assert compile_file(tmp_path / "egeria.yaml").returncode == 0


def test_a_missing_file_and_an_unknown_engine_are_named(tmp_path: pathlib.Path) -> None:
    result = compile_file(tmp_path / "none.yaml")
    assert (result.returncode, result.stderr) == (1, f"egeria compile: {tmp_path}/none.yaml: cannot be read\n")
    result = compile_file(EXAMPLE, "--to", "slrum")
    assert (result.returncode, result.stderr) == (
        2,
        "egeria compile: --to slrum: there is no such engine; there are local, slurm, kubernetes\n",
    )


def published_schema() -> dict:
    return json.loads((ROOT / "docs/reference/job-file.schema.json").read_text())


def test_the_published_schema_and_page_are_those_of_the_program() -> None:
    for flag, file in {"--schema": "job-file.schema.json", "--reference": "job-file.md"}.items():
        made = subprocess.run([EGERIA, "compile", flag], check=True, capture_output=True, text=True).stdout
        assert (ROOT / "docs/reference" / file).read_text() == made, f"egeria compile {flag} > docs/reference/{file}"


def test_the_schema_is_one_and_takes_the_example() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="it comes with PyPI's kubernetes-validate")
    yaml = pytest.importorskip("yaml")
    jsonschema.Draft202012Validator.check_schema(published_schema())
    jsonschema.validate(yaml.safe_load(EXAMPLE.read_text()), published_schema())


@pytest.mark.parametrize("name", sorted(set(WRONG) - ONLY_SAID_BY_EGERIA))
def test_the_schema_refuses_what_egeria_refuses(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="it comes with PyPI's kubernetes-validate")
    yaml = pytest.importorskip("yaml")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(WRONG[name][0]), published_schema())


def test_every_key_of_the_schema_is_a_row_of_the_page() -> None:
    page = (ROOT / "docs/reference/job-file.md").read_text()
    rows = set(re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE))
    keys = set()
    for section, value in published_schema()["properties"].items():
        keys |= {f"{section}.{name}" for name in value["properties"]} if value["type"] == "object" else {section}
    assert rows == keys
