"""Writes a job's history for TensorBoard. `egeria export JOB --tensorboard DIR` runs it, with the export as input."""

from __future__ import annotations

import json
import math
import pathlib
import sys
from collections.abc import Iterable

from egeria.monitor.scalars import scalars_of


def write(lines: Iterable[str], folder: pathlib.Path) -> int:
    """Writes the lines of an export into event files in `folder`; returns the number of values."""
    from torch.utils.tensorboard import SummaryWriter

    count = 0
    with SummaryWriter(str(folder)) as writer:
        for entry in scalars_of(map(json.loads, lines)):
            if isinstance(entry.value, str):
                writer.add_text(entry.tag, entry.value, entry.step, entry.time)
            elif math.isfinite(entry.value):
                writer.add_scalar(entry.tag, entry.value, entry.step, entry.time)
            count += 1
    return count


def main() -> int:
    """The command line: the folder. Exit code 0; 2 where it cannot be written."""
    folder = pathlib.Path(sys.argv[1])
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        print("egeria export: it needs the package tensorboard; run pip install 'egeria[tensorboard]'", file=sys.stderr)
        return 2
    if any(folder.glob("events.out.tfevents.*")):
        print(f"egeria export: {folder} has event files already; give a folder for each export", file=sys.stderr)
        return 2
    try:
        count = write(sys.stdin, folder)
    except OSError as error:
        print(f"egeria export: cannot write to {folder}: {error}", file=sys.stderr)
        return 2
    print(f"egeria export: wrote {count} values to {folder}; show them by: tensorboard --logdir {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
