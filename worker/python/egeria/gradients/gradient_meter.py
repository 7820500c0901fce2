"""A GradientMeter reads how much of the gradients is signal, from norms that training computes anyway.

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

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from egeria.freeze.replicas import Replicas
from egeria.gradients.gradient_step import GradientStep, Squares
from egeria.gradients.optimizer_metric import OptimizerMetric
from egeria.gradients.side_pass import CannotRepeat
from egeria.model.modules import LayerModule

# Steps in a row in which a pass on the side was tried in vain: then none is tried again while the same are frozen.
_MOST_IN_VAIN = 4

# Communication hooks of torch that average, if in fewer bits; others give something else than the mean.
_AVERAGING_HOOKS = {"allreduce_hook", "fp16_compress_hook", "bf16_compress_hook"}


class GradientMeter:
    """Measures the gradients of the steps that it is told to, without a trace on training.

    Owned by the training thread.
    """

    def __init__(
        self,
        replicas: Replicas,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        tell: Callable[[str, Exception | None], None],
    ):
        """`model` is unwrapped; `tell` is called with each reason for which there is no reading, in words and as the
        exception."""
        self._replicas = replicas
        self._model = model
        self._tell = tell
        self._metric = OptimizerMetric(optimizers)
        self._step: GradientStep | None = None
        self._modules: Sequence[LayerModule] = ()
        self._parameters: list[list[nn.Parameter]] = []  # of the modules, kept since finding them takes a while
        self._compared = False  # whether a pass on the side has given what training's did
        self._in_vain = 0  # steps in a row
        self._unfrozen = 0  # parameters that were looked at in them

    def begin(self, modules: Sequence[LayerModule], first: int, unfrozen: Sequence[nn.Parameter], ranks: int) -> None:
        """The step that begins is measured.

        Args:
          modules: all layer modules.
          first: the first that is asked for.
          unfrozen: parameters of the frozen ones among those asked for that would train again if unfrozen.
          ranks: that train the model.
        """
        self.end()
        reason = self._cannot(ranks)
        if reason is not None:
            self._tell(reason, None)
            return
        if modules is not self._modules:
            self._modules = modules
            self._parameters = [[parameter for _, parameter in module.parameters()] for module in modules]
        if len(unfrozen) != self._unfrozen:
            self._in_vain, self._unfrozen = 0, len(unfrozen)
        if (unfrozen or ranks == 1) and self._in_vain >= _MOST_IN_VAIN:
            return
        self._step = GradientStep(
            self._replicas, self._model, self._parameters[first:], unfrozen, ranks, self._metric, self._compared
        )

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._step is not None:
            self._step.before_forward(args, kwargs)

    def after_forward(self, output: Any) -> None:
        if self._step is not None:
            self._step.after_forward(output)

    def before_step(self, aside: Callable[[], Any], last: bool = False) -> None:
        """Is called before an optimizer's step, when the weights are still those of the gradients. It is a collective
        where layer modules are frozen and there are several ranks.

        Args:
          aside: gives a context in which passes of the model are not training's.
          last: once more, when the step has ended.
        """
        try:
            if self._step is not None:
                self._step.before_step(aside, last)
        except CannotRepeat as error:
            self._tell("a step tells nothing of its gradients", error)

    def take_seconds(self) -> float:
        """Spent inside of the backward passes of the step that is measured, since this was last asked."""
        if self._step is None:
            return 0.0
        seconds, self._step.seconds = self._step.seconds, 0.0
        return seconds

    def end(self) -> Squares | None:
        """After the step: what has been found. Leaves no hook behind."""
        step, self._step = self._step, None
        if step is None:
            return None
        step.close()
        self._compared = step.compared
        self._in_vain = self._in_vain + 1 if step.in_vain else 0
        return step.result

    def _cannot(self, ranks: int) -> str | None:
        """Why the gradients of the ranks say nothing in this training."""
        kind = self._replicas.kind
        if kind == "fsdp2":
            return "under FSDP2 gradients are not measured, as no rank has them whole"
        if ranks == 1:
            return None
        if kind == "plain":
            return "gradients are not measured, as they are not averaged by DistributedDataParallel"
        hooks = [getattr(hook, "__name__", type(hook).__name__) for hook, _ in self._replicas.ddp._comm_hooks]
        strange = [name for name in hooks if name not in _AVERAGING_HOOKS]
        return (
            f"gradients are not measured, as {strange[0]} may give something else than their mean" if strange else None
        )
