"""This is the command `egeria doctor model.py:build`, which `python -m egeria.doctor` runs too."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import pathlib
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from egeria.doctor.examination import LossFunction, examine
from egeria.errors import EgeriaError

_RESULTS = "the model, or (model, batch), and behind these loss_fn, optimizer and loader"


def load_build(target: str) -> Callable[[], Any]:
    """The function that "model.py:build" or "package.module:build" names.

    Raises:
      EgeriaError: [BAD_BUILD] there is none, or its file fails.
    """
    source, _, name = target.rpartition(":")
    if not source or not name.isidentifier():
        raise EgeriaError(
            "BAD_BUILD", f"'{target}' does not name a function; give model.py:build or package.module:build"
        )
    try:
        module = _load_file(pathlib.Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except Exception as error:  # whatever the file's code raises
        raise EgeriaError(
            "BAD_BUILD",
            f"{source} cannot be loaded: {type(error).__name__}: {error}; it is run as "
            "an import, so keep the training itself under if __name__ == '__main__'",
        ) from error
    build = getattr(module, name, None)
    if not callable(build):
        raise EgeriaError(
            "BAD_BUILD", f"{source} has no function '{name}'; define {name}() so that it returns {_RESULTS}"
        )
    return build


def _load_file(path: pathlib.Path) -> types.ModuleType:
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    # As for a script: its neighbours can be imported, and it by its own name (classes look their module up).
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def run_build(target: str) -> tuple[nn.Module, Any, LossFunction | None, Any, Any]:
    """Calls the function that `target` names and takes its result apart.

    Raises:
      EgeriaError: [BAD_BUILD].
    """
    build = load_build(target)
    try:
        result = build()
    except Exception as error:  # whatever the user's code raises
        raise EgeriaError(
            "BAD_BUILD", f"{target} raised {type(error).__name__}: {error}; it is called without arguments"
        ) from error
    parts = list(result) if isinstance(result, tuple) else [result]
    parts += [None] * (5 - len(parts))
    fits = (
        len(parts) == 5
        and isinstance(parts[0], nn.Module)
        and (parts[2] is None or callable(parts[2]))
        and (parts[3] is None or isinstance(parts[3], (Optimizer, Sequence)))
        and (parts[4] is None or isinstance(parts[4], Iterable))
    )
    if not fits:
        kinds = ", ".join(type(part).__name__ for part in parts if part is not None)
        raise EgeriaError(
            "BAD_BUILD", f"{target} returned ({kinds}); it must return {_RESULTS}, with None for what is left out"
        )
    return tuple(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit code 0; 1 where attach() would refuse the model; 2 for input that cannot be used."""
    parser = argparse.ArgumentParser(prog="egeria doctor", description="Say what Egeria would make of a model.")
    parser.add_argument(
        "build",
        help="model.py:build or package.module:build, a function without arguments that "
        "returns the model, or (model, example batch[, loss_fn(model, batch)[, optimizer[, loader]]])",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--modules",
        nargs="+",
        metavar="PATTERN",
        help="layer modules, by name or regular "
        "expression, in forward order; one pattern with a group: its value tells them apart",
    )
    parser.add_argument("--rounds", type=int, default=7, help="number of measurements of each time (default 7)")
    parser.add_argument("--samples", type=int, default=32, help="number of samples in a reading (default 32)")
    parsed = parser.parse_args(arguments)
    if parsed.rounds < 1 or parsed.samples < 2:
        parser.error("--rounds must be at least 1, --samples at least 2")
    modules = parsed.modules[0] if parsed.modules and len(parsed.modules) == 1 else parsed.modules
    try:
        model, batch, loss_fn, optimizer, loader = run_build(parsed.build)
        report = examine(
            model, batch, loss_fn, optimizer, loader, modules=modules, rounds=parsed.rounds, samples=parsed.samples
        )
    except EgeriaError as error:
        print(f"egeria doctor: {error}", file=sys.stderr)
        return 2
    print(report.to_json() if parsed.json else report)
    return 1 if report.refusal else 0
