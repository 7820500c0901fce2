"""The example scripts: as they are, stripped to the plain script, and launched on small data of their own."""

from __future__ import annotations

import json
import os
import pathlib
import random
import subprocess
import time
from collections.abc import Sequence

import numpy as np
from harness import Controller
from preloaded import Ranks

ROOT = pathlib.Path(__file__).resolve().parents[4]
EXAMPLES = ROOT / "worker" / "python" / "examples"
BIN = pathlib.Path(os.environ.get("EGERIA_BIN", ROOT / "build" / "dev" / "bin"))
MARK = "  # egeria"

# A GPT that is quickly trained, and a policy that takes a reading every second step.
SMALL_GPT = ("--layers", 2, "--width", 32, "--context", 32, "--warmup", 5, "--batch-size", 8)
READINGS = {"interval_steps": 2, "window": 3, "bootstrap": False, "batch_size": 8}


def plain_source(name: str) -> str:
    """The script without the lines that Egeria needs."""
    lines = (EXAMPLES / name).read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.rstrip("\n").endswith(MARK))


def plain_script(name: str, folder: pathlib.Path) -> pathlib.Path:
    path = folder / f"plain_{name}"
    path.write_text(plain_source(name), encoding="utf-8")
    return path


def environment(**variables: str) -> dict[str, str]:
    """This process's, without what is said to Egeria, no daemons, one compute thread per rank, and `variables`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("EGERIA_")}
    kept |= {"EGERIA_CACHE": "none", "EGERIA_CONTROLLER": "none"}
    return {**kept, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **variables}


def paced(controller: Controller, *events: tuple[int, str]) -> dict[str, str]:
    """Variables for launch(): from each of these steps on the script is slow until the controller's metrics have a line
    that matches. See run_script.py."""
    return {
        "STEP_SECONDS": "0.1",
        "STEP_EVENTS": json.dumps(events),
        "STEP_METRICS": f"http://127.0.0.1:{controller.metrics_port}/metrics",
    }


def a_reading_of(job: str) -> tuple[int, str]:
    """For paced()."""
    return 0, rf'^egeria_readings_total{{training_job="{job}"}} [1-9]'


def a_prefix(step: int, prefix: int) -> tuple[int, str]:
    """For paced(): that so many layer modules are frozen on all ranks of the only job."""
    return step, rf'^egeria_frozen_prefix{{[^}}]*state="applied"[^}}]*}} {prefix}$'


def run(command: list, folder: pathlib.Path, seconds: float = 1200, **variables: str) -> subprocess.CompletedProcess:
    """Runs a command in `folder` and returns what it did, whatever that is."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def launch(
    script: pathlib.Path,
    *arguments,
    folder: pathlib.Path,
    launcher: Sequence = (),
    seconds: float = 1200,
    **variables: str,
) -> str:
    """Runs a script on two ranks, as torchrun would or under another launcher; it must succeed. Returns its output with
    its errors."""
    runner = pathlib.Path(__file__).with_name("run_script.py")
    if launcher:
        two_ranks = ("--local-addr", "127.0.0.1", "--nproc-per-node", 2, runner)
        done = run([*launcher, *two_ranks, script, *arguments], folder, seconds, **variables)
        code, out = done.returncode, done.stdout + done.stderr
    else:
        log = folder / f"{script.stem}.{time.monotonic_ns()}.log"
        job = Ranks(runner, [script, *arguments], log, environment(**variables), ranks=2, folder=folder)
        try:
            code = job.wait(seconds)
        finally:
            job.kill()
        out = log.read_text(encoding="utf-8")
    assert code == 0, f"{script.name}: exit code {code}\n{out[-6000:]}"
    return out


def losses(file: pathlib.Path) -> list[float]:
    """The losses that a script has written with --losses; JSON keeps every bit of a float."""
    return [json.loads(line)["loss"] for line in file.read_text(encoding="utf-8").splitlines()]


def readings(job: str, controller: str, folder: pathlib.Path) -> list[dict]:
    """The plasticity that a controller has recorded of a job."""
    done = run([BIN / "egeria", "export", job, "--controller", controller], folder)
    assert done.returncode == 0, done.stderr
    return [entry for entry in map(json.loads, done.stdout.splitlines()) if entry.get("plasticity") is not None]


def write_cifar(folder: pathlib.Path, images: int = 64) -> pathlib.Path:
    """CIFAR-10's binary files with `images` random images each; classes differ in brightness."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        labels = generator.integers(0, 10, images, dtype=np.uint8)
        pixels = np.clip(generator.normal(25 * labels[:, None], 20, (images, 3072)), 0, 255).astype(np.uint8)
        np.concatenate([labels[:, None], pixels], axis=1).tofile(folder / name)
    return folder


def write_text(file: pathlib.Path, characters: int = 6000) -> pathlib.Path:
    """Words drawn at random from a few."""
    generator = random.Random(0)
    words = ["never", "wrong", "never", "in", "the", "way", "faster", "at", "equal", "accuracy"]
    text = ""
    while len(text) < characters:
        text += generator.choice(words) + generator.choice("   .,\n")
    file.write_text(text, encoding="utf-8")
    return file


def write_questions(file: pathlib.Path, count: int = 48, seed: int = 0) -> pathlib.Path:
    """Questions in SQuAD's format: which number stands behind a word."""
    generator = random.Random(seed)
    names = ["anna", "bert", "carl", "dora", "emil", "frida", "gustav", "hanna"]
    paragraphs = []
    for index in range(count):
        numbers = {name: str(generator.randrange(10, 99)) for name in generator.sample(names, 5)}
        context = " ".join(f"{name} has {number} ." for name, number in numbers.items())
        asked = generator.choice(list(numbers))
        answer = {"text": numbers[asked], "answer_start": context.index(f"{asked} has") + len(f"{asked} has ")}
        question = {"id": str(index), "question": f"How many has {asked}?", "answers": [answer]}
        paragraphs.append({"context": context, "qas": [question]})
    file.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return file
