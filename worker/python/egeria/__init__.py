"""Egeria: layers that have stopped learning are frozen while a model trains."""

from egeria.config import Config
from egeria.errors import EgeriaError

__all__ = ["Config", "EgeriaError"]
