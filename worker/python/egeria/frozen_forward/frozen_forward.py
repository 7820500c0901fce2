"""A FrozenForward lets frozen layers run in inference form where the script calls them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn

from egeria.cache.forward_patches import ForwardPatch, ForwardPatches
from egeria.cache.refused import Refused
from egeria.freeze.replicas import is_fully_sharded
from egeria.frozen_forward.frozen_part import FrozenPart
from egeria.frozen_forward.passes import Passes
from egeria.model.isolation import has_compiled
from egeria.model.plain_copies import copies_may_differ, keep_copies_plain
from egeria.model.shadow import Shadow
from egeria.model.wrappers import wrappers_of
from egeria.tell_once import TellOnce

_MOST_PARTS = 512
# After so many steps the modules of a part that nobody has called as a whole become parts.
_LOOKS = range(2, 8)
# The cache waits so many steps at most until it is known which parts have a form.
_SETTLED_AFTER = 64


class FrozenForward:
    """Follows which submodules are frozen, and replaces their forward meanwhile.

    A part is computed as it is until its form is there; under autocast; where a gradient is wanted; and in passes of
    Egeria's own. Evaluation by the script uses forms as training does. Passes that the cache of activations looks at
    use the forms that are there, and make none; it begins once it is settled which that are (egeria.cache.other_forms).

    Owned by the training thread. Copies and pickles of the model have nothing of it.
    """

    def __init__(
        self,
        model: nn.Module,
        wanted: str,
        is_busy: Callable[[], bool],
        spend: Callable[[], contextlib.AbstractContextManager[None]],
        tell: TellOnce,
    ):
        """
        Args:
          model: unwrapped.
          wanted: see Config.frozen_forward.
          is_busy: whether the cache takes part in the pass under way.
          spend: a context whose time is Egeria's own.
        """
        self._model = model
        self._passes = Passes(wanted, is_busy, spend)
        self._tell = tell
        self._units: list[nn.Module] = []
        self._parts: dict[nn.Module, FrozenPart] = {}
        self._patches: dict[nn.Module, ForwardPatch] = {}
        self._names: dict[nn.Module, str] = {}
        self._reason: Refused | None = None
        self._steps = 0  # since something else is frozen
        self._ran: str | None = None  # the form that layers ran in last

    def follow(self, units: Sequence[nn.Module]) -> None:
        """Between two steps: these submodules, none inside another, are what is frozen."""
        units = list(units)
        if units == self._units:
            return
        self._release()
        self._units = units
        self._steps = 0
        self._passes.difference = None
        self._passes.is_idle = False
        self._reason = self._refused() if units else None
        if self._reason is not None:
            self._tell.note(f"frozen layers run as they are, not {self._passes.wanted}", self._reason)
        elif units:
            self._names = {module: name for name, module in self._model.named_modules()}
            self._replace_all()

    def settled(self) -> bool:
        """See Forms."""
        return self._reason is not None or not self._units or self._passes.is_idle or self._steps >= _SETTLED_AFTER

    def any(self) -> bool:
        """See Forms."""
        return self._formed > 0

    def join(self, live: Collection[nn.Module]) -> None:
        """See Forms."""
        self._passes.join(live)

    def leave(self) -> None:
        """See Forms."""
        self._passes.join(None)

    def put_into(self, patches: ForwardPatches, shadow: Shadow, live: Collection[nn.Module]) -> None:
        """See Forms."""
        self._passes.join(live)
        for part in self._parts.values():
            twin = shadow.of(part.module)
            patches.replace(twin, _joined(part, twin))

    def used(self) -> bytes:
        """See Forms."""
        return self._passes.used()

    def end_step(self) -> None:
        """A step has ended."""
        if self._patches and self._model._compiled_call_impl is not None:
            units = self._units
            self.close()
            self.follow(units)
        self._steps += 1
        if self._steps in _LOOKS:
            parts = list(self._parts.values())
            inside = {inner for part in parts if part.was_called for inner in part.frozen.modules()}
            for part in parts:
                if not part.was_called and part.module not in inside:
                    self._divide(part)
        if self._passes.end_step():
            difference, size = self._passes.difference
            types = {form.dtype for part in self._parts.values() for form in part.forms.values()}
            self._ran = "bf16" if torch.bfloat16 in types else "fused"
            self._tell.note(
                f"frozen layers run {self._ran} in {self._formed} parts: the largest difference on a real "
                f"batch is {difference:.1g} of {size:.2g}"
            )

    def close(self) -> None:
        """Leaves the model as it was."""
        self._release()
        self._units = []

    def summary(self) -> dict[str, Any]:
        """Returns "form" that layers ran in, or that was asked for as long as none has run; "parts" that have one now;
        "calls" computed so; "difference" (the largest of an element on a real batch) "of" (the largest element), both
        None where they are not known; "build_seconds"; and "reasons" why parts have none, or none in bf16."""
        reasons = [reason for part in self._parts.values() for reason in part.reasons]
        difference, size = self._passes.difference or (None, None)
        return {
            "form": self._ran or self._passes.wanted,
            "parts": self._formed,
            "calls": self._passes.calls,
            "difference": difference,
            "of": size,
            "build_seconds": self._passes.build_seconds,
            "reasons": sorted(set(reasons)) if self._reason is None else [str(self._reason)],
        }

    @property
    def calls(self) -> int:
        """The number of parts that were computed in inference form, over all passes."""
        return self._passes.calls

    def _refused(self) -> Refused | None:
        """Why nothing of this model can have a form."""
        dynamo = sys.modules.get("torch._dynamo")
        if any(is_fully_sharded(module) for module in self._model.modules()):
            return Refused("SHARDED", "the model is sharded")
        wrappers = () if dynamo is None else (dynamo.OptimizedModule,)
        around = [module for module in self._model.modules() if not set(self._units).isdisjoint(module.modules())]
        if any(map(has_compiled, self._units)) or any(
            module._compiled_call_impl is not None or isinstance(module, wrappers)
            for module in (*around, *wrappers_of(self._model))
        ):
            return Refused("COMPILED", "the model is compiled: that is the compiler's work")
        if any(not tensor.is_cpu for unit in self._units for tensor in (*unit.parameters(), *unit.buffers())):
            return Refused("NOT_ON_CPU", "they are on an accelerator, and forms are for CPUs")
        return None

    def _replace_all(self) -> None:
        """The first modules of a Sequential that are all frozen are one part; where somebody calls them one by one,
        each is."""
        frozen = set(self._units)
        for module, name in list(self._names.items()):
            if type(module) is nn.Sequential and module not in frozen:
                children = list(module.children())
                trains = [child not in frozen and next(child.parameters(), None) is not None for child in children]
                count = trains.index(True) if True in trains else len(children)
                if count > 1 and not frozen.isdisjoint(children[:count]):
                    self._replace(FrozenPart(self._passes, self._divide, name, module, count))
        for unit in self._units:
            self._add(unit)

    def _add(self, module: nn.Module) -> None:
        if type(module) in (nn.ModuleList, nn.ModuleDict):
            for child in module.children():
                self._add(child)
        elif next(module.parameters(), None) is not None and module not in self._parts:
            self._replace(FrozenPart(self._passes, self._divide, self._names.get(module, ""), module))

    def _divide(self, part: FrozenPart) -> None:
        """A part as a whole has no form, and its modules may have one each."""
        for child in part.frozen.children():
            self._add(child)

    def _replace(self, part: FrozenPart) -> None:
        if len(self._parts) < _MOST_PARTS and "forward" not in part.module.__dict__:
            self._parts[part.module] = part
            keep_copies_plain(part.module)
            self._patches[part.module] = ForwardPatch(part.module, part)

    @property
    def _formed(self) -> int:
        return sum(bool(part.forms) for part in self._parts.values())

    def _release(self) -> None:
        for module, patch in self._patches.items():
            patch.release()
            copies_may_differ(module)
        self._patches.clear()
        self._parts.clear()


def _joined(part: FrozenPart, twin: nn.Module) -> Callable[..., Any]:
    """Makes a forward function for a part's copy in a shadow."""
    children = tuple(twin.children()) if part.is_sequence else None
    return lambda original, *args, **kwargs: part.run_joined(original, children, args, kwargs)
