"""Runs a script as `python SCRIPT ARGUMENTS` does, but leaves without finalizing the interpreter.

torch's gloo threads may let go of a tensor when the interpreter is already being finalized, which aborts the process
(pytorch/pytorch, pull request 179291). It happens to plain scripts too, on busy machines, and would make tests fail
that are about something else.

STEP_SECONDS in the environment, if set, is the time that an optimizer's step takes at least. A model of a test trains
a hundred steps in the second between two heartbeats, which is no time to decide anything in.
"""

import atexit
import os
import runpy
import sys
import time


def pace(seconds: float) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(lambda *_: time.sleep(seconds))


if __name__ == "__main__":
    if "STEP_SECONDS" in os.environ:
        pace(float(os.environ["STEP_SECONDS"]))
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
