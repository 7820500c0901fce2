"""This file lets `python -m egeria.doctor` run the command."""

import sys

from egeria.doctor.command import main

sys.exit(main())
