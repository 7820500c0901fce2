"""Proves on one real batch that a frozen prefix may be skipped."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from egeria.cache.cut_finding import DRAWS, run_as_usual
from egeria.cache.forward_patches import ForwardPatches
from egeria.cache.model_call import Call
from egeria.cache.other_forms import AS_THEY_ARE, Forms
from egeria.cache.pass_outcome import Pass, compare, same
from egeria.cache.prefix_cut import Cut, shadow_of, side_pass
from egeria.cache.refused import Refused
from egeria.cache.row_independence import Alone, Compute, RowIndependence
from egeria.cache.skip_checks import check_skippable
from egeria.model.modules import LayerModule
from egeria.model.shadow import Shadow

# A form's result may differ from the exact one by this part of its norm, which is what bfloat16 may do.
_CLOSE = 0.1


@dataclasses.dataclass
class Proof:
    """Holds what was shown on one real batch.

    Attributes:
      crossing: what crosses the cut in it, as a pass on the side computes it.
      compute: computes it for other calls, by a shadow.
      call: the batch.
      ignores: whether all else stays the same with these tensors in the place of `crossing`; None: nobody knows.
    """

    cut: Cut
    crossing: list[Tensor]
    compute: Compute
    call: Call
    ignores: Callable[[Sequence[Tensor]], bool] | None = None

    @functools.cached_property
    def rows(self) -> RowIndependence:
        """Samples come out the same in other batches of this size. It is shown when it is asked for first.

        Raises:
          Refused: [BATCH_DEPENDENT] they do not.
        """
        # Were the shadow not the same after each of these passes, the rows would show it.
        independence = RowIndependence(self.compute, self.call, self.crossing, self.cut.decides)
        if not independence.holds:
            raise Refused(
                "BATCH_DEPENDENT", "the result for a sample depends on its place in the batch or on the other samples"
            )
        return independence


def prove(
    model: nn.Module,
    frozen: Sequence[LayerModule],
    call: Call,
    forms: Forms = AS_THEY_ARE,
    rows: bool = True,
    unread: frozenset[int] | None = None,
) -> Proof:
    """Finds what crosses the cut behind `frozen` in calls like this one, and proves that nothing else does.

    1. A pass as usual, followed operator by operator: which outputs of frozen layers do results, buffers,
       attributes or decisions come from? Those are live. And which arguments go into what crosses the cut? Where some
       do not (labels), one more pass of the frozen layers shows that the same crosses it without their content.
    2. A pass in which all other frozen layers return NaN and the live ones what the first pass has computed, put
       together from single samples: results, gradients of all parameters, buffers and random states are the same to
       the bit.
    3. The frozen layers alone, mostly twice, with samples in other places, and in the company of samples with noise:
       each sample's result is the same to the bit, so that results of different batches may be mixed.

    Where submodules have other forms in such calls, what crosses the cut is what these compute, which is close to what
    the submodules do, and 3. is shown of it. Where it is not so, they are computed as they are.

    So the frozen layers are computed three times, or four. All of it happens on shadows (egeria.model.shadow), so that
    nothing of the model runs. That the training's own pass computes the same is for the caller to see.

    Args:
      model: unwrapped, in training mode, with `frozen` frozen.
      rows: False: the caller sees to 3.
      unread: what another shape's proof has shown to be Cut.unread, so that no other pass is needed; None: unknown.

    Raises:
      Refused: it is not so. Whatever the model raises is [RAISES]. Names that are raised here: OUTPUT_DIFFERS,
        GRADIENT_DIFFERS, RANDOM, BATCH_DEPENDENT; all others from check_skippable(), shadow_of(), side_pass(),
        run_as_usual().
    """
    check_skippable(model, frozen)
    try:
        proof = _prove(model, frozen, call, forms, unread)
        if rows:
            proof.rows  # noqa: B018  # it may raise
        return proof
    except Refused:
        raise
    except Exception as error:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
        raise Refused("RAISES", f"{type(error).__name__}: {str(error)[:300]}") from error


def _prove(
    model: nn.Module, frozen: Sequence[LayerModule], call: Call, forms: Forms, unread: frozenset[int] | None
) -> Proof:
    usual = run_as_usual(model, frozen, call)
    cut = usual.cut
    crossing = _compute_live(model, cut, call) if usual.crossing is None else usual.crossing
    rows = list(zip(*(tensor.unbind(0) for tensor in crossing)))
    shadow, skipping = _run_skipping(model, cut, call, rows)
    compare(usual.left, skipping, model)
    if unread is not None:
        cut.unread &= unread
    elif cut.unread and not _computes_without(model, cut, call, crossing):
        cut.unread = frozenset()
    if (proof := _prove_formed(cut, shadow, call, crossing, forms)) is not None:
        return proof

    def ignores(tensors: Sequence[Tensor]) -> bool:
        try:
            _, left = _run_skipping(model, cut, call, list(zip(*(tensor.unbind(0) for tensor in tensors))))
            compare(usual.left, left, model)
        except Refused:
            return False
        return True

    return Proof(cut, crossing, functools.partial(cut.compute, shadow), call, ignores)


def _prove_formed(cut: Cut, shadow: Shadow, call: Call, exact: Sequence[Tensor], forms: Forms) -> Proof | None:
    """Proves the third part with forms; None where none is used, or it is not so. The cut is one with forms then."""
    if not forms.any():
        return None
    formed = dataclasses.replace(cut, forms=forms)
    try:
        crossing = formed.compute(shadow, call)
        formed.form = forms.used()
        if not formed.form or not all(map(_is_close, crossing, exact)):
            return None
        proof = Proof(formed, crossing, functools.partial(formed.compute, shadow), call)
        proof.rows  # noqa: B018  # it may raise
    except Exception:  # pylint: disable=broad-exception-caught  # a form that does not take such a call
        return None
    return proof


def _is_close(one: Tensor, other: Tensor) -> bool:
    if (one.shape, one.dtype, one.stride()) != (other.shape, other.dtype, other.stride()):
        return False
    if not other.is_floating_point():
        return torch.equal(one, other)
    norm = torch.linalg.vector_norm(other.float())
    return bool(torch.linalg.vector_norm(one.float() - other.float()) <= _CLOSE * norm + 1e-6)


def try_alone(alone: Alone, model: nn.Module, cut: Cut, call: Call, sizes: Sequence[int]) -> None:
    """Proves that so many samples of such a call give alone what they give in it, and that this leaves all buffers
    alone; they may not where it does not, or where the model raises. Numbers behind the first one that may be computed
    alone are left out."""
    shadow = shadow_of(model)
    buffers = [buffer.detach().clone() for buffer in shadow.model.buffers()]
    changed: list[bool] = []

    def compute(tried: Call) -> list[Tensor]:
        return cut.compute(shadow, tried, lambda: changed.append(not all(map(same, shadow.model.buffers(), buffers))))

    try:
        alone.try_sizes(compute, call, sizes, cut.decides)
    except Exception:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
        alone.refuse(sizes)
    if any(changed):
        alone.refuse(sizes)


def _compute_live(model: nn.Module, cut: Cut, call: Call) -> list[Tensor]:
    """Computes what crosses the cut.

    Raises:
      Refused: [RANDOM] the frozen layers, or what is between them, draw random numbers.
    """
    shadow = shadow_of(model)
    before = shadow.random_states()

    def check() -> None:
        if shadow.random_states() != before:
            raise Refused("RANDOM", DRAWS)

    return cut.compute(shadow, call, check)


def _computes_without(model: nn.Module, cut: Cut, call: Call, crossing: Sequence[Tensor]) -> bool:
    """Whether the same crosses the cut where arguments that count as unread have no content. Reading them by what is no
    operator (tolist(), numpy()) raises then."""
    try:
        found = cut.compute(shadow_of(model), call.without_content(cut.unread))
    except Exception:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
        return False
    return all(map(same, found, crossing))


def _run_skipping(model: nn.Module, cut: Cut, call: Call, rows: Sequence[Sequence[Tensor]]) -> tuple[Shadow, Pass]:
    """Runs the model without its frozen layers, with what crosses the cut put together from samples. Returns the shadow
    that has run, too."""
    for dense in (False, True):
        cut.dense = dense
        crossing = cut.placed([torch.stack(column) for column in zip(*rows)])
        shadow = shadow_of(model)
        try:
            with side_pass(shadow, crossing) as twin:
                with ForwardPatches() as patches:
                    cut.skip(patches, crossing, shadow=shadow)
                    value = call.run(twin.forward)
                return shadow, Pass.after(shadow, value)
        except RuntimeError:
            if dense:
                raise
    raise AssertionError("not reached")
