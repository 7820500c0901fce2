"""Real processes for the end-to-end tests: a controller, training jobs under torchrun, and what they report.

Everything lives in a temporary folder and on Unix sockets or port 0; nothing outlives the context managers.
"""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("EGERIA_BIN", ROOT / "build" / "dev" / "bin"))
TORCHRUN = pathlib.Path(sys.executable).parent / "torchrun"


def wait_until(condition, seconds: float, what: str):
    """Returns condition()'s first true value; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s in vain for {what}")


def free_port() -> int:
    """A TCP port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Controller:
    """An egeria-controller on a Unix socket of its own, that can be killed and started again."""

    def __init__(self, folder: pathlib.Path, *arguments: str):
        self.folder = folder
        self.address = f"unix:{folder}/controller.sock"
        self.metrics_port = free_port()
        self.arguments = arguments
        self.process: subprocess.Popen | None = None
        self.log = folder / "controller.log"

    def start(self) -> "Controller":
        """Starts it and returns when it says that it is ready."""
        reader, writer = os.pipe()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    BIN / "egeria-controller",
                    "--listen",
                    self.address,
                    "--state-dir",
                    self.folder / "state",
                    "--metrics-listen",
                    f"127.0.0.1:{self.metrics_port}",
                    "--ready-fd",
                    str(writer),
                    *self.arguments,
                ],
                stdout=log,
                stderr=log,
                pass_fds=[writer],
            )
        os.close(writer)
        with os.fdopen(reader) as ready:
            line = ready.readline()
        assert line == "READY=1\n", f"the controller did not become ready:\n{self.log.read_text()}"
        return self

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        return self.process.wait(timeout=300)

    def egeria(self, *arguments: str) -> str:
        """Output of the command `egeria` against this controller."""
        return subprocess.run(
            [BIN / "egeria", *arguments, "--controller", self.address],
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
        ).stdout

    def metrics(self) -> str:
        return http_get(f"http://127.0.0.1:{self.metrics_port}/metrics")

    def __enter__(self) -> "Controller":
        return self.start()

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


def http_get(url: str) -> str:
    """Fetches a page that this machine serves, whatever http_proxy says."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=300) as answer:
        return answer.read().decode()


def metric(text: str, name: str, **labels: str) -> float | None:
    """Sum of the samples of one metric whose labels include `labels`; None where there is none."""
    total = None
    for line in text.splitlines():
        match = re.match(rf"^{re.escape(name)}(?:{{(.*)}})? (\S+)$", line)
        if not match:
            continue
        found = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(1) or ""))
        if all(found.get(key) == value for key, value in labels.items()):
            total = (total or 0.0) + float(match.group(2))
    return total


class Job:
    """A training job under torchrun: `egeria-train` on two ranks, unless said otherwise. Ends with its context."""

    def __init__(
        self,
        folder: pathlib.Path,
        name: str,
        *arguments: str,
        controller: str = "none",
        ranks: int = 2,
        program: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ):
        self.summary_path = folder / f"{name}.json"
        self.log = folder / f"{name}.log"
        env = dict(os.environ, EGERIA_CONTROLLER=controller, OMP_NUM_THREADS="1", **(environment or {}))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    TORCHRUN,
                    "--nnodes",
                    "1",
                    "--rdzv-backend",
                    "c10d",
                    "--rdzv-endpoint",
                    "127.0.0.1:0",
                    "--local-addr",
                    "127.0.0.1",
                    "--nproc-per-node",
                    str(ranks),
                    "--no-python",
                    *(program or (str(BIN / "egeria-train"),)),
                    *arguments,
                    "--summary",
                    str(self.summary_path),
                ],
                stdout=log,
                stderr=log,
                env=env,
            )

    def wait(self, seconds: float = 1200) -> dict:
        """The run's summary; fails where the job failed."""
        try:
            code = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the job did not end within {seconds} s:\n{self.log.read_text()[-4000:]}") from None
        assert code == 0, f"the job ended with {code}:\n{self.log.read_text()[-4000:]}"
        return json.loads(self.summary_path.read_text())["runs"][0]

    def metrics(self, rank: int) -> str:
        """The metrics that a rank started with --metrics-port 0 serves at the port that its log names."""
        port = re.search(rf"metrics of rank {rank} at port (\d+)", self.log.read_text()).group(1)
        return http_get(f"http://127.0.0.1:{port}/metrics")

    def kill(self) -> None:
        """Ends torchrun and, through it, the ranks, which it has put into sessions of their own."""
        self.process.terminate()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.kill()
