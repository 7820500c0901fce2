"""Egeria: layers that have stopped learning are frozen while a model trains."""

from egeria._library import __version__  # first: it refuses a torch that does not fit
from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.session import Session, attach

__all__ = ["Config", "EgeriaError", "Session", "__version__", "attach"]
