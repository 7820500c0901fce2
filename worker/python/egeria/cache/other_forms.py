"""Frozen submodules may be computed in another form than their own, which rounds otherwise."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from torch import nn

from egeria.cache.forward_patches import ForwardPatches
from egeria.model.shadow import Shadow


class Forms(Protocol):
    """Knows which submodules have another form in which calls. Owned by the training thread.

    In passes of the training that the cache looks at, and in those of shadows that are compared with them, a form is
    used or not by what the pass is, never by the time that it takes.
    """

    def settled(self) -> bool:
        """Returns whether it is known which submodules have a form."""

    def any(self) -> bool:
        """Returns whether one of them has."""

    def join(self, live: Collection[nn.Module]) -> None:
        """The training's pass under way uses forms where the outputs of `live` can be seen, or replaced, all the same;
        until leave()."""

    def leave(self) -> None:
        """The pass that join() was about has ended. Idempotent."""

    def put_into(self, patches: ForwardPatches, shadow: Shadow, live: Collection[nn.Module]) -> None:
        """Lets passes of a shadow use forms in the same way, as long as the patches are there."""

    def used(self) -> bytes:
        """Returns 16 bytes that tell which forms were used, and where, since join() or put_into(); none where none
        were."""


class _NoForms:
    """All is computed as it is."""

    def settled(self) -> bool:
        return True

    def any(self) -> bool:
        return False

    def join(self, live: Collection[nn.Module]) -> None:
        pass

    def leave(self) -> None:
        pass

    def put_into(self, patches: ForwardPatches, shadow: Shadow, live: Collection[nn.Module]) -> None:
        pass

    def used(self) -> bytes:
        return b""


AS_THEY_ARE = _NoForms()
