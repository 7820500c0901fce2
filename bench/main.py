#!/usr/bin/env python3
"""`egeria bench`, where this Python has the package egeria."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from bench.harness.command_line import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
