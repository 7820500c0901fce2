"""Egeria freezes layers that have stopped learning while a model trains.

These are the package's folders. Each imports only from those above it; tests/tidy/test_folder_graph.py holds the order.

    model         layer modules, calls of a model, its modes, hooks and learning rates
    freeze        freezing and unfreezing, on all ranks alike
    reference     graphs for the controller's reference model, and readings of plasticity
    gradients     readings of gradients; imports nothing from `reference`
    data          ids of the samples in a batch
    cache         skipping the forward pass of frozen layers
    frozen_forward  frozen layers in inference form
    training      attach() and the session
    cached_calls  cached(): calls of networks that nothing trains
    doctor        reports on a model before it trains
    integrations  callbacks for training frameworks
    monitor       a controller's jobs in a terminal, a job's history in TensorBoard; imports nothing of the others
"""

import importlib
from typing import Any

from egeria._library import __version__  # first: it refuses a torch that does not fit
from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.training.session import Session, attach

__all__ = ["Config", "EgeriaError", "Session", "__version__", "attach"]


def __getattr__(name: str) -> Any:
    """egeria.doctor(model), egeria.data, egeria.cached() and egeria.reinvest(), which not every training needs, are
    loaded when they are used."""
    if name == "reinvest":
        return importlib.import_module("egeria.doctor.reinvesting").reinvest
    if name in ("cached", "uncached", "cache_summary"):
        return getattr(importlib.import_module("egeria.cached_calls.cached"), name)
    if name in ("data", "doctor"):
        return importlib.import_module(f"egeria.{name}")
    raise AttributeError(f"module 'egeria' has no attribute {name!r}")
