"""`pip install .`: what it puts into an environment runs there, without this checkout."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import site
import venv

import pytest
from commands import call
from search_paths import elf_files, unsafe_entries

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "worker" / "python" / "examples" / "digits.py"
PACE = ROOT / "tests" / "worker" / "python" / "support" / "run_script.py"


@pytest.fixture(scope="module", name="environment")
def environment_fixture(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An environment with the wheel in it, and by links all packages of this one, torch among them."""
    folder = tmp_path_factory.mktemp("pip")
    venv.create(folder / "venv", symlinks=True, with_pip=False)
    packages = next((folder / "venv" / "lib").glob("python*")) / "site-packages"
    for package in pathlib.Path(site.getsitepackages()[0]).iterdir():
        (packages / package.name).symlink_to(package)
    python = folder / "venv" / "bin" / "python"
    call(python, "-m", "pip", "install", "--no-deps", wheel, folder=folder)
    torchrun = folder / "venv" / "bin" / "torchrun"
    torchrun.write_text(f"#!{python}\nfrom torch.distributed.run import main\nmain()\n", encoding="utf-8")
    torchrun.chmod(0o755)
    return folder / "venv"


def test_no_program_takes_libraries_from_where_it_is_run(environment: pathlib.Path):
    own = [environment / "bin", *environment.glob("lib/python*/site-packages/egeria")]
    files = [file for folder in own for file in elf_files(folder)]
    assert len(files) >= 6
    assert {str(file): unsafe_entries(file) for file in files if unsafe_entries(file)} == {}


def test_the_package_and_its_types_and_programs_are_there(environment: pathlib.Path, tmp_path: pathlib.Path):
    where = "import egeria; print(egeria.__version__, egeria.__file__)"
    version, file = call(environment / "bin" / "python", "-c", where, folder=tmp_path).split()
    assert pathlib.Path(file).is_relative_to(environment)
    assert (pathlib.Path(file).parent / "py.typed").exists()
    for program in ("egeria", "egeria-cache", "egeria-controller", "egeria-run"):
        assert version in call(environment / "bin" / program, "--version", folder=tmp_path)
    assert (environment / "bin" / "egeria-reference").exists(), "the controller starts it"


# By its defaults the rule's readings may not pay in so short a training, and it is switched off; with these it freezes
# from the first readings on.
OPTIONS = {"auto": "", "plasticity": '{"interval_steps": 5, "window": 3, "tolerance": 1, "bootstrap": false}'}


@pytest.mark.parametrize("policy", OPTIONS)
def test_the_readmes_example_freezes_on_two_ranks(policy: str, environment: pathlib.Path, tmp_path: pathlib.Path):
    """At a pace that leaves the controller, to which ranks report once a second, the time to decide."""
    script, pace = shutil.copy(EXAMPLE, tmp_path), shutil.copy(PACE, tmp_path)
    out = call(
        environment / "bin" / "egeria-run",
        "--nproc-per-node",
        2,
        pace,
        script,
        "--epochs",
        15,
        folder=tmp_path,
        seconds=3000,
        EGERIA_CACHE=str(tmp_path / "cache"),
        EGERIA_POLICY=policy,
        EGERIA_POLICY_OPTIONS=OPTIONS[policy],
        STEP_SECONDS="0.05",
        PATH=f"{environment / 'bin'}:{os.environ['PATH']}",
    )
    assert float(re.search(r"accuracy ([\d.]+)", out).group(1)) > 0.95
    summary = next(line for line in out.splitlines() if line.startswith("egeria: "))
    # Whether a freeze comes before the drop of the rate, and an unfreeze with it, is a matter of how fast the readings
    # were.
    assert re.search(r"[1-9]\d* freezes?, \d+ unfreezes?, 2 ranks identical", summary), out[-6000:]


def test_python_alone_starts_the_controller_that_came_with_the_package(
    environment: pathlib.Path, tmp_path: pathlib.Path
):
    """Nothing is in PATH but what is in any system's."""
    script, pace = shutil.copy(EXAMPLE, tmp_path), shutil.copy(PACE, tmp_path)
    command = environment / "bin" / "python", pace, script, "--epochs", 6
    out = call(*command, folder=tmp_path, seconds=600, EGERIA_CACHE="none", STEP_SECONDS="0.02", PATH="/usr/bin:/bin")
    summary = next(line for line in out.splitlines() if line.startswith("egeria: "))
    assert re.search(r"steps with a controller of the job's own, .*[1-9]\d* freezes?", summary), out[-6000:]


def test_doctor_finds_the_package_beside_the_program(environment: pathlib.Path, tmp_path: pathlib.Path):
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "def build():\n"
        "    layers = [torch.nn.Linear(16, 16) for _ in range(4)]\n"
        "    return torch.nn.Sequential(*layers), torch.randn(8, 16)\n",
        encoding="utf-8",
    )
    out = call(
        environment / "bin" / "egeria",
        "doctor",
        "model.py:build",
        folder=tmp_path,
        PATH=f"{environment / 'bin'}:{os.environ['PATH']}",
    )
    assert "attach() would take this model" in out
