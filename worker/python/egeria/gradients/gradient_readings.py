"""GradientReadings tells how much of the gradients is signal, from norms that training computes anyway.

The samples of a step are in N equal parts, and g_p is the gradient of part p's mean loss. Where the parts are told
apart, mean_p ||g_p||^2 and ||mean_p g_p||^2 give an unbiased estimate of ||E g||^2 (docs/policies.md). The parts are,
in this order of preference:

- those of the ranks, under DistributedDataParallel: each rank's norms are taken in tensor hooks, before the reducer
  sees a gradient, and those of the mean when the backward pass has ended, before anything else can change it;
- with one rank, the micro-batches of an accumulated step;
- with one rank and one backward pass, two halves of the batch, by a pass on the side
  (egeria.gradients.side_pass). So are the gradients of frozen layer modules, of which nothing else is known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from egeria.freeze.switcher import Switcher
from egeria.gradients.gradient_step import GradientStep, Squares
from egeria.gradients.optimizer_metric import OptimizerMetric
from egeria.model.modules import LayerModule
from egeria.tell_once import TellOnce
from egeria.time_ledger import TimeLedger

# After so many steps in a row in which a pass on the side was tried in vain, none is tried while the same are frozen.
_MOST_IN_VAIN = 4

# Communication hooks of torch that average, if in fewer bits; others give something else than the mean.
_AVERAGING_HOOKS = {"allreduce_hook", "fp16_compress_hook", "bf16_compress_hook"}


class GradientReadings:
    """Measures the steps that a controller asks for, without a trace on training, and offers what was found. Whatever
    fails on this rank costs one reading, is said once, and the rank goes on with the others. Owned by the training
    thread.

    Attributes:
      aside: whether a forward pass that is under way is none of training's.
    """

    def __init__(
        self,
        switcher: Switcher,
        model: nn.Module,
        ledger: TimeLedger,
        tell: TellOnce,
        without_cache: Callable[[], contextlib.AbstractContextManager[None]],
    ):
        """`without_cache` gives a context in which passes of the model are not skipped."""
        self.aside = False
        self._switcher = switcher
        self._model = model
        self._ledger = ledger
        self._tell = tell
        self._without_cache = without_cache
        self._metric = OptimizerMetric(switcher.optimizers)
        self._request: Any = None  # the request that the step under way answers
        self._step: GradientStep | None = None
        self._modules: Sequence[LayerModule] = ()
        self._parameters: list[list[nn.Parameter]] = []  # the modules', since finding them takes a while
        self._compared = False  # whether a pass on the side has given what training's did
        self._in_vain = 0  # steps in a row
        self._unfrozen = 0  # parameters that were looked at in them

    def begin(self, request: Any) -> None:
        """The step that begins is measured if there is a request."""
        self._end_step()
        self._request = request
        if request is not None:
            with self._measuring():
                self._begin_step(request.first_module)

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._step is not None:
            with self._measuring():
                self._step.before_forward(args, kwargs)

    def after_forward(self, output: Any) -> None:
        """After any forward pass, of training or not."""
        if self._step is not None and not self.aside:
            with self._measuring():
                self._step.after_forward(output)

    def before_step(self) -> None:
        """Before an optimizer's step, when the weights are still those of the gradients. It is a collective where layer
        modules are frozen and there are several ranks."""
        if self._step is not None:
            seconds, self._step.seconds = self._step.seconds, 0.0
            self._ledger.add_spent("gradients", seconds)
            with self._measuring():
                self._step.before_step(self._going_aside)

    def offer(self, native: Any, step: int) -> None:
        """After the optimizer's step: tells the controller what was found."""
        request, self._request = self._request, None
        if self._step is not None:
            with self._measuring():
                self._step.before_step(self._going_aside, last=True)
            with self._measuring():
                if (found := self._end_step()) is not None:
                    native.offer_gradients(request, step, *found)

    def end(self) -> None:
        """Nothing is measured any more until begin(), and no hook is left behind."""
        self._request = None
        self._end_step()

    def _begin_step(self, first: int) -> None:
        ranks, modules, unfrozen = self._switcher.ranks, self._switcher.modules, self._switcher.unfrozen_by(first)
        reason = self._cannot(ranks)
        if reason is not None:
            self._tell(reason)
            return
        if modules is not self._modules:
            self._modules = modules
            self._parameters = [[parameter for _, parameter in module.parameters()] for module in modules]
        if len(unfrozen) != self._unfrozen:
            self._in_vain, self._unfrozen = 0, len(unfrozen)
        if (unfrozen or ranks == 1) and self._in_vain >= _MOST_IN_VAIN:
            return
        parameters = self._parameters[first:]
        self._step = GradientStep(
            self._switcher.replicas, self._model, parameters, unfrozen, ranks, self._metric, self._compared
        )

    def _end_step(self) -> Squares | None:
        step, self._step = self._step, None
        if step is None:
            return None
        step.close()
        self._compared = step.compared
        self._in_vain = self._in_vain + 1 if step.in_vain else 0
        return step.result

    def _cannot(self, ranks: int) -> str | None:
        """Why the gradients of the ranks say nothing in this training."""
        replicas = self._switcher.replicas
        if replicas.kind == "fsdp2":
            return "under FSDP2 gradients are not measured, as no rank has them whole"
        if ranks == 1:
            return None
        if replicas.kind == "plain":
            return "gradients are not measured, as they are not averaged by DistributedDataParallel"
        hooks = [getattr(hook, "__name__", type(hook).__name__) for hook, _ in replicas.ddp._comm_hooks]
        strange = [name for name in hooks if name not in _AVERAGING_HOOKS]
        return (
            f"gradients are not measured, as {strange[0]} may give something else than their mean" if strange else None
        )

    @contextlib.contextmanager
    def _measuring(self) -> Iterator[None]:
        with self._tell.guard("a step tells nothing of its gradients"), self._ledger.spend("gradients"):
            yield

    @contextlib.contextmanager
    def _going_aside(self) -> Iterator[None]:
        self.aside = True
        try:
            with self._without_cache():
                yield
        finally:
            self.aside = False
