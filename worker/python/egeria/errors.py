"""EgeriaError is the package's exception."""

from __future__ import annotations


class EgeriaError(RuntimeError):
    """Something that the user must change, said before training starts.

    Attributes:
      name: stable, in capitals, such as "BAD_PARTITION"; the text begins with it in brackets.
    """

    def __init__(self, name: str, message: str):
        super().__init__(f"[{name}] {message}")
        self.name = name

    def __reduce__(self) -> tuple[type[EgeriaError], tuple[str, str]]:
        return type(self), (self.name, str(self).removeprefix(f"[{self.name}] "))
