"""These are training scripts as strangers write them, each with the three lines that the README asks for.

Each is whole, as a stranger's is: what several of them have in common stands in each of them.

A script is a function that imports egeria itself and returns what it has trained. Its docstring is its row of the table
in docs/reference/compatibility.md, and the docstring of its file is the heading above it.
"""

from collections.abc import Callable
from typing import Any


def shape(**facts: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Says what the suite has to know of a script; run.py reads it from the source.

    steps: optimizer steps that the script makes.
    counts: what the sessions count, one by one, where that is not `steps` for all of them.
    prefix: layer modules that are to be frozen; 2 if it is not given.
    freezes: False where nothing is to freeze, as a warning says.
    refused: the name of the refusal that attach() answers with, where that is intended.
    tells: names of the warnings that are intended.
    ranks: processes that run the script; 1 if it is not given.
    launcher: how they are started, where that is not by the suite itself: "torchrun", "accelerate" or "spawn".
    ci: whether continuous integration runs it; True if it is not given.
    """
    return lambda function: function
