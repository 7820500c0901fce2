"""Refused says why a frozen prefix is not skipped."""


class Refused(Exception):
    """Says why a frozen prefix is computed as usual.

    Attributes:
      name: stable, in capitals; docs/python.md lists the names.
    """

    def __init__(self, name: str, text: str):
        super().__init__(f"[{name}] {text}")
        self.name = name
