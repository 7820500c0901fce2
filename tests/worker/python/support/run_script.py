"""Runs a script as `python SCRIPT ARGUMENTS` does, but leaves without taking process groups or the interpreter apart.

Gloo's threads may let go of a tensor late. If the interpreter is being finalized by then, that aborts the process
(pytorch/pytorch, pull request 179291); if the process group is being freed, whose destructor waits for its threads with
the interpreter's lock in hand, it hangs. Both happen to plain scripts, on busy machines, and would make tests fail that
are about something else.

STEP_SECONDS in the environment, if set, is the time that an optimizer's step takes at least. A model of a test trains
a hundred steps in the second between two heartbeats, which is no time to decide anything in.

STEP_EVENTS beside it, a JSON list of (step, regular expression), says what steps are to leave the time for: from each
of these steps on, until the page STEP_METRICS has a line that matches, each step takes STEP_SECONDS more than the one
before, on rank 0, which the others wait for. All other steps take their own time.
"""

import atexit
import json
import os
import re
import runpy
import sys
import time
import urllib.request

import torch.distributed as dist
from torch.distributed import distributed_c10d

kept = []  # process groups, until the end


def keep_process_groups() -> None:
    destroy = dist.destroy_process_group

    def keep_and_destroy(*arguments, **keywords) -> None:
        kept.extend(distributed_c10d._world.pg_map)
        destroy(*arguments, **keywords)

    dist.destroy_process_group = distributed_c10d.destroy_process_group = keep_and_destroy


class UntilEvents:
    """An optimizer's hook: slower and slower steps while something is waited for."""

    def __init__(self, seconds: float, events: list[tuple[int, str]], page: str):
        self.seconds = seconds
        self.events = events
        self.page = page
        self.steps = 0
        self.slow_steps = 0  # that the first of the events has been waited for

    def __call__(self, *_: object) -> None:
        self.steps += 1
        if not self.events or self.steps < self.events[0][0]:
            return
        self.slow_steps += 1
        time.sleep(self.seconds * self.slow_steps)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.page, timeout=300) as answer:
            text = answer.read().decode()
        if re.search(self.events[0][1], text, re.MULTILINE):
            del self.events[0]
            self.slow_steps = 0


def pace(seconds: float) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    if "STEP_EVENTS" not in os.environ:
        register_optimizer_step_post_hook(lambda *_: time.sleep(seconds))
    elif os.environ.get("RANK", "0") == "0":
        events = json.loads(os.environ["STEP_EVENTS"])
        register_optimizer_step_post_hook(UntilEvents(seconds, events, os.environ["STEP_METRICS"]))


if __name__ == "__main__":
    if "STEP_SECONDS" in os.environ:
        pace(float(os.environ["STEP_SECONDS"]))
    keep_process_groups()
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
