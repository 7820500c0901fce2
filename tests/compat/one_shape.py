"""Runs one script of the suite in one mode, and writes what happened into a file: see run.py, which starts it.

one_shape.py MODULE.FUNCTION MODE RESULT FACTS
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import pathlib
import random
import sys
import time
import traceback
from collections.abc import Iterable
from typing import Any

import numpy
import stand_ins
import torch
from run_script import keep_process_groups
from torch import nn

# Processes that a script spawns find here, in the environment, what they have to know of the run.
_VARIABLE = "COMPAT_RUN"

_sessions: list[Any] = []  # Egeria's, of this process
_told: list[str] = []  # warnings of Egeria's


class Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _told.append(record.getMessage().splitlines()[0])


def begin(run: dict[str, Any]) -> None:
    """Makes this process ready for the script."""
    torch.set_num_threads(1)
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    keep_process_groups()  # gloo may hang or abort where they are taken apart, with Egeria or without
    if run["mode"] in ("plain", "hand"):
        stand_ins.install(run["freezes"])
    else:
        _watch_sessions(run)
    spawn = torch.multiprocessing.spawn
    torch.multiprocessing.spawn = lambda function, *rest, **named: spawn(Spawned(function), *rest, **named)


def _watch_sessions(run: dict[str, Any]) -> None:
    """Keeps all sessions, and slows steps down until something is frozen: a controller decides once a second."""
    from egeria import Session

    logging.getLogger("egeria").addHandler(Listener(logging.WARNING))
    made, step = Session.__init__, Session.step
    steps: dict[int, int] = {}

    def init(session: Any, *rest: Any) -> None:
        made(session, *rest)
        _sessions.append(session)

    def paced_step(session: Any, loss: Any = None) -> None:
        step(session, loss)
        count = steps[id(session)] = steps.get(id(session), 0) + 1
        if run["mode"] == "freeze" and session.prefix == 0:
            time.sleep(min(0.4, 0.02 + 0.02 * max(0.0, count - 0.3 * run["steps"])))

    Session.__init__, Session.step = init, paced_step


class Spawned:
    """A function that a script starts in processes of its own. Each of them becomes ready first, and tells its
    result."""

    def __init__(self, function: Any):
        self.function = function

    def __call__(self, rank: int, *rest: Any) -> None:
        run = json.loads(os.environ[_VARIABLE])
        begin(run)
        finish(run, self.function(rank, *rest), rank)
        leave()


def digest(models: Any) -> str:
    """A hash of all weights and buffers, bit by bit."""
    result = hashlib.sha256()
    for model in models if isinstance(models, (list, tuple)) else [models]:
        for name, tensor in sorted(model.state_dict().items()):
            if isinstance(tensor, torch.Tensor):
                tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                result.update(name.encode())
                result.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return result.hexdigest()


def finish(run: dict[str, Any], models: Any, rank: int) -> None:
    """Ends all sessions, and writes the result of this rank."""
    weights = digest(models)
    for session in _sessions:
        session.close()
    write(run, rank, digest=weights, sessions=[_facts(session) for session in _sessions])


def write(run: dict[str, Any], rank: int, **result: Any) -> None:
    result["told"] = _told
    pathlib.Path(f"{run['result']}.{rank}").write_text(json.dumps(result))


def _facts(session: Any) -> dict[str, Any]:
    return {
        "steps": session.summary()["steps"],
        "modules": len(session.modules),
        "switches": [(switch.step, switch.frozen_prefix) for switch in session.switches],
        "freezes": [
            (switch.step, *_frozen(session, switch.frozen_prefix)) for switch in session.switches if not switch.unfreeze
        ],
    }


def _frozen(session: Any, prefix: int) -> tuple[list[str], list[str]]:
    """Names of parameters and of submodules that are in the first layer modules and in none of the others."""
    frozen, active = session.modules[:prefix], session.modules[prefix:]
    kept = {id(parameter) for module in active for _, parameter in module.parameters()}
    names = [name for module in frozen for name, value in module.parameters() if id(value) not in kept]
    busy = _inside(unit for module in active for unit in module.units)
    layers = [
        f"{unit_name}.{name}".rstrip(".")
        for module in frozen
        for unit_name, unit in zip(module.unit_names, module.units)
        for name, inner in unit.named_modules()
        if inner not in busy
    ]
    return names, layers


def _inside(units: Iterable[nn.Module]) -> set[nn.Module]:
    return {inner for unit in units for inner in unit.modules()}


def main() -> None:
    name, mode, result, facts = sys.argv[1:]
    run = {"mode": mode, "result": result, **json.loads(facts)}
    os.environ[_VARIABLE] = json.dumps(run)
    module, function = name.split(".")
    begin(run)
    script = getattr(__import__(f"shapes.{module}", fromlist=[function]), function)
    rank = int(os.environ.get("RANK", 0))
    try:
        models = script()
    except Exception as error:
        refused = getattr(error, "name", None) if type(error).__name__ == "EgeriaError" else None
        write(run, rank, error=f"{type(error).__name__}: {error}", refused=refused)
        traceback.print_exc()
    else:
        if models is not None:
            finish(run, models, rank)
    leave()


def leave() -> None:
    """Ends this process as usual, but for taking the interpreter apart."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
