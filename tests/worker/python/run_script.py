"""Runs a script as `python SCRIPT ARGUMENTS` does, but leaves without finalizing the interpreter.

torch's gloo threads may let go of a tensor when the interpreter is already being finalized, which aborts the process
(pytorch/pytorch, pull request 179291). It happens to plain scripts too, on busy machines, and would make tests fail
that are about something else.
"""

import atexit
import os
import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
