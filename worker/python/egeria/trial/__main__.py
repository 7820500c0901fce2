"""This file lets `python -m egeria.trial` run the command."""

import sys

from egeria.trial.command import main

sys.exit(main())
