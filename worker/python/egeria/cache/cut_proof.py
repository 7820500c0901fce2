"""Proves on one real batch that a frozen prefix may be skipped."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from egeria import _native
from egeria.cache.cut_finding import find_entries, run_as_usual
from egeria.cache.forward_patches import ForwardPatches
from egeria.cache.model_call import Call
from egeria.cache.pass_outcome import Pass, compare, same
from egeria.cache.prefix_cut import Cut, shadow_of, side_pass
from egeria.cache.refused import Refused
from egeria.cache.skip_checks import check_skippable
from egeria.model.modules import LayerModule
from egeria.model.shadow import Shadow


def prove(model: nn.Module, frozen: Sequence[LayerModule], call: Call) -> Cut:
    """Finds what crosses the cut behind `frozen` in calls like this one, and proves that nothing else does.

    1. A pass as usual, followed operator by operator: which outputs of frozen layers do results, buffers,
       attributes or decisions come from? Those are live.
    2. A pass in which all other frozen layers return NaN and the live ones what was computed before, put together
       from single samples: results, gradients of all parameters, buffers and random states are the same to the
       bit.
    3. The frozen layers alone, with other samples in other places: each sample's result is the same to the bit, so
       that results of different batches may be mixed. The same with fewer samples, which only says which numbers
       of samples may be computed alone.

    All of it happens on shadows (egeria.model.shadow), so that nothing of the model runs.

    Args:
      model: unwrapped, in training mode, with `frozen` frozen.

    Raises:
      Refused: it is not so. Whatever the model raises is [RAISES]. Names that are raised here: OUTPUT_DIFFERS,
        GRADIENT_DIFFERS, RANDOM, BATCH_DEPENDENT; all others from check_skippable(), shadow_of(), side_pass(),
        find_entries(), run_as_usual().
    """
    check_skippable(model, frozen)
    try:
        return _prove(model, frozen, call)
    except Refused:
        raise
    except Exception as error:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
        raise Refused("RAISES", f"{type(error).__name__}: {str(error)[:300]}") from error


def _prove(model: nn.Module, frozen: Sequence[LayerModule], call: Call) -> Cut:
    entries, names = find_entries(model, frozen, call)
    cut, usual = run_as_usual(model, entries, names, call)
    crossing = _compute_live(model, cut, call)
    rows = list(zip(*(tensor.unbind(0) for tensor in crossing)))
    compare(usual, _run_skipping(model, cut, call, rows), model)
    cut.sub_batches = tuple(_native.sizes_alone(call.batch))
    shadow = shadow_of(model)  # were it not the same after each of these passes, the rows would show it
    _prove_rows(shadow, cut, call, crossing)
    if (disturbed := call.disturbed()) is not None:
        _prove_rows(shadow, cut, disturbed, cut.compute(shadow, disturbed))
    return cut


def _prove_rows(shadow: Shadow, cut: Cut, call: Call, crossing: Sequence[Tensor]) -> None:
    """Leaves those of cut.sub_batches that may be computed alone, as far as that leaves all buffers alone.

    Raises:
      Refused: [BATCH_DEPENDENT] a sample's result depends on its place or on the other samples.
    """
    buffers = [buffer.detach().clone() for buffer in shadow.model.buffers()]

    def in_like_company(rows: list[int]) -> bool:
        return not cut.decides or call.rows(rows).conditions() == call.conditions()

    def alone(rows: list[int]) -> list[Tensor]:
        changed: list[bool] = []
        computed = cut.compute(
            shadow, call.rows(rows), lambda: changed.append(not all(map(same, shadow.model.buffers(), buffers)))
        )
        return [] if any(changed) else computed

    if not _native.same_in_any_order(lambda rows: cut.compute(shadow, call.rows(rows)), crossing, in_like_company):
        raise Refused(
            "BATCH_DEPENDENT",
            "what the frozen layers compute for a sample depends on its place in the batch or on the other samples",
        )
    cut.sub_batches = tuple(
        size for size in cut.sub_batches if _native.same_alone(alone, crossing, size, in_like_company)
    )


def _compute_live(model: nn.Module, cut: Cut, call: Call) -> list[Tensor]:
    """Computes what crosses the cut.

    Raises:
      Refused: [RANDOM] the frozen layers, or what is between them, draw random numbers.
    """
    shadow = shadow_of(model)
    before = shadow.random_states()

    def check() -> None:
        if shadow.random_states() != before:
            raise Refused(
                "RANDOM",
                "random numbers are drawn before or between the frozen layers (a dropout that "
                "is no submodule of them?)",
            )

    return cut.compute(shadow, call, check)


def _run_skipping(model: nn.Module, cut: Cut, call: Call, rows: Sequence[Sequence[Tensor]]) -> Pass:
    """Runs the model without its frozen layers, with what crosses the cut put together from samples."""
    for dense in (False, True):
        cut.dense = dense
        crossing = [
            spec.placed(torch.stack([row[position] for row in rows])) for position, spec in enumerate(cut.tensors)
        ]
        shadow = shadow_of(model)
        try:
            with side_pass(shadow) as twin:
                with ForwardPatches() as patches:
                    cut.skip(patches, crossing, shadow=shadow)
                    value = call.run(twin.forward)
                return Pass.after(shadow, value)
        except RuntimeError:
            if dense:
                raise
    raise AssertionError("not reached")
