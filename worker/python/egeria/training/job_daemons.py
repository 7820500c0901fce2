"""Where no controller is named, a job brings its own daemons: child processes that end with this one."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import torch.distributed as dist

from egeria import _native
from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.freeze.rank_agreement import gather

_shared: dict[tuple[str, ...], Companion] = {}  # by the options that they were started with
_ending: list[subprocess.Popen[bytes]] = []  # no session uses them any more

# The path of a Unix socket has room for so long a folder.
_MAX_FOLDER = 60


class Companion:
    """The process `egeria-run --egeria-beside`, which holds the daemons for this one.

    It ends, and the daemons with it, once its standard input does: when the last session has left it, or when this
    process ends, in whatever way. Then it removes their folder. A forked child has no part in it.

    Attributes:
      address: the controller's, whether it listens yet or not.
    """

    def __init__(self, options: tuple[str, ...]):
        """Starts it, and waits for nothing. Raises OSError where it cannot be started."""
        program = _program()
        folder = _new_folder()
        self.address = f"unix:{folder}/controller.sock"
        self.users = 0
        try:
            # In a session of its own, so that neither Ctrl-C nor the end of a notebook's kernel reaches it first.
            self._process = subprocess.Popen(
                [program, "--egeria-beside", folder, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def want_cache(self) -> None:
        """Starts a cache, or adopts the one that serves the folder."""
        with contextlib.suppress(OSError):  # it has ended
            self._process.stdin.write(b"cache\n")  # type: ignore[union-attr]

    def end(self) -> None:
        """Lets it end, and waits for nothing."""
        _ending[:] = [process for process in (*_ending, self.forget()) if process.poll() is None]

    def forget(self) -> subprocess.Popen[bytes]:
        """Gives its standard input up."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        return self._process


class JobDaemons:
    """A session has one, for the daemons that its job brings. All sessions of a process share these.

    Owned by the training thread.

    Attributes:
      are_own: the controller that the ranks have agreed on was started for this job.
      trouble: for the end, why nothing could freeze; None where nothing is known to be wrong.
    """

    def __init__(self, config: Config):
        self.are_own = False
        self.trouble: str | None = None
        self._config = config
        self._options = ("--egeria-cache", config.cache) if config.cache else ()
        self._used: dict[tuple[str, ...], Companion] = {}
        self._address: str | None = None  # the own controller's, where this process has started it
        self._brings_cache = config.brings_cache()
        self._brings_controller = config.brings_controller()
        if self._brings_controller and rank_of_job() == 0:
            self._start_controller()

    def agree(self, group: dist.ProcessGroup | None) -> None:
        """Settles which controller this rank goes to: the one that was named, or else the one that the first rank has
        started. A collective of the ranks of `group`.

        Raises:
          EgeriaError: [NO_LINK] on all ranks alike, where one of them reaches none.
        """
        if self._brings_controller:
            if group is None or dist.get_rank(group) == 0:
                self._start_controller()
            else:
                self._leave(self._options)  # one that was started before the ranks knew each other
        node, named = _native.node_name(), self._config.address()
        found = gather(group, (node, named, self._address, self.trouble))
        node_of_first, named_first, started, trouble = found[0]
        first = named_first or started
        if first is None:
            raise EgeriaError("NO_LINK", trouble or "the first rank has no controller")
        for other, address, *_ in found:
            if other != node_of_first and first.startswith("unix:") and not (address and named_first):
                self.close()
                raise EgeriaError(
                    "NO_LINK",
                    f"node {other} does not reach the controller of node {node_of_first}; start one egeria-controller "
                    "where all nodes reach it, and set EGERIA_CONTROLLER to its address on all of them",
                )
        self.are_own = named_first is None
        self._config.cache = self._config.cache_address() or "none"  # before the controller changes it
        self._config.controller = first if node == node_of_first or named is None else named

    def want_cache(self) -> None:
        """Ranks have something for the node's cache, which its first rank starts."""
        local_rank = os.environ.get("LOCAL_RANK")
        if self._brings_cache and (int(local_rank) if local_rank else rank_of_job()) == 0:
            without = ("--egeria-controller", "none", *self._options)
            with contextlib.suppress(OSError):  # its absence is a miss
                self._use(self._options if self._options in self._used else without).want_cache()

    def close(self) -> None:
        """The session has ended."""
        for options in list(self._used):
            self._leave(options)

    def _start_controller(self) -> None:
        try:
            self._address = self._use(self._options).address
        except OSError as error:
            self.trouble = f"there is no controller: {error}"

    def _use(self, options: tuple[str, ...]) -> Companion:
        """Raises OSError."""
        if options not in self._used:
            if options not in _shared or _shared[options].has_ended:
                _shared[options] = Companion(options)
            _shared[options].users += 1
            self._used[options] = _shared[options]
        return self._used[options]

    def _leave(self, options: tuple[str, ...]) -> None:
        if (companion := self._used.pop(options, None)) is None:
            return
        if companion.has_ended:
            self.trouble = "the controller that the job has brought ended early"
        companion.users -= 1
        if companion.users == 0:
            companion.end()
            if _shared.get(options) is companion:
                del _shared[options]


def rank_of_job() -> int:
    """This process's rank, as the process group or else the launcher says."""
    if dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK") or 0)


def wait_for_end(patience: float = 2.0) -> None:
    """At the end of the process: lets nothing outlive it that ends within `patience` seconds."""
    deadline = time.monotonic() + patience
    for process in _ending:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


def _forget_in_child() -> None:
    """A forked child has none, and keeps those of its parent not alive."""
    for process in (*(companion.forget() for companion in _shared.values()), *_ending):
        process.returncode = 0  # it is the parent's to wait for
    _shared.clear()
    _ending.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def _program() -> str:
    """egeria-run of this installation: in the folder `bin` nearest above the package, or in PATH."""
    for folder in pathlib.Path(_native.__file__).parents:
        if (program := folder / "bin" / "egeria-run").is_file():
            return str(program)
    if (found := shutil.which("egeria-run")) is None:
        raise FileNotFoundError("egeria-run is neither beside the package nor in PATH; reinstall egeria")
    return found


def _new_folder() -> str:
    """A new folder that only this user can enter, as egeria-run makes it."""
    for base in (os.environ.get("TMPDIR"), os.environ.get("XDG_RUNTIME_DIR"), "/tmp"):
        if base and len(os.path.abspath(base)) <= _MAX_FOLDER:
            with contextlib.suppress(OSError):
                return tempfile.mkdtemp(prefix="egeria-run-", dir=os.path.abspath(base))
    raise OSError("no temporary folder can be made in $TMPDIR, $XDG_RUNTIME_DIR or /tmp")
