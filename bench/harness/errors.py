"""Errors of the harness, for its user."""

from __future__ import annotations


class BenchError(Exception):
    """Something that the user can put right: "[NAME] what; what to do"."""

    def __init__(self, name: str, text: str):
        super().__init__(f"[{name}] {text}")
        self.name = name
