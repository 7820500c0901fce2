"""This file finds the submodules that can be skipped with a frozen prefix, and those that the rest depends on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.random  # noqa: F401  # it might be loaded in a pass, whose random states would look like others
import torch
from torch import Tensor, nn

from egeria.cache.dataflow import Dataflow, Decision, tensors_in
from egeria.cache.forward_patches import ForwardPatches
from egeria.cache.model_call import Call
from egeria.cache.pass_outcome import Pass, flatten
from egeria.cache.prefix_cut import Cut, shadow_of, side_pass
from egeria.cache.refused import Refused
from egeria.cache.stand_in_outputs import Output
from egeria.model.modules import LayerModule, has_parameters

# A cut is clean where the outputs of at most two layers are needed at a time: the last one's, and an early one's that a
# later layer takes too. Otherwise more crosses the cut with every layer that freezes, and the earliest outputs are the
# largest, so that to fetch them takes longer than to compute them.
_MAX_AT_A_TIME = 2

DRAWS = "random numbers are drawn before or between the frozen layers (a dropout that is no submodule of them?)"

# These are marks in a Dataflow: of the batch's rows, and of each argument (_argument()). _inner() lies between them.
_INPUT = -1
_ARGUMENTS = -(1 << 30)


def run_as_usual(model: nn.Module, frozen: Sequence[LayerModule], call: Call) -> Usual:
    """Runs the model as it is, and finds what crosses the cut behind `frozen`.

    Raises:
      Refused: [CALLED_SEVERAL_TIMES], [NOT_CALLED], [COLLECTIVE], [RANDOM], [NEEDS_GRADIENT], [NOT_A_TENSOR],
        [KEEPS_STATE], [CHECKPOINTED], [TOO_MANY_TENSORS], [BATCH_NOT_FIRST].
    """
    tracing = _Tracing(model, frozen, call)
    tracing.run([inner for entry in frozen for unit in entry.units for inner in unit.modules()], surely=False)
    # Mostly the outermost modules of the prefix are those that a pass comes to first. Where a module is called outside
    # of one that is called, too, or several times, that shows at the end only.
    if tracing.usual is None:
        entries = tracing.outermost()
        tracing = _Tracing(model, frozen, call)
        tracing.run(entries, surely=True)
    cut = tracing.cut()
    _leave_running(cut, call.batch)
    if len(cut.live) > 1:
        _check_width(model, tracing.entries, call)
    assert tracing.usual is not None
    is_last = [cut.entries[index] for index in cut.live] == tracing.entries[-1:]
    return Usual(cut, tracing.usual, tracing.newest() if is_last else None)


@dataclasses.dataclass
class Usual:
    """Holds what a pass as usual has shown.

    Attributes:
      left: what it has left.
      crossing: what crosses the cut; None: that has not been kept.
    """

    cut: Cut
    left: Pass
    crossing: list[Tensor] | None


class _Tracing:
    """Follows one forward pass, and what its backward pass leaves.

    Attributes:
      entries: the modules that were called, none inside another, in the order of their calls.
      usual: what the pass has left; None where these are not outermost().
    """

    def __init__(self, model: nn.Module, frozen: Sequence[LayerModule], call: Call):
        self.entries: list[nn.Module] = []
        self.usual: Pass | None = None
        self._names = {module: name for name, module in model.named_modules()}
        self._frozen = frozen
        self._call = call
        self._calls: dict[nn.Module, int] = {}  # in the forward pass, in the order of the first ones
        self._outputs: list[Output] = []
        self._flow = Dataflow()
        self._reached: frozenset[int] = frozenset()
        self._shadow = shadow_of(model)
        self._busy = False  # in an entry
        self._surely = True
        self._regular = True  # nothing speaks against the entries so far
        self._backward = False
        # The last entry has returned this. It had been written to so often by then, and these were the random states.
        self._newest: list[Tensor] = []
        self._versions: list[int] = []
        self._random = self._random_before = self._shadow.random_states()

    def run(self, modules: Sequence[nn.Module], surely: bool) -> None:
        """Runs it.

        Args:
          modules: those of which some are the entries.
          surely: all of them are; else what speaks against one that is called is none of its faults.
        """
        shadow, flow, self._surely = self._shadow, self._flow, surely
        inside = dict.fromkeys(shadow.of(inner) for module in modules for inner in module.modules())
        attributes = {module: dict(module.__dict__) for module in inside}
        with ForwardPatches() as patches, side_pass(shadow) as twin:
            for module in dict.fromkeys(modules):
                patches.replace(shadow.of(module), self._patch(module))
            flow.mark(self._call.batched(), [_INPUT])
            for number, tensor in self._call.numbered().items():
                flow.mark_too(tensor, [_argument(number)])
            with flow:
                value = self._call.run(twin.forward)
            if not surely and not (self._regular and self.entries == self.outermost()):
                return
            if surely and len(self.entries) < len(modules):
                raise Refused("NOT_CALLED", "two passes over one batch do not call the same layers")
            self._reached = flow.marks([*tensors_in(flatten(value)[0]), *twin.buffers(), *_attribute_tensors(twin)])
            called = {shadow.of(inner): self._names[inner] for entry in self.entries for inner in entry.modules()}
            check_keeps_nothing(called, attributes)
            self._backward = True
            self.usual = Pass.after(shadow, value)

    def outermost(self) -> list[nn.Module]:
        """Returns the outermost submodules of the prefix that the pass has called, in the order of their first calls.

        Raises:
          Refused: [CALLED_SEVERAL_TIMES], [NOT_CALLED].
        """
        calls = self._calls
        outermost = [[entry for unit in module.units for entry in _called(unit, calls)] for module in self._frozen]
        if not outermost[-1]:
            raise Refused("NOT_CALLED", f"no layer of '{self._frozen[-1].name}' is called as a module")
        order = {module: position for position, module in enumerate(calls)}
        entries = []
        for entry in sorted(dict.fromkeys(sum(outermost, [])), key=order.__getitem__):
            if calls[entry] == 1:
                entries.append(entry)
            elif next(entry.parameters(), None) is not None:  # without weights it is cheap, and stays as it is
                name = self._names[entry]
                raise Refused("CALLED_SEVERAL_TIMES", f"'{name}' is called {calls[entry]} times in one pass")
        if not entries:
            raise Refused("NOT_CALLED", "no frozen layer is called once")
        return entries

    def cut(self) -> Cut:
        names = [self._names[entry] for entry in self.entries]
        cut = Cut(self.entries, names, self._outputs, _live(self._reached, self._flow, names))
        cut.decides = _decides(self._flow, cut)
        cut.unread = _unread(self._flow, cut, self._call)
        return cut

    def newest(self) -> list[Tensor] | None:
        """Returns what the last entry has returned; None where it has been written to since.

        Raises:
          Refused: [RANDOM] random numbers had been drawn by then.
        """
        if self._random != self._random_before:
            raise Refused("RANDOM", DRAWS)
        return self._newest if self._versions == _versions(self._newest) else None

    def _patch(self, module: nn.Module) -> Callable[..., Any]:
        def function(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if self._backward:
                if module in self.entries:
                    name = self._names[module]
                    raise Refused("CHECKPOINTED", f"'{name}' is computed again in the backward pass", name)
                return original(*args, **kwargs)
            self._calls[module] = self._calls.get(module, 0) + 1
            self._regular &= self._surely or self._busy or self._calls[module] == 1
            if self._busy or not self._regular:
                return original(*args, **kwargs)
            index = len(self.entries)
            self.entries.append(module)
            self._busy = True
            try:
                with self._flow.part(_inner(index)):
                    value = original(*args, **kwargs)
            finally:
                self._busy = False
            try:
                self._leave(self._names[module], index, value)
            except Refused:
                if self._surely:
                    raise
                self._regular = False
            return value

        return function

    def _leave(self, name: str, index: int, value: Any) -> None:
        self._outputs.append(Output(value, name))
        tensors = tensors_in(value)
        if any(tensor.requires_grad for tensor in tensors):
            raise Refused(
                "NEEDS_GRADIENT", f"the output of '{name}' requires a gradient: a layer that trains comes before it"
            )
        self._flow.mark(tensors, [index])
        self._newest, self._versions = [tensor.detach() for tensor in tensors], _versions(tensors)
        self._random = self._shadow.random_states()


def _versions(tensors: Sequence[Tensor]) -> list[object]:
    """Returns how often they have been written to; nothing counts that in inference mode, so that no two are equal."""
    return [object() if tensor.is_inference() else tensor._version for tensor in tensors]


def _called(module: nn.Module, calls: dict[nn.Module, int]) -> list[nn.Module]:
    if module in calls:
        return [module]
    return [entry for child in module.children() for entry in _called(child, calls)]


def _inner(index: int) -> int:
    """Returns the mark of what an entry computes inside; `index` itself is its output's mark."""
    return _INPUT - 1 - index


def _argument(number: int) -> int:
    """Returns the mark of what comes from this argument of the call."""
    return _ARGUMENTS - number


def _live(reached: frozenset[int], flow: Dataflow, names: Sequence[str]) -> list[int]:
    """Returns the entries whose outputs are used behind the cut, for values or for decisions."""
    # A decision inside a frozen layer is skipped with it.
    used = reached.union(*(decision.marks for decision in flow.decisions)) - {_INPUT}
    leaks = [index for index in range(len(names)) if _inner(index) in reached]
    if leaks:
        name = names[leaks[0]]
        raise Refused("KEEPS_STATE", f"a value inside '{name}' is used past its output", name)
    live = sorted(mark for mark in used if mark >= 0)
    if not live:
        raise Refused("NOT_CALLED", "no result comes from the frozen layers")
    return live


def _decides(flow: Dataflow, cut: Cut) -> bool:
    """Returns whether a yes or no about the whole batch is asked for before all that crosses the cut is there.

    Raises:
      Refused: [BATCH_DEPENDENT] what is asked for is a number, or a shape.
    """
    asked = [
        decision
        for decision in _decisions(flow, cut)
        if decision.in_part or any(mark > _ARGUMENTS for mark in decision.marks)
    ]
    if not all(decision.yes_or_no for decision in asked):
        raise Refused(
            "BATCH_DEPENDENT", "before or in the frozen layers, a number or a shape is taken from what the batch holds"
        )
    return bool(asked)


def _decisions(flow: Dataflow, cut: Cut) -> list[Decision]:
    """Returns those that are made before all that crosses the cut is there."""
    return [decision for decision in flow.decisions if decision.position <= cut.live[-1] + 1]


def _unread(flow: Dataflow, cut: Cut, call: Call) -> frozenset[int]:
    """Returns the arguments that go into no layer of the prefix and no decision before its end, as far as operators
    show; none where no row of a sample would be left."""
    read = flow.entered.union(*(decision.marks for decision in _decisions(flow, cut)))
    numbers = call.numbered().keys()
    unread = frozenset(number for number in numbers if _argument(number) not in read)
    return unread if numbers - unread - set(call.of_no_sample()) else frozenset()


def check_keeps_nothing(modules: Mapping[nn.Module, str | None], before: Mapping[nn.Module, dict[str, Any]]) -> None:
    """Raises Refused [KEEPS_STATE] for a frozen layer that changes its attributes, since it would not when skipped. The
    values of `modules` are names."""
    for module, owner in modules.items():
        attributes = before[module]
        for name, value in module.__dict__.items():
            if name != "forward" and not _equal(attributes.get(name, attributes), value):
                raise Refused("KEEPS_STATE", f"a frozen {type(module).__name__} changes its attribute '{name}'", owner)


def _equal(before: Any, after: Any) -> bool:
    if before is after:
        return True
    simple = (bool, int, float, str, torch.Size, torch.dtype, torch.device)
    return type(before) is type(after) and isinstance(after, simple) and before == after


def _leave_running(cut: Cut, batch: int) -> None:
    """Takes live layers whose output has no row per sample (a position embedding) out of what is skipped. Whether they
    can be computed without what is skipped shows when it is tried."""

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


def _check_width(model: nn.Module, entries: Sequence[nn.Module], call: Call) -> None:
    """Looks at all of the model, so that a model whose cuts are not clean is refused at each of them alike."""
    needed = _widest_cut(model, entries, call)
    if len(needed) > _MAX_AT_A_TIME:
        shown = ", ".join(f"'{name}'" for name in needed[:4]) + (", ..." if len(needed) > 4 else "")
        raise Refused(
            "TOO_MANY_TENSORS",
            f"the outputs of {len(needed)} layers are needed at a time ({shown}): "
            "skip connections between several stages, or hidden states that the model returns",
        )


def _widest_cut(model: nn.Module, entries: Sequence[nn.Module], call: Call) -> list[str]:
    """Returns the layers whose outputs are still needed at the place between two layers, frozen or not, where most are;
    in the order of their calls.

    A chain of layers needs one, a model that takes one early output along two (DeepLabv3+). A model that joins several
    stages again with later ones (U-Net), or returns what each layer gives (hidden states), needs more the deeper one
    looks.

    Args:
      entries: layers, whatever is inside them. The other layers are the outermost submodules with weights that have
        none of these inside.
    """
    flow = Dataflow()
    names: list[str] = []
    busy: list[nn.Module] = []  # at most one: the layer that is being computed

    def follow(module: nn.Module, name: str) -> Callable[..., Any]:
        def function(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if busy:
                return original(*args, **kwargs)
            mark = len(names)
            names.append(name)
            busy.append(module)
            try:
                with flow.part(mark):
                    value = original(*args, **kwargs)
            finally:
                busy.pop()
            for tensor in tensors_in(value):  # a table that is the same for all samples crosses no cut
                if tensor.layout is torch.strided:
                    flow.mark([tensor], [mark] if tensor.shape[:1] == (call.batch,) else [])
            return value

        return function

    shadow = shadow_of(model)
    with ForwardPatches() as patches, side_pass(shadow) as twin:
        for name, module in _layers(model, entries):
            patches.replace(shadow.of(module), follow(module, name))
        with flow:
            value = call.run(twin.forward)
        needed_in_the_end = flow.marks(tensors_in(flatten(value)[0]))
    last_use = {**flow.last_use, **dict.fromkeys(needed_in_the_end, len(names))}
    cuts = [[layer for layer in range(end + 1) if last_use.get(layer, 0) > end] for end in range(len(names))]
    return [names[layer] for layer in max(cuts, key=len, default=[])]


def _layers(model: nn.Module, entries: Sequence[nn.Module]) -> list[tuple[str, nn.Module]]:
    """Returns the submodules that may turn out to be outermost layers when the model runs."""
    inside = {inner for entry in entries for inner in entry.modules()} - set(entries)
    around = {module for module in model.modules() if not set(entries).isdisjoint(module.modules())} - set(entries)
    return [
        (name, module)
        for name, module in model.named_modules()
        if module not in inside and module not in around and has_parameters(module)
    ]


def _attribute_tensors(model: nn.Module) -> list[Tensor]:
    """Returns tensors that the forward pass may have left in attributes, for somebody to read."""
    return [
        tensor
        for module in model.modules()
        for name, value in module.__dict__.items()
        if name not in ("_parameters", "_buffers", "_modules")
        for tensor in tensors_in(value)
    ]
