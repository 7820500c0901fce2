"""A process with a live link ends when Python ends: promptly, with the code that it would have had, whatever the
controller and the other ranks do."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from harness import TORCHRUN, Controller, free_port, wait_until
from launching import HERE, Program
from preloaded import rank_environment

PROMPTLY = 120  # seconds; what hangs does so for the group's timeout of five minutes, or for ever


@contextlib.contextmanager
def two_ranks(folder: pathlib.Path, controller: Controller, *arguments: object) -> Iterator[list[Program]]:
    """link_job.py on two ranks, each a process of the test's own, so that each exit code is seen."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                Program(
                    folder,
                    "link_job.py",
                    "--controller",
                    controller.address,
                    "--out",
                    folder,
                    *arguments,
                    environment=rank_environment(rank, 2, port),
                )
            )
            for rank in range(2)
        ]


@pytest.fixture(params=["running", "stopped"])
def any_controller(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Controller]:
    """A controller that answers, and one that holds its connections but says nothing."""
    with Controller(tmp_path) as controller:
        if request.param == "stopped":
            controller.signal(signal.SIGSTOP)
        yield controller


def test_returning_without_stop(tmp_path: pathlib.Path, any_controller: Controller):
    with Program(
        tmp_path, "link_job.py", "--controller", any_controller.address, "--out", tmp_path, "--end", "return"
    ) as program:
        assert program.wait(PROMPTLY) == 0, program.text()


def test_an_exception_in_the_loop(tmp_path: pathlib.Path, any_controller: Controller):
    with Program(
        tmp_path, "link_job.py", "--controller", any_controller.address, "--out", tmp_path, "--end", "exception"
    ) as program:
        assert program.wait(PROMPTLY) == 1
        assert "ValueError: in the loop" in program.text()


def test_an_exception_on_one_rank_of_two_ends_that_rank(tmp_path: pathlib.Path, any_controller: Controller):
    with two_ranks(tmp_path, any_controller, "--end", "exception", "--steps", 100_000) as (failing, other):
        assert failing.wait(PROMPTLY) == 1, failing.text()
        assert "ValueError: in the loop" in failing.text()
        # The other one cannot go on alone; it says so and ends, too.
        assert other.wait(PROMPTLY) == 1
        assert "[COMMIT_FAILED]" in other.text()


def test_an_exception_while_the_other_rank_never_comes(tmp_path: pathlib.Path, controller: Controller):
    # The last agreement of the failing rank is one that will never be reached.
    with two_ranks(tmp_path, controller, "--end", "raise-in-wait") as (failing, other):
        assert failing.wait(PROMPTLY) == 1, failing.text()
        assert "ValueError: in the loop" in failing.text()
        assert other.process.poll() is None


@pytest.mark.parametrize(
    "number, code", [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, -signal.SIGTERM)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_while_waiting_for_another_rank(
    tmp_path: pathlib.Path, controller: Controller, number: signal.Signals, code: int
):
    with two_ranks(tmp_path, controller, "--end", "wait") as (waiting, _):
        wait_until((tmp_path / "waiting").exists, PROMPTLY, "rank 0 to wait")
        waiting.process.send_signal(number)
        assert waiting.wait(PROMPTLY) == code, waiting.text()
        if number == signal.SIGINT:
            assert "KeyboardInterrupt" in waiting.text()


def test_a_signals_handler_may_raise_what_it_likes(tmp_path: pathlib.Path, controller: Controller):
    with two_ranks(tmp_path, controller, "--end", "wait", "--handle-sigterm") as (waiting, _):
        wait_until((tmp_path / "waiting").exists, PROMPTLY, "rank 0 to wait")
        waiting.process.terminate()
        assert waiting.wait(PROMPTLY) == 3, waiting.text()


def test_torchrun_ends_when_a_rank_fails(tmp_path: pathlib.Path, controller: Controller):
    torchrun = [TORCHRUN, "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2", HERE / "link_job.py"]
    arguments = ["--controller", controller.address, "--out", tmp_path, "--end", "exception", "--steps", "100000"]
    done = subprocess.run([*torchrun, *arguments], capture_output=True, text=True, timeout=2 * PROMPTLY, check=False)
    assert done.returncode == 1 and "ValueError: in the loop" in done.stderr, done.stderr


ENDINGS = {
    "alive": "",
    "a thread is in a call": "import threading; threading.Thread(target=lambda: link.commit(2)).start()",
    "dropped": "del link",
    "in a cycle": "import gc; cycle = [link]; cycle.append(cycle); del link, cycle; gc.collect()",
    "stopped twice": "link.stop(finished=True); link.stop(finished=False)",
    "used after stop": "link.stop(finished=True); link.commit(2); link.report(2, None, [], 0); link.counters()",
    "in another module": "import sys; sys.modules['egeria'].link = link",
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
def test_ends_of_the_interpreter(controller: Controller, ending: str):
    controller.signal(signal.SIGSTOP)
    program = textwrap.dedent(f"""
        from egeria import _native
        from link_job import describe_job
        link = _native.RankLink(describe_job(), controller={controller.address!r})
        link.commit(1)
        {ending}
        raise SystemExit(5)
    """)
    ended = subprocess.run(
        [sys.executable, "-c", program], timeout=PROMPTLY, capture_output=True, text=True, cwd=HERE, check=False
    )
    assert ended.returncode == 5, ended.stderr
