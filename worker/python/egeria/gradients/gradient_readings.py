"""GradientReadings tells how much of the gradients is signal, from gradients that training computes anyway.

The samples are in N equal parts, and g_p is the gradient of part p's mean loss. Where the parts are told apart,
mean_p ||g_p||^2 and ||mean_p g_p||^2 give an unbiased estimate of ||E g||^2 (docs/reference/policies.md). The parts
are, in this order of preference:

- those of the ranks, under DistributedDataParallel: each rank's norms are taken in tensor hooks, before the reducer
  sees a gradient, and those of the mean when the backward pass has ended, before anything else can change it;
- with one rank, the micro-batches of an accumulated step;
- with one rank and one forward pass in a step, steps in a row (egeria.gradients.successive_steps).

No pass is made for a reading, so that frozen layer modules have none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from egeria.freeze.switcher import Switcher
from egeria.gradients.gradient_norms import Squares
from egeria.gradients.gradient_step import GradientStep
from egeria.gradients.optimizer_metric import OptimizerMetric
from egeria.gradients.successive_steps import SuccessiveSteps
from egeria.model.modules import LayerModule
from egeria.tell_once import TellOnce
from egeria.time_ledger import TimeLedger

# Communication hooks of torch that average, if in fewer bits; others give something else than the mean.
_AVERAGING_HOOKS = {"allreduce_hook", "fp16_compress_hook", "bf16_compress_hook"}


class GradientReadings:
    """Measures the steps that a controller asks for, without a trace on training, and offers what was found. Whatever
    fails on this rank costs one reading, is said once, and the rank goes on with the others. Owned by the training
    thread."""

    def __init__(self, switcher: Switcher, ledger: TimeLedger, tell: TellOnce):
        self._switcher = switcher
        self._ledger = ledger
        self._tell = tell
        self._metric = OptimizerMetric(switcher.optimizers)
        self._request: Any = None  # the request that the step under way answers
        self._step: GradientStep | None = None
        self._passes = 0  # the number of forward passes of the step that was measured last; 0 before there is one
        self._result: Squares | None = None
        self._successive: SuccessiveSteps | None = None  # a reading of several steps that is under way
        self._readings = 0  # the number of those of several steps
        self._modules: Sequence[LayerModule] = ()
        self._first = 0  # the first one of them that is measured
        self._parameters: list[list[nn.Parameter]] = []  # theirs, since finding them takes a while

    def begin(self, request: Any) -> None:
        """The step that begins is measured if there is a request, or a reading of several steps under way."""
        self._end_step()
        if request is None and self._successive is not None:
            request = self._request
        self._request = request
        if request is not None:
            with self._measuring():
                self._begin_step(request.first_module)

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._step is not None:
            with self._measuring():
                self._step.before_forward(args, kwargs)

    def before_step(self) -> None:
        """Before each optimizer's step, when the weights are still those of the gradients: the first one behind a
        forward pass counts. With several optimizers, others may step behind the one that has ended the step before."""
        step = self._step
        if step is None or not step.batches:
            return
        self._step = None
        self._passes = len(step.batches)
        self._ledger.add_spent("gradients", step.seconds)
        with self._measuring():
            self._result = step.squares()
            if self._result is None and self._switcher.ranks == 1:
                self._result = self._add(sum(step.batches))
            else:
                self._successive = None

    def offer(self, native: Any, step: int) -> None:
        """After the optimizer's step: tells the controller what was found."""
        result, self._result = self._result, None
        if result is not None:
            with self._measuring():
                native.offer_gradients(self._request, step, *result)

    def end(self) -> None:
        """Nothing is measured any more until begin(), and no hook is left behind."""
        self._end_step()
        self._request = self._successive = None

    def _add(self, batch: int) -> Squares | None:
        """Takes this step into a reading of several steps, which is returned when it is complete."""
        successive, self._successive = self._successive, None  # where this fails, there is none any more
        if successive is None:
            successive = SuccessiveSteps(self._trained(), self._metric, self._readings)
            self._readings += 1
        result = successive.add(batch)
        if not successive.complete:
            self._successive = successive
        return result

    def _begin_step(self, first: int) -> None:
        switcher = self._switcher
        if first < switcher.prefix:  # frozen parameters have no gradients
            self._successive = None
            return
        reason = self._cannot(switcher.ranks)
        if reason is not None:
            self._tell.note(reason)
            return
        if self._modules is not switcher.modules or self._first != first:
            self._modules, self._first = switcher.modules, first
            self._parameters = [[parameter for _, parameter in module.parameters()] for module in self._modules[first:]]
            self._successive = None
        # A step of one pass has nothing to tell apart. Where others follow, the step behind tells it.
        has_parts = switcher.ranks > 1 or self._passes != 1
        self._step = GradientStep(switcher.replicas, self._trained(), switcher.ranks, self._metric, has_parts)

    def _trained(self) -> list[list[nn.Parameter]]:
        return [[parameter for parameter in module if parameter.requires_grad] for module in self._parameters]

    def _end_step(self) -> None:
        step, self._step = self._step, None
        self._result = None
        if step is not None:  # it has taken no optimizer step that counts
            step.close()
            self._successive = None
        self._metric.end()

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
