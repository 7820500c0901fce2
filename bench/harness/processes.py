"""Processes that end with the one that started them, however that one ends."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from bench.harness.errors import BenchError

if TYPE_CHECKING:
    from typing import Self

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Makes the kernel end this process when its parent does, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def find_program(name: str) -> pathlib.Path:
    """One of Egeria's programs: in $EGERIA_BIN, beside this Python, in a build of this checkout, or on PATH."""
    folders = [
        os.environ.get("EGERIA_BIN"),
        str(pathlib.Path(sys.executable).parent),
        str(pathlib.Path(__file__).resolve().parents[2] / "build" / "dev" / "bin"),
    ]
    for folder in folders:
        if folder and os.access(pathlib.Path(folder) / name, os.X_OK):
            return pathlib.Path(folder) / name
    found = shutil.which(name)
    if found is None:
        raise BenchError(
            "NO_PROGRAM", f"{name} is not found; build it (deploy/build.sh), or name its folder in EGERIA_BIN"
        )
    return pathlib.Path(found)


class _Daemon:
    """One of Egeria's daemons, which ends with its context. A subclass says how it is called.

    Attributes:
      address: as egeria.Config takes it.
    """

    program: ClassVar[str]

    def __init__(self, folder: pathlib.Path, address: str, options: Sequence[str | pathlib.Path]):
        self._log_file = folder / f"{self.program}.log"
        self._options = options
        self.address = address
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        reader, writer = os.pipe()
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [find_program(self.program), "--listen", self.address, "--ready-fd", str(writer), *self._options],
                stdout=log,
                stderr=log,
                pass_fds=[writer],
                preexec_fn=end_with_parent,
            )
        os.close(writer)
        with os.fdopen(reader) as ready:
            line = ready.readline()
        if line != "READY=1\n":
            self.__exit__()
            raise BenchError(
                "NO_DAEMON",
                f"{self.program} did not become ready; it said:\n{self._log_file.read_text(errors='replace')[-2000:]}",
            )
        return self

    def processor_seconds(self) -> float:
        """Returns the processor time that it has taken so far. It must still run."""
        fields = pathlib.Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Controller(_Daemon):
    """An egeria-controller of its own, on a socket in a folder of its own."""

    program = "egeria-controller"

    def __init__(self, folder: pathlib.Path, options: Sequence[str] = ()):
        """options: more of its command line."""
        address = f"unix:{folder}/controller.sock"
        super().__init__(folder, address, ["--state-dir", folder / "state", "--metrics-listen", "none", *options])

    def list(self) -> list[dict[str, Any]]:
        """The jobs that it holds, as `egeria list --json` shows them."""
        return [json.loads(line) for line in self._egeria("list", "--json").splitlines() if line.strip()]

    def jobs(self) -> list[str]:
        """Their ids."""
        return [job["job_id"] for job in self.list()]

    def export(self, job: str, *options: str) -> str:
        """The output of `egeria export` for a job."""
        return self._egeria("export", job, *options)

    def _egeria(self, *arguments: str) -> str:
        try:
            return subprocess.run(
                [find_program("egeria"), *arguments, "--controller", self.address],
                check=True,
                capture_output=True,
                text=True,
                timeout=30,
            ).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise BenchError("NO_DECISIONS", f"`egeria {' '.join(arguments)}` failed: {error}") from None


class Cache(_Daemon):
    """An egeria-cache of its own, with its entries in a folder of its own, as egeria-run starts one."""

    program = "egeria-cache"

    def __init__(self, folder: pathlib.Path):
        super().__init__(folder, f"unix:{folder}/cache.sock", ["--folder", folder / "cache", "--log-level", "warning"])


def run_ranks(arguments: Sequence[str], ranks: int, log_file: pathlib.Path, variables: Mapping[str, str]) -> None:
    """Runs the ranks of a job to their end, with these variables in their environment.

    Raises:
      BenchError: [RUN_FAILED] a rank ended with an error; the end of the log is in the message.
    """
    root = str(pathlib.Path(__file__).resolve().parents[2])
    environment = dict(
        os.environ,
        OMP_NUM_THREADS="1",
        PYTHONUNBUFFERED="1",
        PYTHONFAULTHANDLER="1",
        TOKENIZERS_PARALLELISM="false",
        PYTHONPATH=os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
    )
    for name in [name for name in environment if name.startswith("EGERIA_") and name not in ("EGERIA_BIN",)]:
        del environment[name]  # a run is configured by its record alone
    environment.update(variables)
    process = start_ranks(arguments, ranks, log_file, environment)
    try:
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code != 0:
        raise BenchError(
            "RUN_FAILED",
            f"a run ended with exit code {code}; the end of its log:\n"
            + log_file.read_text(errors="replace")[-20_000:],
        )


def start_ranks(
    arguments: Sequence[str], ranks: int, log_file: pathlib.Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts `python -m bench.harness.rank` under torch.distributed.run."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "1",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "127.0.0.1:0",
        "--nproc-per-node",
        str(ranks),
        "-m",
        "bench.harness.rank",
        *arguments,
    ]
    with log_file.open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, preexec_fn=end_with_parent)
