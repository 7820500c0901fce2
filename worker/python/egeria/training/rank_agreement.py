"""The ranks of a job exchange values and fail alike, through a process group of Egeria's own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from egeria.errors import EgeriaError
from egeria.model.inputs import GraphError

_logger = logging.getLogger("egeria")
T = TypeVar("T")


def gather(group: dist.ProcessGroup | None, value: T) -> list[T]:
    """Every rank's value, by rank. A collective; without a group there is one rank."""
    if group is None:
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def attempt(group: dist.ProcessGroup | None, action: Callable[[], T]) -> T:
    """Does `action` on every rank, and fails on all of them if it fails on one. A collective.

    Raises:
      EgeriaError: [NO_LINK], or the error's own name where it was one of ours.
    """
    result: T | None = None
    failure: tuple[str, str] | None = None
    try:
        result = action()
    except EgeriaError as error:
        failure = error.name, str(error).removeprefix(f"[{error.name}] ")
    except GraphError as error:
        failure = "NO_LINK", str(error)
    except Exception as error:  # pylint: disable=broad-exception-caught  # the other ranks wait for this one
        _logger.debug("egeria: could not be linked", exc_info=True)
        failure = "NO_LINK", f"{type(error).__name__}: {error}"
    failures = [entry for entry in gather(group, failure) if entry is not None]
    if failures:
        raise EgeriaError(*failures[0])
    return result
