"""Egeria: layers that have stopped learning are frozen while a model trains."""

import importlib
from typing import Any

from egeria._library import __version__  # first: it refuses a torch that does not fit
from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.training.session import Session, attach

__all__ = ["Config", "EgeriaError", "Session", "__version__", "attach"]


def __getattr__(name: str) -> Any:
    """egeria.doctor(model), egeria.data and egeria.reinvest(), which not every training needs, are loaded when they are
    used."""
    if name == "reinvest":
        return importlib.import_module("egeria.doctor.reinvesting").reinvest
    if name in ("data", "doctor"):
        return importlib.import_module(f"egeria.{name}")
    raise AttributeError(f"module 'egeria' has no attribute {name!r}")
