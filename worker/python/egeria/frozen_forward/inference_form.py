"""An inference form computes what a frozen part computes in calls of one shape, faster, and rounds otherwise."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from egeria.cache.prefix_cut import shadow_of
from egeria.cache.refused import Refused
from egeria.frozen_forward.fusing import fuse
from egeria.frozen_forward.tracing import Trace, trace
from egeria.model.shadow import Shadow

# The element types to try, the fastest first, by Config.frozen_forward.
_TYPES = {"fused": (torch.float32,), "bf16": (torch.bfloat16, torch.float32)}
# Results may differ from the exact ones by this part of their norm.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}
# A form has to take at most this part of the exact pass's time.
_WORTH = 0.95
_ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class InferenceForm:
    """Owned by the training thread.

    Attributes:
      dtype: that it computes in.
      share: the time that it takes, as a part of the exact pass's; 0..1.
      passed_over: why it is no form of a type that was asked for before this one.
    """

    dtype: torch.dtype
    share: float
    _trace: Trace
    passed_over: Refused | None = None

    @functools.cached_property
    def words(self) -> str:
        """Tells this form from all others of the same weights."""
        return f"{self.dtype} {self._trace.module.code}"

    def run(self, tensors: Sequence[Tensor]) -> Any:
        """Computes the part's result from the tensors among its arguments."""
        return self._trace.result(self.compute(tensors))

    def compute(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of that result."""
        with torch.no_grad():
            return list(self._trace.module(*tensors))

    def fits(self, module: nn.Module, leaves: Sequence[Any], structure: Any) -> bool:
        """Whether the form gives the right result in this call too, which has another number of samples."""
        tensors = [leaf.detach().clone() for leaf in leaves if isinstance(leaf, Tensor)]
        try:
            exact = trace(shadow_of(module), leaves, structure)
            return _differs(self.compute(tensors), exact.outputs, _TOLERANCE[self.dtype]) is None
        except Exception:  # pylint: disable=broad-exception-caught  # a shape that is part of the graph
            return False


def make(module: nn.Module, leaves: Sequence[Any], structure: Any, wanted: str) -> InferenceForm:
    """Finds the fastest form of a frozen part in a call with these arguments, by measured time.

    Args:
      leaves: of the arguments (args, kwargs), which have this `structure` for pytree.
      wanted: "fused" or "bf16".

    Raises:
      Refused: [NOTHING_TO_FUSE], [NOT_FASTER], [OUTPUT_DIFFERS]; and those of trace().
    """
    nothing_to_fuse = Refused("NOTHING_TO_FUSE", "its operators are as fast as they can be in float32")
    if wanted == "fused" and not any(isinstance(inner, nn.modules.conv._ConvNd) for inner in module.modules()):
        raise nothing_to_fuse
    reason: Refused | None = None
    shadow = shadow_of(module)
    tensors = [leaf.detach().clone() for leaf in leaves if isinstance(leaf, Tensor)]
    for dtype in _TYPES[wanted]:
        traced = trace(shadow, leaves, structure)
        exact, original = traced.outputs, _original(shadow, tensors, leaves, structure)
        try:
            if not fuse(traced, dtype) and dtype == torch.float32:
                continue
            form = InferenceForm(dtype, 1.0, traced)
            if (difference := _differs(form.compute(tensors), exact, _TOLERANCE[dtype])) is not None:
                reason = Refused("OUTPUT_DIFFERS", f"in {_words(dtype)} {difference}")
                continue
            with shadow.running(guarded=False), torch.no_grad():
                share = _share(lambda form=form: form.compute(tensors), original)
        except Exception as error:  # pylint: disable=broad-exception-caught  # a kernel that does not take it
            reason = Refused("RAISES", f"in {_words(dtype)}: {type(error).__name__}: {str(error)[:200]}")
            continue
        if share <= _WORTH:
            return dataclasses.replace(form, share=share, passed_over=reason)
        reason = Refused("NOT_FASTER", f"in {_words(dtype)} it takes {share:.2f} of the time")
    raise reason or nothing_to_fuse


def _original(shadow: Shadow, tensors: Sequence[Tensor], leaves: Sequence[Any], structure: Any) -> Callable[[], Any]:
    ahead = iter(tensors)
    given = [next(ahead) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    args, kwargs = torch.utils._pytree.tree_unflatten(given, structure)
    return lambda: shadow.model(*args, **kwargs)


def _share(form: Callable[[], Any], exact: Callable[[], Any]) -> float:
    """The form's time by the exact pass's, each the shortest of a few in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS):
        for function, found in zip((form, exact), times):
            begin = time.perf_counter()
            function()
            found.append(time.perf_counter() - begin)
    return min(times[0]) / min(times[1])


def _differs(found: Sequence[Tensor], exact: Sequence[Tensor], tolerance: float) -> str | None:
    """Says in words how results differ by more than roundings; None: they do not."""
    for one, other in zip(found, exact, strict=True):
        if (one.shape, one.dtype, one.stride()) != (other.shape, other.dtype, other.stride()):
            return "the result has another shape or lies otherwise in memory"
        if not other.is_floating_point():
            if not torch.equal(one, other):
                return "a whole number of the result is another"
            continue
        norm = torch.linalg.vector_norm(other.float().nan_to_num())
        difference = torch.linalg.vector_norm((one.float() - other.float()).nan_to_num())
        if not torch.equal(one.isfinite(), other.isfinite()) or bool(difference > tolerance * norm + 1e-6):
            return f"the result differs by {difference / norm:.1g} of its norm"
    return None


def _words(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
