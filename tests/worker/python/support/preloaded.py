"""Starts Python programs as forks of a process that has imported torch already.

Importing torch takes seconds of processor time, and the tests start some hundreds of programs. The process that is
forked has run nothing but imports; neither egeria nor any test is among them. A program sees what it would see as
`python SCRIPT ARGUMENTS`: its own arguments, environment, folder and output, an import path from PYTHONPATH, and an
interpreter that ends as usual. Only what is drawn when an interpreter starts is shared: all programs of one process of
pytest hash strings alike.

    preloaded.py MODULE ...   is that process; its standard input is the socket that requests come from
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import math
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any

# DistributedDataParallel imports the compiler when it is made, and an export or a compilation its back end.
MODULES = ["numpy", "torch", "torch.distributed.fsdp", "torch._dynamo", "torch.export", "torch._inductor.compile_fx"]
MAX_REQUEST = 1 << 20


def rank_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """The environment that torchrun would set, for ranks that a test starts one by one."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


class Process:
    """A program under way, with those methods of subprocess.Popen that the tests use."""

    def __init__(
        self,
        script: object,
        arguments: Sequence[object],
        log: pathlib.Path,
        environment: Mapping[str, str],
        folder: pathlib.Path | None = None,
        errors: pathlib.Path | None = None,
    ):
        """Appends the program's output to `log`, and its errors to `errors` if that is given, else to `log` too."""
        self.args = [str(script), *map(str, arguments)]
        self.returncode: int | None = None
        self._status, status = os.pipe()
        files = [os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) for file in (log, errors or log)]
        files.append(status)
        request = json.dumps(
            {"argv": self.args, "environment": dict(environment), "folder": str(folder or os.getcwd())}
        )
        socket.send_fds(start(), [request.encode()], files)
        for file in files:
            os.close(file)
        self.pid = self._next_number()

    def poll(self) -> int | None:
        return self._end_within(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._end_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _end_within(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = self._next_number()
            os.close(self._status)
        return self.returncode

    def _next_number(self) -> int:
        """Reads what the minder tells: first the process id, then the exit code. One that ended early tells neither."""
        text = os.read(self._status, 4)
        assert len(text) == 4, f"{self.args[0]}: the preloaded interpreter has ended; its own errors stand above"
        return int.from_bytes(text, "little", signed=True)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Ranks:
    """The ranks of a job under way, with the variables and the store that torchrun would give them.

    When one of them fails the others are ended, and the exit code is 1.
    """

    def __init__(
        self,
        script: object,
        arguments: Sequence[object],
        log: pathlib.Path,
        environment: Mapping[str, str],
        ranks: int,
        folder: pathlib.Path | None = None,
    ):
        from torch.distributed import TCPStore

        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.args = [str(script), *map(str, arguments)]
        shared = {
            "LOCAL_WORLD_SIZE": str(ranks),
            "ROLE_WORLD_SIZE": str(ranks),
            "ROLE_NAME": "default",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": f"{os.getpid()}-{time.monotonic_ns()}",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        self.processes = [
            Process(
                script,
                arguments,
                log,
                {**environment, **shared, **rank_environment(rank, ranks, self._store.port), "ROLE_RANK": str(rank)},
                folder,
            )
            for rank in range(ranks)
        ]

    @property
    def returncode(self) -> int | None:
        codes = [process.returncode for process in self.processes]
        return None if None in codes else int(any(codes))

    def poll(self) -> int | None:
        if any([process.poll() for process in self.processes]):
            self.terminate()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            time.sleep(0.02)
        return code

    def terminate(self) -> None:
        for process in self.processes:
            process.terminate()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()


@functools.cache
def start() -> socket.socket:
    """Starts this process's own preloaded interpreter, unless it runs. It ends when the socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen([sys.executable, __file__, *MODULES], stdin=theirs)
    return ours


def next_program(requests: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Forks a child for each request. Returns in such a child only, with the request and the files for its output and
    its errors."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the minders
    while True:
        text, files, _, _ = socket.recv_fds(requests, MAX_REQUEST, 3)
        if not text:
            os._exit(0)
        *outputs, status = files
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if (program := os.fork()) == 0:
                os.close(status)
                return json.loads(text), outputs
            for file in outputs:
                os.close(file)
            mind(program, status)
        for file in files:
            os.close(file)


def mind(program: int, status: int) -> None:
    """Tells the test the program's process id and, at its end, its exit code, as subprocess says it."""
    os.write(status, program.to_bytes(4, "little", signed=True))
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # the test has ended
        os.write(status, code.to_bytes(4, "little", signed=True))
    os._exit(0)


def become(request: dict[str, Any], outputs: list[int]) -> None:
    """Gives this process the program's arguments, environment, folder, output and import path, and runs it."""
    with open(os.devnull, "rb") as nothing:
        for number, file in enumerate([nothing.fileno(), *outputs]):
            os.dup2(file, number)
    for file in outputs:
        os.close(file)
    sys.stdout.reconfigure(write_through=True)
    os.chdir(request["folder"])
    without = {*inherited_path(), str(pathlib.Path(__file__).parent)}
    os.environ.clear()
    os.environ.update(request["environment"])
    script, *_ = sys.argv[:] = request["argv"]
    library = [path for path in sys.path if path not in without]
    sys.path[:] = [os.path.dirname(os.path.abspath(script)), *inherited_path(), *library]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = script
    exec(compile(pathlib.Path(script).read_bytes(), script, "exec"), module.__dict__)


def inherited_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a program need not copy the pages of what was imported
    become(*next_program(socket.socket(fileno=os.dup(0))))


if __name__ == "__main__":
    main()
