"""A StepFollower finds the steps of a training, whichever optimizers make them, and notices where it finds none."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from egeria.freeze.keeper import Keeper
from egeria.model.optimizers import TrainingOptimizers
from egeria.model.pass_hooks import is_capturing
from egeria.tell_once import TellOnce
from egeria.training.session_hooks import BeforeStepHook, StepHook
from egeria.training.step_clock import StepClock
from egeria.training.watchdog import Seen, Watchdog

_NOT_KEPT = "whether frozen layers stay as they are cannot be told"
_STEP = Optimizer.profile_hook_step(Optimizer.step).__code__  # around step() of every optimizer


class StepFollower:
    """Hooks on all optimizers of the process: one that is made in mid-training is followed, too. Owned by the training
    thread; optimizers that step inside the backward pass may do so in another.
    """

    def __init__(
        self,
        optimizers: TrainingOptimizers,
        watchdog: Watchdog,
        keeper: Keeper,
        tell: TellOnce,
        before: Callable[[], None],
        end: Callable[[], None],
        lose_track: Callable[[bool], None],
    ):
        """
        Args:
          before: called before an optimizer of this training steps.
          end: called where a training step has ended.
          lose_track: called once the weights have moved without steps, with whether a training pass is about to begin,
            as it then is on all ranks.
        """
        self._optimizers = optimizers
        self._clock = StepClock(optimizers[0])
        self._watchdog = watchdog
        self._keeper = keeper
        self._tell = tell
        self._before = before
        self._end = end
        self._lose_track = lose_track
        self._handles = [
            register_optimizer_step_pre_hook(StepHook(self._begin_step)),
            register_optimizer_step_pre_hook(BeforeStepHook(self.before_step)),
            register_optimizer_step_post_hook(StepHook(self.after_step)),
        ]

    @property
    def under_way(self) -> int:
        """Steps that are made and have not ended: 0 or 1."""
        return self._clock.under_way

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _begin_step(self, _: Optimizer) -> None:
        """Before the passes in its closure."""
        with self._tell.guard(_NOT_KEPT):
            if not (in_backward() or is_capturing()):
                self._keeper.before_step()

    def before_step(self, optimizer: Optimizer) -> Callable[[], None] | None:
        """Returns what is to be called before this optimizer steps, behind its closure; None: it is another model's."""
        ours = False
        with self._tell.guard("an optimizer could not be followed"):
            ours = not in_backward() and self._optimizers.take(optimizer)
        return self._before if ours else None

    def after_step(self, optimizer: Optimizer) -> None:
        if is_capturing():  # the step is made when the graph is replayed
            return
        with self._tell.guard(_NOT_KEPT):
            if not in_backward():
                self._keeper.after_step()
        ended = 0
        with self._tell.guard("an optimizer could not be followed"):
            if self._optimizers.take(optimizer) and not _is_inside_its_own(optimizer) and not _skipped(optimizer):
                ended = self._clock.stepped(optimizer)
                self._watchdog.stepped()
        for _ in range(ended):
            self._end()

    def begin_pass(self) -> None:
        """Before a training forward pass, outside of the model's wrapper."""
        if self._clock.begin_pass():
            self._end()
        with self._tell.guard("a pass could not be followed"):
            self._judge(self._watchdog.begin_pass(), at_pass=True)

    def add_loss(self) -> None:
        """The user's script reports a loss."""
        self._clock.progress()
        self._judge(self._watchdog.add_loss(), at_pass=False)

    def _judge(self, seen: Seen | None, at_pass: bool) -> None:
        if seen is Seen.MOVED:
            self._lose_track(at_pass)
        elif seen is Seen.IDLE:
            self._tell(
                "[NO_STEPS] losses are reported, but no optimizer is seen to step, and the weights stay as they are; "
                "give attach() the model and the optimizer that this training uses, or look why its steps are skipped"
            )


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _is_inside_its_own(optimizer: Optimizer) -> bool:
    """Whether the optimizer's step() that has ended was called by its own step(), as super().step() is."""
    if sum("step" in vars(kind) for kind in type(optimizer).__mro__) < 3:  # torch's base has one, too
        return False
    frame, found = sys._getframe(), 0
    while frame is not None and found < 2:
        found += frame.f_code is _STEP and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return found > 1


def _skipped(optimizer: Optimizer) -> bool:
    """Whether a GradScaler has told a fused optimizer to skip this step. On an accelerator asking would wait for it, so
    that such a step counts there."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, Tensor) and found.device.type == "cpu" and bool(found)
