"""This file finds the part of a model that does not train and that nothing which trains has a say in, whoever has
frozen it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from egeria.cache.dataflow import Dataflow
from egeria.cache.forward_patches import ForwardPatches
from egeria.cache.model_call import Call
from egeria.cache.module_fingerprint import ModuleFingerprint
from egeria.cache.prefix_cut import shadow_of, side_pass
from egeria.cache.refused import Refused
from egeria.cache.skip_checks import check_hooks, check_skippable, is_compiled, is_hooked
from egeria.freeze.wishes import has_gradient
from egeria.model.isolation import device_of
from egeria.model.modules import LayerModule, has_parameters
from egeria.model.shadow import FirstPass

# Each try costs a few passes.
_MOST_TRIES = 5
# Less of the model would be refused for these reasons, too.
_OF_THE_WHOLE = ("SHARDED", "COMPILED", "COLLECTIVE", "NO_SHADOW", "RAISES")
# The mark of parameters that train, in a Dataflow.
_TRAINED = -1
_REMEDIES = "call .eval() on it after model.train(), or let Config(pin_frozen_modes=True) hold it in evaluation mode"


def resting(model: nn.Module) -> list[nn.Module]:
    """Returns the outermost submodules that have parameters, none of which requires a gradient now."""
    found = [module for module in model.modules() if module is not model and has_parameters(module)]
    return _outermost(module for module in found if not any(map(has_gradient, module.parameters())))


class Part:
    """A part of a model that may be skipped.

    Attributes:
      frozen: its layer modules.
      fingerprint: of its weights and settings.
    """

    def __init__(self, model: nn.Module, modules: Sequence[LayerModule], prefix: int):
        """
        Args:
          model: unwrapped.
          modules: layer modules, of which the first `prefix` are the part. The others have no say in it.

        Raises:
          Refused: see check_skippable().
        """
        self.frozen = list(modules[:prefix])
        check_skippable(model, self.frozen)
        self._arguments = model, modules, prefix
        self.fingerprint = self.look()
        inside = {inner for entry in self.frozen for unit in entry.units for inner in unit.modules()}
        outside = [module for module in list(model.modules())[1:] if module not in inside]
        self._around = [module for module in outside if not inside.isdisjoint(module.modules())]

    @property
    def is_watched(self) -> bool:
        """Whether a hook of somebody else's on a container around the part sees what goes in and out there."""
        return any(map(is_hooked, self._around))

    def look(self) -> ModuleFingerprint:
        """Returns the fingerprint of what is there now."""
        return ModuleFingerprint(*self._arguments)


@dataclasses.dataclass
class _Visit:
    """One submodule in a forward pass, by its first call.

    Attributes:
      begin, end: when that began and ended, by a count of such events; end is 0 where it has not ended.
      calls: how many there were.
      is_early: nothing that trains had a say when it ended.
      keeps: it wrote to a buffer of its own.
    """

    name: str
    begin: int
    end: int = 0
    calls: int = 0
    is_early: bool = False
    keeps: bool = False


class _Recorder:
    """Follows the calls of submodules in one forward pass.

    Attributes:
      visits: in the order of the first calls.
      draws: random numbers that were drawn: when that was known, and the innermost module that was running.
      flow: carries the marks of what trains.
      acted: when something that trains was first seen to have a say; 0: it had none.
    """

    def __init__(self, device: torch.device):
        self.visits: dict[nn.Module, _Visit] = {}
        self.draws: list[tuple[int, nn.Module | None]] = []
        self.flow = Dataflow()
        self.clock = 0
        self.acted = 0
        self._running: list[nn.Module] = []
        self._generators = _generators_of(device)
        self._random = self._random_states()

    def watch(self, name: str, module: nn.Module, copied: nn.Module) -> Callable[..., Any]:
        """Returns a forward function for `copied`, which is the shadow's of `module`."""
        acts = any(has_gradient(tensor) for tensor in module._parameters.values() if tensor is not None)

        def function(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            visit = self.visits.setdefault(module, _Visit(name, self._tick()))
            visit.calls += 1
            if acts:
                self._note_acted()
            before = _versions(copied)
            self._running.append(module)
            try:
                value = original(*args, **kwargs)
                now = self._tick()
            finally:
                self._running.pop()
            visit.keeps |= _versions(copied) != before
            if visit.calls == 1:
                if _TRAINED in self.flow.last_use:
                    self._note_acted()
                visit.end, visit.is_early = now, self.acted == 0
            return value

        return function

    def has_drawn(self) -> bool:
        """Whether the pass, which has ended, has drawn random numbers."""
        return bool(self.draws) or self._random_states() != self._random

    def _note_acted(self) -> None:
        self.acted = self.acted or self.clock

    def _tick(self) -> int:
        self.clock += 1
        if (states := self._random_states()) != self._random:
            self._random = states
            self.draws.append((self.clock, self._running[-1] if self._running else None))
        return self.clock

    def _random_states(self) -> list[bytes]:
        return [generator.get_state().numpy().tobytes() for generator in self._generators]


class PartSearch:
    """Finds where a model may be cut, from the deepest place on.

    A pass of a shadow shows in which order submodules are called, and when the first parameter that trains has a say.
    All before that is a function of the input and of what does not train. The part ends earlier where something
    is random, depends on the batch, keeps a state, is compiled or has a hook of somebody else's.

    The same model in calls of the same shape gives the same parts, in every process.
    """

    def __init__(self, model: nn.Module, call: Call, tell: Callable[[str], None], first_pass: FirstPass | None = None):
        """
        Args:
          model: unwrapped, in training mode.
          tell: called with what the owner of the model can do to have more of it skipped.
          first_pass: the pass that is made here counts as the shadow's first one, if there has been none.

        Raises:
          Refused: [NO_SHADOW], [COLLECTIVE], [RAISES].
        """
        self._model = model
        self._tries = 1
        self._names = {module: name for name, module in model.named_modules()}
        self._rests = {module for module in self._names if not any(map(has_gradient, module.parameters()))}
        try:
            recorder = self._record(call, first_pass)
        except Refused:
            raise
        except Exception as error:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
            raise Refused("RAISES", f"{type(error).__name__}: {str(error)[:300]}") from error
        self._visits = recorder.visits
        self._end = recorder.clock + 1
        self._acted = recorder.acted or self._end
        self._reason = Refused("NEEDS_GRADIENT", "a layer that trains comes before all that do not train")
        self._set_limit(self._offences(recorder), tell)

    def deepest(self) -> Part:
        """Returns the part up to the deepest place.

        Raises:
          Refused: there is none, for the reason that ends it.
        """
        if (part := self._part()) is None:
            raise self._reason
        return part

    def shallower(self, error: Refused) -> Part | None:
        """Returns a smaller part, after the one before was refused; None where there is none, or enough were tried."""
        if self._tries >= _MOST_TRIES or error.name in _OF_THE_WHOLE:
            return None
        self._tries += 1
        before = self._limit
        for limit in self._limits(error):
            self._limit = limit
            if limit < before and (part := self._part()) is not None:
                return part
        return None

    def _record(self, call: Call, first_pass: FirstPass | None) -> _Recorder:
        shadow = shadow_of(self._model)
        recorder = _Recorder(device_of(self._model))
        with ForwardPatches() as patches, side_pass(shadow) as twin:
            for module, name in self._names.items():
                if module is not self._model:
                    patches.replace(shadow.of(module), recorder.watch(name, module, shadow.of(module)))
            recorder.flow.mark([tensor for tensor in twin.parameters() if tensor.requires_grad], [_TRAINED])
            with recorder.flow:
                value = call.run(twin.forward)
            if first_pass is not None:
                first_pass.take_for_first(value, recorder.has_drawn())
        return recorder

    # These methods find out where the part has to end.

    def _offences(self, recorder: _Recorder) -> list[tuple[int, Refused]]:
        """Returns what no part may hold, and when it happens."""
        found = []
        for module, visit in self._visits.items():
            if (error := self._offence(module, visit)) is not None:
                found.append((visit.begin, error))
        for when, module in recorder.draws:
            if module is None:
                found.append((when, Refused("RANDOM", "the model draws random numbers before or between its layers")))
            else:
                name = self._names[module]
                found.append((when, Refused("RANDOM", f"'{name}' draws random numbers; {_REMEDIES}", name)))
        return sorted(found, key=lambda offence: offence[0])

    def _offence(self, module: nn.Module, visit: _Visit) -> Refused | None:
        name = visit.name
        try:
            check_hooks(name, module)
        except Refused as error:
            return error
        if is_compiled(module):
            text = f"'{name}' is compiled; compiled code does not see that a layer is skipped"
            return Refused("COMPILED", text, name)
        if module not in self._rests:
            return None
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            return Refused("BATCH_DEPENDENT", f"'{name}' is in training mode, where samples mix; {_REMEDIES}", name)
        if visit.keeps:
            return Refused("KEEPS_STATE", f"'{name}' writes to a buffer of its own; {_REMEDIES}", name)
        return None

    def _set_limit(self, offences: Sequence[tuple[int, Refused]], tell: Callable[[str], None]) -> None:
        """The first offence ends the part. Where the mode of a layer is the reason, and more could be skipped without
        it, its owner is told."""
        hard = [when for when, error in offences if error.name not in _MODES]
        self._limit = hard[0] if hard else self._end
        most = _size(self._entries())
        when, first = offences[0] if offences else (self._end, self._reason)
        if when <= self._limit:
            self._limit = when
            self._reason = first if when < self._acted else self._reason
        if _size(self._entries()) < most and first.at is not None:
            tell(f"the cache keeps less of what does not train than it could: {first}")

    def _limits(self, error: Refused) -> list[int]:
        """Returns where to cut instead, the best place first."""
        entries = [entry for entry in self._entries() if has_parameters(entry)]
        inside = {inner for entry in entries for inner in entry.modules()}
        limits = [visit.begin for visit in self._visits.values() if visit.name == error.at]
        if error.name == "TOO_MANY_TENSORS" and len(entries) > 1:
            limits.append(self._visits[entries[-1]].begin)
        layers = sorted(
            visit.begin for module, visit in self._visits.items() if module._parameters and module in inside
        )
        return [*limits, layers[len(layers) // 2]] if layers else limits

    # These methods make a part of what comes before that.

    def _entries(self) -> list[nn.Module]:
        """Returns the outermost submodules that may be skipped, in the order of their calls."""
        while True:
            entries = self._select(self._model)
            inside = {inner for entry in entries for inner in entry.modules()}
            repeated = [
                visit.begin
                for module, visit in self._visits.items()
                if visit.calls > 1 and module in self._rests and module not in inside and has_parameters(module)
            ]
            if not repeated or min(repeated) >= self._limit:
                return sorted(entries, key=lambda entry: self._visits[entry].begin)
            self._limit = min(repeated)
            if self._limit < self._acted:
                text = "a layer that does not train is called several times in a pass"
                self._reason = Refused("CALLED_SEVERAL_TIMES", text)

    def _select(self, module: nn.Module) -> dict[nn.Module, None]:
        found: dict[nn.Module, None] = {}
        for child in module.children():
            visit = self._visits.get(child)
            is_whole = visit is not None and visit.calls == 1 and visit.is_early and 0 < visit.end < self._limit
            found |= {child: None} if is_whole and child in self._rests else self._select(child)
        return found

    def _part(self) -> Part | None:
        entries = self._entries()
        if not any(map(has_parameters, entries)):
            return None
        last = max(self._visits[entry].end for entry in entries)
        inside = {inner for entry in entries for inner in entry.modules()}
        # These do not train, and have a part in what the entries get, or may have.
        later = {module for module, visit in self._visits.items() if visit.begin >= last}
        others = self._rests - inside
        beside = [m for m in self._names if m in others and (inside | later).isdisjoint(m.modules())]
        units = [*entries, *_outermost(beside)]
        counted = {inner for unit in units for inner in unit.modules()}
        rest = [module for module in self._names if counted.isdisjoint(module.modules())]
        modules = [self._layer("what does not train", units), self._layer("what trains", _outermost(rest))]
        return Part(self._model, modules, 1)

    def _layer(self, name: str, units: Sequence[nn.Module]) -> LayerModule:
        return LayerModule(name, tuple(units), tuple(self._names[unit] for unit in units))


# Reasons that a mode can take away.
_MODES = ("BATCH_DEPENDENT", "KEEPS_STATE", "RANDOM")


def _size(modules: Sequence[nn.Module]) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def _versions(module: nn.Module) -> list[tuple[int, int]]:
    return [(id(buffer), buffer._version) for buffer in module._buffers.values() if buffer is not None]


def _generators_of(device: torch.device) -> list[torch.Generator]:
    """Returns the default generators that a pass on this device draws from."""
    found = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        found.append(torch.cuda.default_generators[index])
    return found


def _outermost(modules: Iterable[nn.Module]) -> list[nn.Module]:
    modules = list(dict.fromkeys(modules))
    inside = {inner for module in modules for inner in module.modules() if inner is not module}
    return [module for module in modules if module not in inside]
