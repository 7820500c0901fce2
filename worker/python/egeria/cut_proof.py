"""Proves on one real batch that a frozen prefix may be skipped."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from egeria.calls import Call
from egeria.cut import MOST_LIVE_OUTPUTS, Cut, Refused, describe, random_states, side_pass
from egeria.dataflow import Collective, Dataflow
from egeria.modules import LayerModule
from egeria.skippable import check_skippable
from egeria.standins import Output, Taps, tensors_in

# The mark of the batch's rows in a Dataflow.
_INPUT = -1
# Numbers of elements to compare before a number of samples is taken to make no difference, and of tries for that.
_ENOUGH_ELEMENTS = 4096
_MOST_ROUNDS = 8


def prove(model: nn.Module, frozen: Sequence[LayerModule], call: Call) -> Cut:
    """Finds what crosses the cut behind `frozen` in calls like this one, and proves that nothing else does.

    1. A pass as usual, followed operator by operator: which outputs of frozen layers do results, gradients, numbers
       or attributes come from? Those are live.
    2. A pass in which all other frozen layers return NaN and the live ones what was computed before, put together
       from single samples: results, gradients of all parameters, buffers and random states are the same to the bit.
    3. The frozen layers alone, with other samples in other places: each sample's result is the same to the bit, so
       that results of different batches may be mixed. The same with fewer samples, which only says which numbers
       of samples may be computed alone.

    Nothing of it stays: random states, buffers, gradients, attributes are as before.

    Args:
      model: unwrapped, in training mode, with `frozen` frozen.

    Raises:
      Refused: it is not so; see docs. Whatever the model raises is [RAISES].
    """
    check_skippable(model, frozen)
    try:
        return _prove(model, frozen, call)
    except Collective as error:
        raise Refused("COLLECTIVE", f"{error}") from None
    except Refused:
        raise
    except Exception as error:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
        raise Refused("RAISES", f"{type(error).__name__}: {str(error)[:300]}") from error


def _prove(model: nn.Module, frozen: Sequence[LayerModule], call: Call) -> Cut:
    entries, names = _entries(model, frozen, call)
    cut, usual = _run_as_usual(model, entries, names, call)
    crossing = _compute_live(model, cut, call)
    rows = list(zip(*(tensor.unbind(0) for tensor in crossing)))
    _compare(usual, _run_skipping(model, cut, call, rows), model)
    cut.sub_batches = tuple(_sub_batches(model, cut, call, crossing))
    _prove_places(model, cut, call, crossing)
    disturbed = call.disturbed()
    if disturbed is not None:
        crossing = cut.compute(model, disturbed)
        _prove_places(model, cut, disturbed, crossing)
        others = set(_sub_batches(model, cut, disturbed, crossing))
        cut.sub_batches = tuple(size for size in cut.sub_batches if size in others)
    return cut


# Which submodules are skipped.


def _entries(model: nn.Module, frozen: Sequence[LayerModule], call: Call) -> tuple[list[nn.Module], list[str]]:
    """The outermost submodules of the prefix that a forward pass calls, in the order of their first calls.

    Raises:
      Refused: [CALLED_SEVERAL_TIMES], [NOT_CALLED], [COLLECTIVE].
    """
    names = {module: name for name, module in model.named_modules()}
    calls: dict[nn.Module, int] = {}

    def count(module: nn.Module) -> Callable[..., Any]:
        def function(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            calls[module] = calls.get(module, 0) + 1
            return original(*args, **kwargs)
        return function

    with Taps() as taps, side_pass(model), Dataflow(enabled=False):
        for module in dict.fromkeys(inner for entry in frozen for unit in entry.units for inner in unit.modules()):
            taps.replace(module, count(module))
        call.run(model.forward)
    outermost = [[entry for unit in module.units for entry in _called(unit, calls)] for module in frozen]
    if not outermost[-1]:
        raise Refused("NOT_CALLED", f"no layer of '{frozen[-1].name}' is called as a module")
    order = {module: position for position, module in enumerate(calls)}
    entries = []
    for entry in sorted(dict.fromkeys(sum(outermost, [])), key=order.__getitem__):
        if calls[entry] == 1:
            entries.append(entry)
        elif next(entry.parameters(), None) is not None:  # without weights it is cheap, and stays as it is
            raise Refused("CALLED_SEVERAL_TIMES", f"'{names[entry]}' is called {calls[entry]} times in one pass")
    if not entries:
        raise Refused("NOT_CALLED", "no frozen layer is called once")
    return entries, [names[entry] for entry in entries]


def _called(module: nn.Module, calls: dict[nn.Module, int]) -> list[nn.Module]:
    if module in calls:
        return [module]
    return [entry for child in module.children() for entry in _called(child, calls)]


# A pass with and without the frozen layers.


@dataclasses.dataclass
class _Pass:
    """What a forward and backward pass has left."""

    structure: Any
    results: list[Any]
    gradients: list[Tensor | None]
    buffers: list[Tensor]
    random: str


def _run_as_usual(model: nn.Module, entries: list[nn.Module], names: list[str], call: Call) -> tuple[Cut, _Pass]:
    """Runs the model as it is.

    Raises:
      Refused: [NEEDS_GRADIENT], [NOT_A_TENSOR], [KEEPS_STATE], [CHECKPOINTED], [TOO_MANY_TENSORS],
        [BATCH_NOT_FIRST].
    """
    outputs: dict[int, Output] = {}
    flow = Dataflow()

    def tap(index: int) -> Callable[..., Any]:
        def function(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if index in outputs:
                raise Refused("CHECKPOINTED", f"'{names[index]}' is computed again in the backward pass")
            with flow.part(_inner(index)):
                value = original(*args, **kwargs)
            outputs[index] = describe(value, names[index])
            if any(tensor.requires_grad for tensor in tensors_in(value)):
                raise Refused("NEEDS_GRADIENT", f"the output of '{names[index]}' requires a gradient: a layer that "
                              "trains comes before it")
            flow.mark(tensors_in(value), [index])
            return value
        return function

    inside = [module for entry in entries for module in entry.modules()]
    attributes = [dict(module.__dict__) for module in inside]
    with Taps() as taps, side_pass(model):
        for index, entry in enumerate(entries):
            taps.replace(entry, tap(index))
        flow.mark(call.batched(), [_INPUT])
        with flow:
            value = call.run(model.forward)
        reached = flow.marks([*_all_tensors(value), *model.buffers(), *_attribute_tensors(model)])
        _check_keeps_nothing(inside, attributes)
        usual = _finish(model, value)
    if len(outputs) < len(entries):
        raise Refused("NOT_CALLED", "two passes over one batch do not call the same layers")
    cut = Cut(entries, names, [outputs[index] for index in range(len(entries))], _live(reached, flow, names))
    cut.decides = _decides(flow, cut)
    _leave_running(cut, call.batch)
    return cut, usual


def _inner(index: int) -> int:
    """The mark of what an entry computes inside; `index` itself is that of its output."""
    return _INPUT - 1 - index


def _live(reached: frozenset[int], flow: Dataflow, names: Sequence[str]) -> list[int]:
    """The entries whose outputs are used behind the cut, for values or for decisions."""
    # What was decided inside a frozen layer is skipped with it.
    used = reached.union(*(decision.marks for decision in flow.decisions)) - {_INPUT}
    leaks = [index for index in range(len(names)) if _inner(index) in reached]
    if leaks:
        raise Refused("KEEPS_STATE", f"what '{names[leaks[0]]}' computes inside is used elsewhere, past its output")
    live = sorted(mark for mark in used if mark >= 0)
    if not live:
        raise Refused("NOT_CALLED", "no result comes from the frozen layers")
    return live


def _decides(flow: Dataflow, cut: Cut) -> bool:
    """Whether a yes or no about the whole batch is asked for before all that crosses the cut is there.

    Raises:
      Refused: [BATCH_DEPENDENT] it is a number, or a shape.
    """
    asked = [decision for decision in flow.decisions if decision.position <= cut.live[-1] + 1]
    if not all(decision.yes_or_no for decision in asked):
        raise Refused("BATCH_DEPENDENT", "before or in the frozen layers, a number or a shape is taken from what the "
                      "batch holds")
    return bool(asked)


def _check_keeps_nothing(modules: Sequence[nn.Module], before: Sequence[dict[str, Any]]) -> None:
    """A frozen layer that changes its attributes would not do so when it is skipped."""
    for module, attributes in zip(modules, before):
        for name, value in module.__dict__.items():
            if name != "forward" and not _equal(attributes.get(name, attributes), value):
                raise Refused("KEEPS_STATE", f"a frozen {type(module).__name__} changes its attribute '{name}'")


def _equal(before: Any, after: Any) -> bool:
    if before is after:
        return True
    simple = (bool, int, float, str, torch.Size, torch.dtype, torch.device)
    return type(before) is type(after) and isinstance(after, simple) and before == after


def _leave_running(cut: Cut, batch: int) -> None:
    """A live layer whose output has no row per sample (a position embedding) is not skipped; whether it can be
    computed without what is skipped shows when it is tried."""
    def by_sample(index: int) -> bool:
        specs = cut.outputs[index].tensors
        return bool(specs) and all(spec.shape[:1] == (batch,) for spec in specs)

    stay = [index for index in cut.live if not by_sample(index)]
    if len(stay) == len(cut.live):
        raise Refused("BATCH_NOT_FIRST", f"the output of '{cut.names[stay[-1]]}' has no row for each sample")
    kept = [index for index in range(len(cut.entries)) if index not in stay]
    live = set(cut.live)
    cut.live = [position for position, index in enumerate(kept) if index in live]
    cut.entries = [cut.entries[index] for index in kept]
    cut.names = [cut.names[index] for index in kept]
    cut.outputs = [cut.outputs[index] for index in kept]
    if len(cut.live) > MOST_LIVE_OUTPUTS:
        raise Refused("TOO_MANY_TENSORS", f"the outputs of {len(cut.live)} frozen layers are used behind them: "
                      + ", ".join(cut.names[index] for index in cut.live[:MOST_LIVE_OUTPUTS]) + ", ...")


def _compute_live(model: nn.Module, cut: Cut, call: Call) -> list[Tensor]:
    """What crosses the cut.

    Raises:
      Refused: [RANDOM] the frozen layers, or what is between them, draw random numbers.
    """
    before = random_states(model)

    def check() -> None:
        if random_states(model) != before:
            raise Refused("RANDOM", "random numbers are drawn before or between the frozen layers (a dropout that "
                          "is no submodule of them?)")

    return cut.compute(model, call, check)


def _run_skipping(model: nn.Module, cut: Cut, call: Call, rows: Sequence[Sequence[Tensor]]) -> _Pass:
    """Runs the model without its frozen layers, with what crosses the cut put together from samples."""
    for dense in (False, True):
        cut.dense = dense
        crossing = [spec.assemble([row[position].clone() for row in rows])
                    for position, spec in enumerate(cut.tensors)]
        try:
            with side_pass(model):
                with Taps() as taps:
                    cut.skip(taps, crossing)
                    value = call.run(model.forward)
                return _finish(model, value)
        except RuntimeError:
            if dense:
                raise
    raise AssertionError("not reached")


def _finish(model: nn.Module, value: Any) -> _Pass:
    """The backward pass from all results, each element with a weight of its own."""
    leaves, structure = _flatten(value)
    results = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not results or not parameters:
        raise Refused("NOT_A_TENSOR", f"the model returns a {type(value).__name__} without a tensor that has a "
                      "gradient")
    gradients = torch.autograd.grad(results, parameters, [_weights(result) for result in results],
                                    allow_unused=True)
    return _Pass(structure, [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves],
                 list(gradients), [buffer.detach().clone() for buffer in model.buffers()], random_states(model))


def _weights(result: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(result.numel())
    weights = torch.randn(result.shape, generator=generator)
    return weights.to(device=result.device, dtype=result.dtype)


def _compare(usual: _Pass, skipping: _Pass, model: nn.Module) -> None:
    """Raises Refused: [OUTPUT_DIFFERS], [RANDOM], [GRADIENT_DIFFERS]."""
    if usual.structure != skipping.structure or not all(map(_same, usual.results, skipping.results)):
        raise Refused("OUTPUT_DIFFERS", "the model returns something else when its frozen layers are skipped")
    buffers = [name for name, _ in model.named_buffers()]
    for name, before, after in zip(buffers, usual.buffers, skipping.buffers):
        if not _same(before, after):
            raise Refused("OUTPUT_DIFFERS", f"buffer '{name}' differs when the frozen layers are skipped")
    if usual.random != skipping.random:
        raise Refused("RANDOM", "other random numbers are drawn when the frozen layers are skipped")
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name, before, after in zip(names, usual.gradients, skipping.gradients):
        if not _same(before, after):
            raise Refused("GRADIENT_DIFFERS", f"the gradient of '{name}' differs when the frozen layers are skipped")


# Samples in other batches.


def _prove_places(model: nn.Module, cut: Cut, call: Call, crossing: Sequence[Tensor]) -> None:
    """Raises Refused [BATCH_DEPENDENT]: a sample's result depends on its place or on the other samples."""
    for index in _rearrangements(cut, call):
        if not same_rows(cut.compute(model, call.rows(index)), crossing, index):
            raise Refused("BATCH_DEPENDENT", "what the frozen layers compute for a sample depends on its place in "
                          "the batch or on the other samples")


def _rearrangements(cut: Cut, call: Call) -> Iterable[list[int]]:
    """All samples in another order; and half of them, the others replaced by copies of a single one."""
    last, half = call.batch - 1, call.batch // 2
    yield [last - i for i in range(call.batch)]
    halves = ([copied] * half + [last - i for i in range(half, call.batch)] for copied in range(last, -1, -1))
    yield from itertools.islice((index for index in halves if _in_like_company(cut, call, index)), 1)


def _in_like_company(cut: Cut, call: Call, index: list[int]) -> bool:
    """Whether the model may be expected to compute these samples as in the whole batch."""
    return not cut.decides or call.rows(index).conditions() == call.conditions()


def _sub_batches(model: nn.Module, cut: Cut, call: Call, crossing: Sequence[Tensor]) -> Iterable[int]:
    """Powers of two of samples that may be computed alone, as far as that leaves all buffers alone."""
    size = 1
    while size < call.batch:
        choices = _choices(cut, call, size, crossing)
        if choices and all(_computes_alone(model, cut, call, crossing, index) for index in choices):
            yield size
        size *= 2


def _choices(cut: Cut, call: Call, size: int, crossing: Sequence[Tensor]) -> list[list[int]]:
    """Which samples to try: with few elements a rounding may be the same by chance."""
    per_sample = sum(tensor[0].numel() for tensor in crossing)
    rounds = min(_MOST_ROUNDS, -(-_ENOUGH_ELEMENTS // max(1, size * per_sample)))
    choices = ([(begin + 7 * i) % call.batch for i in range(size)] for begin in range(call.batch))
    return list(itertools.islice((index for index in choices if _in_like_company(cut, call, index)), rounds))


def _computes_alone(model: nn.Module, cut: Cut, call: Call, crossing: Sequence[Tensor], index: list[int]) -> bool:
    buffers = [buffer.detach().clone() for buffer in model.buffers()]
    changed: list[Tensor] = []

    def check() -> None:
        changed.extend(buffer for buffer, before in zip(model.buffers(), buffers) if not _same(buffer, before))

    try:
        same = same_rows(cut.compute(model, call.rows(index), check), crossing, index)
    except Exception:  # pylint: disable=broad-exception-caught  # a model that needs whole batches
        return False
    return same and not changed


def same_rows(got: Sequence[Tensor], wanted: Sequence[Tensor], index: Sequence[int]) -> bool:
    """Whether the rows of each tensor are those of another with these numbers, to the bit."""
    return len(got) == len(wanted) and all(
        _same(mine, theirs.index_select(0, torch.tensor(list(index), device=theirs.device)))
        for mine, theirs in zip(got, wanted))


# Small things.


def _same(mine: Any, theirs: Any) -> bool:
    """Equal to the bit."""
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        return mine.dtype == theirs.dtype and mine.shape == theirs.shape and torch.equal(_bits(mine), _bits(theirs))
    return type(mine) is type(theirs) and bool(mine == theirs)


def _bits(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _flatten(value: Any) -> tuple[list[Any], Any]:
    """Like pytree's, but data classes too.

    Raises:
      Refused: [NOT_A_TENSOR] there is an object in it that cannot be looked into.
    """
    leaves, structure = pytree.tree_flatten(value)
    found: list[Any] = []
    structures = [structure]
    for leaf in leaves:
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            fields = {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)}
            inner, inner_structure = _flatten(fields)
            found += inner
            structures += [type(leaf), inner_structure]
        elif leaf is None or isinstance(leaf, (Tensor, bool, int, float, str)):
            found.append(leaf)
        else:
            raise Refused("NOT_A_TENSOR", f"the model returns a {type(leaf).__name__}")
    return found, structures


def _all_tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _attribute_tensors(model: nn.Module) -> list[Tensor]:
    """Tensors that the forward pass may have left in attributes, for somebody to read."""
    return [tensor for module in model.modules() for name, value in module.__dict__.items()
            if name not in ("_parameters", "_buffers", "_modules") for tensor in _all_tensors(value)]
