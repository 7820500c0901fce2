"""Refused says why a frozen prefix is not skipped."""

from __future__ import annotations


class Refused(Exception):
    """Says why a frozen prefix is computed as usual.

    Attributes:
      name: stable, in capitals; docs/reference/refusals.md lists the names.
      at: the name of the submodule that is the reason; None where it is not a single one.
    """

    def __init__(self, name: str, text: str, at: str | None = None):
        super().__init__(f"[{name}] {text}")
        self.name = name
        self.at = at
