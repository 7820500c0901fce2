"""Runs a script as `python SCRIPT ARGUMENTS` does, but leaves without taking process groups or the interpreter apart.

Gloo's threads may let go of a tensor late. If the interpreter is being finalized by then, that aborts the process
(pytorch/pytorch, pull request 179291); if the process group is being freed, whose destructor waits for its threads with
the interpreter's lock in hand, it hangs. Both happen to plain scripts, on busy machines, and would make tests fail that
are about something else.

STEP_SECONDS in the environment, if set, is the time that an optimizer's step takes at least. A model of a test trains
a hundred steps in the second between two heartbeats, which is no time to decide anything in.
"""

import atexit
import os
import runpy
import sys
import time

import torch.distributed as dist
from torch.distributed import distributed_c10d

kept = []  # process groups, until the end


def keep_process_groups() -> None:
    destroy = dist.destroy_process_group

    def keep_and_destroy(*arguments, **keywords) -> None:
        kept.extend(distributed_c10d._world.pg_map)
        destroy(*arguments, **keywords)

    dist.destroy_process_group = distributed_c10d.destroy_process_group = keep_and_destroy


def pace(seconds: float) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(lambda *_: time.sleep(seconds))


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
