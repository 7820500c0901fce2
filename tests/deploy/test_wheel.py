"""deploy/wheel.sh: the wheel carries its libraries, and trains where there is nothing but Python and torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import re
import shutil
import site
import subprocess
import sys
import zipfile
from collections.abc import Iterator

import pytest
from commands import call
from search_paths import elf_files, unsafe_entries

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "worker" / "python" / "examples" / "digits.py"
PACE = ROOT / "tests" / "worker" / "python" / "support" / "run_script.py"
# The cache of this job is one that the package starts.
CACHED = """
import time

import egeria
import torch

network = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).eval().requires_grad_(False)
inputs = torch.randn(64, 256)
outputs = network(inputs)
egeria.cached(network, cache="/root/entries", use="always")
for _ in range(200):
    assert torch.equal(network(inputs), outputs)
    time.sleep(0.1)
    if egeria.cache_summary(network)["served"] > 3:
        print("served")
        break
"""
# Every Linux with this glibc has them, or else the torch that is installed.
OF_OTHERS = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|z)\.so\.\d|libtorch\w*\.so|libc10\.so)$")


@pytest.fixture(scope="module", name="carrying")
def carrying_fixture(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    if importlib.util.find_spec("auditwheel") is None:
        pytest.skip("this Python has no auditwheel, which deploy/requirements-tests.txt lists")
    folder = tmp_path_factory.mktemp("carrying")
    call("bash", ROOT / "deploy" / "wheel.sh", folder, wheel, folder=ROOT, seconds=300, PYTHON=sys.executable)
    return next(folder.glob("egeria-*.whl"))


@pytest.fixture(scope="module", name="content")
def content_fixture(carrying: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("content")
    with zipfile.ZipFile(carrying) as archive:
        archive.extractall(folder)
    return folder


def test_its_tag_is_for_a_glibc_that_is_no_newer_than_this_one(carrying: pathlib.Path):
    tag = re.fullmatch(r"egeria-[\d.]+-cp3\d+-cp3\d+-manylinux_2_(\d+)_\w+\.whl", carrying.name)
    assert tag
    assert int(tag.group(1)) <= int(platform.libc_ver()[1].split(".")[1])
    assert carrying.stat().st_size < 40e6


def test_it_carries_its_libraries_and_none_of_torch(content: pathlib.Path):
    carried = {path.name.split("-")[0].split(".")[0] for path in (content / "egeria.libs").iterdir()}
    assert carried >= {"libgrpc++", "libprotobuf", "libabsl_strings", "libprometheus", "libssl", "libyaml"}
    assert not {name for name in carried if name.startswith(("libtorch", "libc10", "libgomp", "libstdc++"))}


def test_nothing_in_it_needs_a_library_from_elsewhere(content: pathlib.Path):
    files = elf_files(content)
    carried = {path.name for path in (content / "egeria.libs").iterdir()}
    assert len(files) >= 6 + len(carried)
    for file in files:
        shown = subprocess.run(["readelf", "-dW", str(file)], text=True, capture_output=True, check=True).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", shown))
        assert {name for name in needed - carried if not OF_OTHERS.match(name)} == set(), file
        assert unsafe_entries(file) == [], file


def names_of(distribution: str, seen: set[str]) -> set[str]:
    """The files and folders of a package and of all that it needs, as they lie in the folder of packages."""
    if distribution in seen:
        return set()
    seen.add(distribution)
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return set()  # it is for other machines
    names = {file.parts[0] for file in found.files or [] if file.parts[0] != ".."}
    for needed in found.requires or []:
        if "extra ==" not in needed:
            names |= names_of(re.match(r"[\w.-]+", needed).group(), seen)
    return names


@pytest.fixture(name="bare")
def bare_fixture(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """The root folder of a Debian that has Python and, once /opt/packages is mounted, torch and the example's data."""
    if not os.environ.get("EGERIA_TEST_WHEEL"):
        pytest.skip("it downloads a small Debian and takes a minute: EGERIA_TEST_WHEEL=1 runs it")
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None or sys.version_info[:2] != (3, 11):
        pytest.skip("it needs root, mmdebstrap, and Debian 12's Python 3.11")
    root = tmp_path / "root"
    # mmdebstrap's folder must be one that every user can enter.
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    call(
        "mmdebstrap", "--variant=apt", "--include=python3,python3-venv", "bookworm", root, folder=tmp_path, seconds=400
    )
    shutil.copy("/etc/hosts", root / "etc" / "hosts")  # torchrun asks for the names of this machine
    (root / "opt" / "packages").mkdir()
    call("chroot", root, "python3", "-m", "venv", "/opt/venv", folder=tmp_path)
    packages = root / "opt" / "venv" / "lib" / "python3.11" / "site-packages"
    seen: set[str] = set()
    for name in names_of("torch", seen) | names_of("numpy", seen) | names_of("scikit-learn", seen):
        if not (packages / name).exists():
            (packages / name).symlink_to(f"/opt/packages/{name}")
    torchrun = root / "opt" / "venv" / "bin" / "torchrun"
    torchrun.write_text("#!/opt/venv/bin/python\nfrom torch.distributed.run import main\nmain()\n", encoding="utf-8")
    torchrun.chmod(0o755)
    yield root
    shutil.rmtree(root)


def in_root(root: pathlib.Path, command: str, seconds: float = 120) -> str:
    """Runs a shell command there, without an environment. The mounts are this process's own, and go with it."""
    mounts = (
        f"mount --bind {site.getsitepackages()[0]} {root}/opt/packages; mount -t proc proc {root}/proc; "
        f"mount --rbind /dev {root}/dev; "
    )
    enter = f"exec env -i PATH=/usr/sbin:/usr/bin:/bin HOME=/root OMP_NUM_THREADS=1 chroot {root} "
    return call(
        "unshare", "--mount", "sh", "-ec", f'{mounts} {enter} sh -ec "$0"', command, folder=root, seconds=seconds
    )


def test_it_trains_with_controller_and_cache_where_there_is_python_and_torch(
    carrying: pathlib.Path, bare: pathlib.Path
):
    for file in (carrying, EXAMPLE, PACE):
        shutil.copy(file, bare / "root")
    assert not [path for path in (bare / "usr" / "lib").rglob("lib*.so*") if re.match("lib(grpc|absl|yaml)", path.name)]
    in_root(bare, f"/opt/venv/bin/python -m pip install --no-index --no-deps /root/{carrying.name}")
    options = '{"interval_steps": 5, "window": 3, "tolerance": 1, "bootstrap": false}'
    out = in_root(
        bare,
        f"cd /root; export EGERIA_CACHE=/root/cache EGERIA_CACHE_USE=always EGERIA_POLICY=plasticity STEP_SECONDS=0.05"
        f" EGERIA_POLICY_OPTIONS='{options}'; /opt/venv/bin/egeria-run --nproc-per-node 2 run_script.py digits.py"
        " --epochs 15",
        seconds=300,
    )
    assert float(re.search(r"accuracy ([\d.]+)", out).group(1)) > 0.95
    summary = next(line for line in out.splitlines() if line.startswith("egeria: "))
    assert re.search(r"[1-9]\d* freezes?, \d+ unfreezes?, 2 ranks identical", summary), out[-6000:]
    (bare / "root" / "cached.py").write_text(CACHED, encoding="utf-8")
    assert in_root(bare, "cd /root; /opt/venv/bin/python cached.py").endswith("served\n")
