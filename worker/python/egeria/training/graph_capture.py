"""This file notices that the training is captured in a CUDA graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from egeria.model.pass_hooks import is_capturing
from egeria.tell_once import TellOnce


class GraphCapture:
    """Hooks of ours run while a pass or a step is captured, and not when it is replayed. Whatever they gave the device
    would be replayed, too, or end the capture. So they do nothing, and the training is not followed from there on.

    Attributes:
      seen: there has been one.
    """

    def __init__(self, tell: TellOnce):
        self.seen = False
        self._tell = tell

    def is_under_way(self) -> bool:
        if not is_capturing():
            return False
        self.seen = True
        self._tell(
            "[CUDA_GRAPH] a pass of the model or a step is captured in a CUDA graph, whose replays cannot be followed: "
            "nothing freezes or unfreezes from here on; capture layers one by one (torch.cuda.make_graphed_callables), "
            "or let torch.compile do it"
        )
        return True


def outside_captures(hook: Callable[..., None]) -> Callable[..., None]:
    """Makes a hook, which is a method of an object with a GraphCapture `capture`, do nothing during captures."""

    @functools.wraps(hook)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> None:
        if not self.capture.is_under_way():
            hook(self, *args, **kwargs)

    return guarded
