"""StepShares measures, while the first steps run, which part of a step's time freezing a layer module saves."""

from __future__ import annotations

import collections
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from egeria.model.isolation import device_of, has_compiled
from egeria.model.modules import LayerModule
from egeria.model.pass_hooks import is_capturing

# Where a weight in front trains on, gradients still come back through frozen layers: half of their backward pass.
_BESIDE_ACTIVE = 0.5
_MOST_STEPS = 64  # the newest; a link may be wanted for long


@dataclasses.dataclass(frozen=True)
class _Step:
    """The seconds that one step took. `backward`: by parameter, which is by its id."""

    backward: dict[int, float]
    optimizer: float
    total: float

    def share(self, parameters: set[int], passed: float, part: float) -> float:
        """The share of the step that is saved where these parameters are frozen: `passed` of their backward pass, and
        `part` of the optimizer's step."""
        backward = sum(self.backward.get(parameter, 0.0) for parameter in parameters)
        return (passed * backward + part * self.optimizer) / self.total


class StepShares:
    """Measures steps passively: the time between the arrivals of two gradients in a backward pass is taken for what the
    second one's layer module costs there, and the optimizer's step is shared out by the number of parameters. On a CPU
    the whole backward pass is shared out by the processor time between arrivals, since communication beside it makes
    some layers wait by chance. Further savings of freezing (communication that does not overlap, memory) are not
    counted, nor is the forward pass, which frozen layers still need without a cache. The median of the steps counts,
    since the first ones are slow. From a layer module on that holds an active weight of a later one, half of the
    backward pass counts: gradients still come back to that weight.

    Owned by the training thread.

    Attributes:
      known: by the layer module's name, part of the time of a step with nothing frozen, 0..1: from a checkpoint, or as
        the ranks have agreed on it.
    """

    def __init__(self, model: nn.Module, own_seconds: Callable[[], float] = lambda: 0.0):
        """
        Args:
          own_seconds: returns what Egeria has taken of the training thread's time so far, which is no part of a step.
        """
        self.known: dict[str, float] = {}
        self._model = model
        self._own_seconds = own_seconds
        self._mark = _marker(device_of(model))
        self._processor = _processor_clock(device_of(model))
        self._steps: collections.deque[_Step] = collections.deque(maxlen=_MOST_STEPS)
        self._own_before = 0.0  # Egeria's own seconds when the step under way began
        # The step under way has these: a parameter, or one of the numbers below; the time; the thread's processor time.
        self._marks: list[tuple[int, Any, float]] = []
        self._handles: list[RemovableHandle] = []

    def begin(self, modules: Sequence[LayerModule]) -> None:
        """The step that begins is measured; nothing is frozen in it."""
        self._unhook()
        if has_compiled(self._model):
            return  # all gradients of a compiled graph arrive together
        for module in modules:
            for _, parameter in module.parameters():
                if parameter.requires_grad and not hasattr(parameter, "device_mesh"):
                    self._handles.append(parameter.register_hook(self._hook_of(id(parameter))))
        self._own_before = self._own_seconds()
        self._marks = []
        if self._handles:
            self._append(_BEGIN)

    def after_forward(self) -> None:
        self._note(_BACKWARD)

    def before_step(self) -> None:
        self._note(_OPTIMIZER)

    def end(self) -> None:
        self._unhook()
        if not self._marks:
            return
        self._append(_END)
        marks, self._marks = self._marks, []
        backward: dict[int, float] = {}
        processor: dict[int, float] = {}
        optimizer = 0.0
        for (before, earlier, worked_before), (what, later, worked) in zip(marks, marks[1:]):
            seconds = _seconds(earlier, later)
            if before == _OPTIMIZER and what in (_OPTIMIZER, _END):
                optimizer += seconds
            elif what not in (_BACKWARD, _OPTIMIZER, _END):
                backward[what] = backward.get(what, 0.0) + seconds
                processor[what] = processor.get(what, 0.0) + max(0.0, worked - worked_before)
        if (all_work := sum(processor.values())) > 0:
            part = sum(backward.values()) / all_work
            backward = {parameter: part * seconds for parameter, seconds in processor.items()}
        own = self._own_seconds() - self._own_before
        total = max(sum(backward.values()) + optimizer, _seconds(marks[0][1], marks[-1][1]) - own)
        if total > 0:
            self._steps.append(_Step(backward, optimizer, total))

    def of(self, modules: Sequence[LayerModule]) -> list[float]:
        """The shares of layer modules; 0 where nothing is known of them."""
        counts = [sum(parameter.numel() for _, parameter in module.parameters()) for module in modules]
        every = max(1, sum(counts))
        shares = []
        passed = 1.0  # the part of a backward pass that is saved
        for module, count in zip(modules, counts):
            if any(tensor.requires_grad for name, tensor in module.tensors() if name in module.elsewhere):
                passed = _BESIDE_ACTIVE
            parameters = {id(parameter) for _, parameter in module.parameters()}
            measured = [
                step.share(parameters, passed, count / every)
                for step in self._steps
                if parameters & step.backward.keys()
            ]
            if measured:
                shares.append(min(1.0, max(0.0, statistics.median(measured))))
            else:
                shares.append(self.known.get(module.name, 0.0))
        return shares

    def close(self) -> None:
        self._unhook()
        self._marks = []

    def _hook_of(self, parameter: int) -> Callable[[Tensor], None]:
        return lambda _: self._note(parameter)

    def _note(self, what: int) -> None:
        if self._marks and not is_capturing():
            self._append(what)

    def _append(self, what: int) -> None:
        self._marks.append((what, self._mark(), self._processor()))

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


# These are marked besides parameters, whose ids are positive.
_BEGIN, _BACKWARD, _OPTIMIZER, _END = -1, -2, -3, -4


def _marker(device: torch.device) -> Callable[[], Any]:
    """A function that marks the present: by the processor's clock, or by an event of the accelerator's stream."""
    if device.type == "cpu":
        return time.perf_counter

    def event() -> torch.Event:
        made = torch.Event(device=device, enable_timing=True)
        made.record()
        return made

    return event


def _processor_clock(device: torch.device) -> Callable[[], float]:
    """The processor time of this thread, which runs the backward pass too; 0 where an accelerator does the work."""
    return time.thread_time if device.type == "cpu" else lambda: 0.0


def _seconds(begin: Any, end: Any) -> float:
    if isinstance(begin, float):
        return end - begin
    end.synchronize()
    return begin.elapsed_time(end) / 1000
