"""The example scripts without Egeria: they run, and say what is wrong with their input."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest
from example_scripts import (
    EXAMPLES,
    environment,
    launch,
    losses,
    plain_script,
    plain_source,
    run,
    write_cifar,
    write_questions,
    write_text,
)
from preloaded import Process

SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))


def test_every_example_is_tested_here():
    assert SCRIPTS == [
        "captions.py",
        "char_gpt.py",
        "cifar_resnet.py",
        "digits.py",
        "distillation.py",
        "hf_question_answering.py",
        "lightning_digits.py",
    ]


@pytest.mark.parametrize("name", SCRIPTS)
def test_egeria_takes_at_most_three_lines_and_all_of_them_can_be_left_out(name: str):
    whole, plain = (EXAMPLES / name).read_text(encoding="utf-8"), plain_source(name)
    assert 2 <= len(whole.splitlines()) - len(plain.splitlines()) <= 3
    code = [line for line in plain.splitlines() if "egeria-run" not in line]
    assert not any("egeria" in line.lower() for line in code)
    compile(plain, name, "exec")


def test_the_resnet_learns_on_two_ranks(tmp_path: pathlib.Path):
    data = write_cifar(tmp_path / "cifar")
    out = launch(
        plain_script("cifar_resnet.py", tmp_path),
        data,
        "--depth",
        8,
        "--epochs",
        4,
        "--batch-size",
        16,
        "--learning-rate",
        0.05,
        "--losses",
        "losses.jsonl",
        "--save",
        "w.pt",
        folder=tmp_path,
    )
    assert "epoch 4: loss" in out
    values = losses(tmp_path / "losses.jsonl")
    assert len(values) == 4 * 10 and sum(values[-5:]) < 0.9 * sum(values[:5])
    assert (tmp_path / "w.pt").is_file()


def test_the_gpt_learns_with_accumulation_autocast_clipping_and_compilation(tmp_path: pathlib.Path):
    text = write_text(tmp_path / "text.txt")
    out = launch(
        plain_script("char_gpt.py", tmp_path),
        text,
        "--layers",
        2,
        "--width",
        32,
        "--context",
        32,
        "--steps",
        30,
        "--warmup",
        5,
        "--learning-rate",
        1e-2,
        "--compile",
        "aot_eager",
        "--eval-interval",
        15,
        "--losses",
        "losses.jsonl",
        folder=tmp_path,
    )
    assert "step 30: loss" in out
    values = losses(tmp_path / "losses.jsonl")
    assert len(values) == 30 and values[-1] < 0.9 * values[0]


def test_the_digits_are_learnt_on_two_ranks(tmp_path: pathlib.Path):
    out = launch(plain_script("digits.py", tmp_path), "--epochs", 10, folder=tmp_path)
    assert float(out.split("accuracy ")[1].split(",")[0]) > 0.9


def test_the_trainer_answers_questions_and_resumes(tmp_path: pathlib.Path):
    train, dev = write_questions(tmp_path / "train.json"), write_questions(tmp_path / "dev.json", 16, seed=1)
    options = (
        train,
        dev,
        "--layers",
        2,
        "--heads",
        2,
        "--width",
        32,
        "--length",
        64,
        "--vocabulary",
        200,
        "--batch-size",
        4,
        "--save-steps",
        6,
        "--output",
        "out",
    )
    script = plain_script("hf_question_answering.py", tmp_path)
    out = launch(script, *options, "--epochs", 1, folder=tmp_path)
    assert "exact match" in out
    assert (tmp_path / "out" / "checkpoint-6").is_dir()
    launch(script, *options, "--epochs", 2, "--resume", folder=tmp_path)
    state = json.loads((tmp_path / "out" / "checkpoint-12" / "trainer_state.json").read_text())
    assert state["global_step"] == 12


def test_lightning_learns_the_digits_and_resumes(tmp_path: pathlib.Path):
    script = plain_script("lightning_digits.py", tmp_path)
    options = ("--devices", 2, "--batch-size", 64, "--output", "out")
    launch(script, *options, "--epochs", 5, folder=tmp_path)
    (checkpoint,) = (tmp_path / "out").rglob("*.ckpt")
    out = launch(script, *options, "--epochs", 10, "--resume", checkpoint, folder=tmp_path)
    assert float(out.split("accuracy ")[1].split(",")[0]) > 0.9


BAD_INPUT = [
    ("cifar_resnet.py", ["no-such-folder"], "cannot read no-such-folder/data_batch_1.bin"),
    ("cifar_resnet.py", ["broken"], "is no CIFAR-10 file"),
    ("cifar_resnet.py", ["cifar", "--batch-size", "4000"], "fewer than one batch per process"),
    ("cifar_resnet.py", ["cifar", "--depth", "21"], "6n + 2"),
    ("cifar_resnet.py", ["cifar", "--epochs", "0"], "at least 1"),
    ("char_gpt.py", ["no-such-file"], "cannot read no-such-file as text"),
    ("char_gpt.py", ["text.txt", "--context", "4000"], "needs 80020"),
    ("char_gpt.py", ["text.txt", "--width", "30"], "not a multiple of --heads"),
    ("char_gpt.py", ["text.txt", "--steps", "0"], "at least 1"),
    ("digits.py", ["--epochs", "0"], "at least 1"),
    ("hf_question_answering.py", ["no-such-file", "train.json"], "cannot read no-such-file"),
    ("hf_question_answering.py", ["text.txt", "train.json"], "not in SQuAD's format"),
    ("hf_question_answering.py", ["empty.json", "train.json"], "no question with an answer"),
    ("hf_question_answering.py", ["train.json", "train.json", "--width", "30"], "not a multiple of --heads"),
    ("hf_question_answering.py", ["train.json", "train.json", "--length", "8"], "at least 64"),
    ("lightning_digits.py", ["--resume", "no-such-file"], "there is no such file"),
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_cifar(folder / "cifar")
    (folder / "broken").mkdir()
    (folder / "broken" / "data_batch_1.bin").write_bytes(b"12345")
    write_text(folder / "text.txt")
    write_questions(folder / "train.json")
    (folder / "empty.json").write_text('{"data": []}')
    return folder


@pytest.mark.parametrize("name,arguments,message", BAD_INPUT)
def test_bad_input_is_named(
    name: str, arguments: list[str], message: str, inputs: pathlib.Path, tmp_path: pathlib.Path
):
    out, errors = tmp_path / "out", tmp_path / "errors"
    process = Process(plain_script(name, inputs), arguments, out, environment(), inputs, errors)
    assert process.wait(1200) != 0
    assert message in errors.read_text() and "Traceback" not in errors.read_text()


@pytest.mark.parametrize(
    "name,missing,arguments",
    [
        ("digits.py", "sklearn", []),
        ("lightning_digits.py", "lightning", []),
        ("hf_question_answering.py", "transformers", ["train.json", "train.json"]),
    ],
)
def test_a_missing_package_is_named_with_a_command_that_installs_it(
    name: str, missing: str, arguments: list[str], inputs: pathlib.Path
):
    code = f"import runpy, sys; sys.modules['{missing}'] = None; runpy.run_path('plain_{name}', run_name='__main__')"
    plain_script(name, inputs)
    done = run([sys.executable, "-c", code, *arguments], inputs)
    assert done.returncode != 0
    assert "pip install" in done.stderr and "Traceback" not in done.stderr
