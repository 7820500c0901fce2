#!/usr/bin/env python3
"""`egeria bench`, where this Python has the package egeria."""

import sys

from harness.command_line import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
