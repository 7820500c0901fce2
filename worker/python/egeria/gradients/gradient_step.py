"""A GradientStep measures the gradients of one step: the norms of this rank's own, and of the mean of all parts'."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from egeria.freeze.replicas import Replicas
from egeria.gradients.gradient_norms import Norms, Squares
from egeria.gradients.optimizer_metric import OptimizerMetric
from egeria.model.inputs import GraphError, batch_of


class GradientStep:
    """The measurement of one training step. See egeria.gradients.gradient_readings for what is measured how.

    Owned by the training thread.

    Attributes:
      seconds: spent inside of training's backward passes.
      batches: samples of the forward passes; 0 where that is not known.
    """

    def __init__(
        self,
        replicas: Replicas,
        modules: Sequence[Sequence[nn.Parameter]],
        ranks: int,
        metric: OptimizerMetric,
        has_parts: bool,
    ):
        """`modules` has the parameters that train, by layer module. Without `has_parts` only the batches are counted,
        since a norm of each gradient would take time for nothing."""
        self.seconds = 0.0
        self.batches: list[int] = []
        self._replicas = replicas
        self._ranks = ranks
        self._metric = metric
        metric.begin()
        self._parameters = modules
        self._trained = pytree.tree_leaves(modules)
        self._own = Norms(metric)  # norms of this rank's gradient so far
        self._again = False  # some forward pass has had more than one backward pass
        self._micro: list[Norms] = []  # with one rank: the norms of each pass
        self._mean: Norms | None = None  # norms of the gradients that the backward pass has left
        self._synced: set[int] = set()  # parameters that the averaging pass has reached
        self._averaging = False
        self._queued = False
        self._full = False  # the averaging pass has ended, and another has begun
        self._failure: Exception | None = None  # in a backward pass, which must not see it
        self._handles: list[RemovableHandle] = []
        if has_parts:
            self._handles = [parameter.register_hook(self._hook_of(parameter)) for parameter in self._trained]

    # Training calls these.

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._full:
            return
        if self._synced:  # a pass without no_sync() is over; the next one's gradients add to its mean
            self._full = True
            return
        try:
            batch = batch_of(args, kwargs)
        except GraphError:
            batch = 0
        self.batches.append(batch)
        self._micro.append(Norms(self._metric))
        ddp = self._replicas.ddp
        self._averaging = self._ranks > 1 and ddp is not None and ddp.require_backward_grad_sync

    def _hook_of(self, parameter: nn.Parameter) -> Callable[[Tensor], None]:
        def take(gradient: Tensor) -> None:
            if self._ranks == 1:
                self._again = self._again or parameter in self._micro[-1]
                self._micro[-1].set(parameter, gradient)
                self._queue()
                return
            # Gradients that micro-batches under no_sync() have left are this rank's own, too.
            before = parameter.grad
            self._own.set(parameter, gradient if before is None else before + gradient)
            if self._averaging:
                self._synced.add(id(parameter))
                self._queue()

        def hook(gradient: Tensor) -> None:
            if self._full or self._failure is not None:
                return
            begin = time.perf_counter()  # a context manager would take longer than take()
            try:
                take(gradient)
            except Exception as error:  # pylint: disable=broad-exception-caught
                self._failure = error
            self.seconds += time.perf_counter() - begin

        return hook

    def _queue(self) -> None:
        """Has the norms taken when the backward pass has ended: behind the callbacks that are queued already or in
        this pass, among them DistributedDataParallel's own, and behind those that these queue."""
        if self._queued:
            return
        self._queued = True
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: engine.queue_callback(lambda: engine.queue_callback(self._pass_ended)))

    def _pass_ended(self) -> None:
        self._queued = False
        if self._full or (self._ranks == 1 and len(self.batches) < 2):
            return
        begin = time.perf_counter()
        try:
            self._mean = Norms(self._metric)
            for parameter in self._trained:
                if parameter.grad is not None:
                    self._mean.set(parameter, parameter.grad)
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._failure = error
        self.seconds += time.perf_counter() - begin

    # These give the results.

    def squares(self) -> Squares | None:
        """The reading of this step alone, after its backward passes: of ranks or micro-batches. None where it has one
        part, or parts that cannot be told apart. It raises what has failed in the backward passes."""
        self.close()
        if self._failure is not None:
            raise self._failure
        return self._of_ranks() if self._ranks > 1 else self._of_micro_batches()

    def close(self) -> None:
        """Lets go of the parameters. Idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _of_ranks(self) -> Squares | None:
        if self._mean is None or not self._synced:
            return None
        return self._squares_of(
            self._own.sums(self._parameters),
            self._mean.sums(self._parameters),
            1,
            sum(self.batches) if all(self.batches) else 0,
        )

    def _of_micro_batches(self) -> Squares | None:
        parts = len(self.batches)
        if self._mean is None or len(set(self.batches)) > 1:
            return None
        if self._again or any(
            (parameter in norms) != (parameter in self._micro[0])
            for norms in self._micro
            for parameter in self._trained
        ):
            return None  # its forward passes do not go with as many backward passes
        # The step's gradient is the sum of theirs, so that g_p is `parts` times that of micro-batch p.
        of_passes = [norms.sums(self._parameters) for norms in self._micro]
        own = tuple([parts * sum(values) for values in zip(*kind)] for kind in zip(*of_passes))
        return self._squares_of(own, self._mean.sums(self._parameters), parts, sum(self.batches))

    def _squares_of(
        self, own: tuple[list[float], list[float]], mean: tuple[list[float], list[float]], parts: int, samples: int
    ) -> Squares:
        """Splits this rank's samples into `parts`: the average over them, and the mean over all ranks' parts."""
        of_all = parts * self._ranks
        progress = [(of_all * square - squares) / (of_all - 1) for squares, square in zip(own[1], mean[1])]
        return Squares(own[0], mean[0], parts, samples, progress)
