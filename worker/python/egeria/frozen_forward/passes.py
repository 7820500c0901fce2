"""Passes says what a frozen part may do in the forward pass under way, and what all parts have come to."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from egeria import _native
from egeria.frozen_forward.inference_form import InferenceForm
from egeria.model.isolation import in_own_pass

# Making forms takes at most so many seconds in all, and never more than the frozen layers' exact passes have taken.
_MOST_SECONDS = 60.0
# After so many steps in which parts have forms their difference is measured, though other parts have none.
_MEASURED_AFTER = 50


class Passes:
    """All frozen parts of a model have one in common. Owned by the training thread.

    Attributes:
      wanted: see Config.frozen_forward.
      calls: of parts that were computed in inference form.
      measures: parts are computed both ways in this step.
      live: in a pass that the cache takes part in, the submodules whose outputs it looks at; None in others.
      build_seconds: making forms has taken so much.
      is_idle: no part that may get a form was without one in the last step in which one might have got it.
      difference: of a form's result on a real batch, and its largest element; None: not known.
    """

    def __init__(
        self, wanted: str, is_busy: Callable[[], bool], spend: Callable[[], contextlib.AbstractContextManager[None]]
    ):
        """See FrozenForward."""
        self.wanted = wanted
        self.calls = 0
        self.measures = False
        self.live: frozenset[nn.Module] | None = None
        self.build_seconds = 0.0
        self.difference: tuple[float, float] | None = None
        self._is_busy = is_busy
        self._spend = spend
        self._thread = threading.get_ident()
        self._depth = 0  # parts that are being computed as they are, one inside another
        self.is_idle = False
        self._was_asked = False  # whether a part may act, in this step
        self._exact_seconds = 0.0
        self._exact_calls = 0  # in this step, of parts that may get a form
        self._formed_steps = 0  # steps with parts in form
        self._calls_before = 0  # `calls` after the last step
        self._used: list[str] = []  # forms, since join()
        self._compared: dict[int, tuple[Tensor, Tensor]] = {}  # by id: an exact result, and that of the forms

    def may_act(self) -> bool:
        """Whether a part that is called now may do anything but what it does by itself."""
        may_act = self.is_plain() and not in_own_pass() and not self._is_busy()
        self._was_asked |= may_act
        return may_act

    def is_plain(self) -> bool:
        """Whether a part that is called now may be computed in a form, as far as the pass is concerned."""
        return (
            self._depth == 0
            and threading.get_ident() == self._thread
            and not torch.compiler.is_compiling()
            and not torch.jit.is_tracing()
            and not torch.is_autocast_enabled("cpu")
            and not nn.modules.module._has_any_global_hook()
        )

    def join(self, live: Collection[nn.Module] | None) -> None:
        """Forms are used in the pass that begins, in the same calls each time; None: the pass has ended."""
        self.live = None if live is None else frozenset(live)
        if live is not None:
            self._used = []

    def note_used(self, name: str, form: InferenceForm) -> None:
        self.calls += 1
        self._used.append(f"{name} {form.words}")

    def used(self) -> bytes:
        """See egeria.cache.other_forms.Forms."""
        return _native.fingerprint("\n".join(self._used), []) if self._used else b""

    def exactly(self, compute: Callable[..., Any], *args: Any) -> Any:
        """Computes a part as it is, with all that is inside."""
        self._depth += 1
        try:
            return compute(*args)
        finally:
            self._depth -= 1

    def note_exact(self, seconds: float) -> None:
        """A part that may get a form was computed as it is."""
        self._exact_seconds += seconds
        self._exact_calls += 1

    def may_build(self) -> bool:
        """Whether there is time to make a form now."""
        affordable = min(_MOST_SECONDS, self._exact_seconds)
        return self.build_seconds < affordable and not torch.is_inference_mode_enabled()

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """A form is made meanwhile."""
        begin = time.perf_counter()
        try:
            with self._spend():
                yield
        finally:
            self.build_seconds += time.perf_counter() - begin

    def compare(self, form: InferenceForm, tensors: Sequence[Tensor], exact: Any) -> None:
        """Compares a part's result with its form's, which gets what the forms before it have computed."""
        given = [self._compared.get(id(tensor), (tensor, tensor))[1] for tensor in tensors]
        found = form.compute(given)
        for one, other in zip(found, (leaf for leaf in pytree.tree_leaves(exact) if isinstance(leaf, Tensor))):
            self._compared[id(other)] = other, one
            if other.is_floating_point() and other.numel() > 0:
                largest = other.abs().nan_to_num().max().item()
                self.difference = (one - other).abs().nan_to_num().max().item(), largest

    def end_step(self) -> bool:
        """A step has ended. Returns whether the difference has become known in it."""
        was_measured = self.measures
        self._formed_steps += self.calls > self._calls_before
        all_formed = self._exact_calls == 0 and self.calls > self._calls_before
        is_due = all_formed or self._formed_steps >= _MEASURED_AFTER
        self.measures = is_due and not was_measured and self.difference is None
        if self._was_asked:
            self.is_idle = self._exact_calls == 0 and not self.measures
        self._was_asked = False
        self._compared.clear()
        self._exact_calls, self._calls_before = 0, self.calls
        return was_measured and self.difference is not None
