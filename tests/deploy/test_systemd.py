"""systemd takes the files of deploy/systemd, and makes of them what they say."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNITS = ["egeria-controller.service", "egeria-cache@.service"]


def systemd(tool: str, *arguments: object) -> None:
    """Runs a tool of systemd; needs no running systemd. Whatever the tool complains of is an error."""
    if shutil.which(tool) is None:
        pytest.skip(f"there is no {tool} on this machine")
    ran = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "ignoring" not in ran.stderr.lower(), ran.stderr


@pytest.fixture(name="machine")
def machine_fixture(tmp_path: pathlib.Path) -> pathlib.Path:
    """The root folder of a machine on which both files are installed, and which knows no users but root."""
    if os.geteuid() != 0:
        pytest.skip("only root makes users and gives folders to them")
    for kind in ("sysusers", "tmpfiles"):
        installed = tmp_path / "usr" / "local" / "lib" / f"{kind}.d" / "egeria.conf"
        installed.parent.mkdir(parents=True)
        shutil.copy(FOLDER / f"{kind}.conf", installed)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n", encoding="utf-8")
    (tmp_path / "etc" / "group").write_text("root:x:0:\n", encoding="utf-8")
    systemd("systemd-sysusers", f"--root={tmp_path}")
    return tmp_path


def ids(machine: pathlib.Path, file: str, name: str) -> list[str]:
    lines = (machine / "etc" / file).read_text(encoding="utf-8").splitlines()
    return next(line.split(":")[2:] for line in lines if line.startswith(f"{name}:"))


def test_the_controllers_user_is_in_the_group_of_those_who_may_connect(machine: pathlib.Path):
    uid, gid, *_, shell = ids(machine, "passwd", "egeria-controller")
    assert uid != "0"
    assert gid == ids(machine, "group", "egeria")[0]
    assert shell.endswith("nologin")
    unit = (FOLDER / "egeria-controller.service").read_text(encoding="utf-8")
    assert "\nUser=egeria-controller\n" in unit
    assert "\nGroup=egeria\n" in unit


def test_the_controllers_folders_are_its_own(machine: pathlib.Path):
    systemd("systemd-tmpfiles", "--create", f"--root={machine}")
    owner = tuple(int(number) for number in ids(machine, "passwd", "egeria-controller")[:2])
    for folder, mode in (("run/egeria", 0o755), ("var/lib/egeria", 0o700)):
        status = (machine / folder).stat()
        assert ((status.st_uid, status.st_gid), status.st_mode & 0o777) == (owner, mode), folder


def test_no_clean_up_by_age_takes_the_journal_of_a_long_job(machine: pathlib.Path):
    (machine / "usr" / "local" / "lib" / "tmpfiles.d" / "tmp.conf").write_text("d /tmp 1777 root root 0\n")
    journal, other = machine / "tmp" / "egeria-run-a1" / "state" / "000012.sst", machine / "tmp" / "other" / "file"
    for file in (journal, other):
        file.parent.mkdir(parents=True)
        file.touch()
    systemd("systemd-tmpfiles", "--clean", f"--root={machine}")
    assert not other.exists()
    assert journal.exists()


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_takes_the_unit(unit: str, tmp_path: pathlib.Path):
    """The programs are not where systemd looks for them, so that the unit gets the path of one that is."""
    text = (FOLDER / unit).read_text(encoding="utf-8")
    program = unit.split("@")[0].removesuffix(".service")
    assert f"\nExecStart={program} " in text
    (tmp_path / unit).write_text(text.replace(f"ExecStart={program} ", "ExecStart=/bin/true "), encoding="utf-8")
    systemd("systemd-analyze", "verify", "--man=no", tmp_path / unit)


@pytest.mark.parametrize("unit", UNITS)
def test_little_is_left_of_what_a_service_could_do(unit: str):
    systemd("systemd-analyze", "security", "--offline=true", "--threshold=20", FOLDER / unit)
