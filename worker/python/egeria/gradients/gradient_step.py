"""A GradientStep measures the gradients of one step: the norms of this rank's own, and of the mean of all ranks'."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from egeria.freeze.replicas import Replicas
from egeria.gradients.gradient_norms import Norms, norm, numbers
from egeria.gradients.optimizer_metric import OptimizerMetric
from egeria.gradients.side_pass import CannotRepeat, SidePass
from egeria.model.inputs import GraphError, batch_of

# By which the gradient of a pass on the side may differ from that of training, as a part of its square: a compiled
# model and its eager twin differ in roundings, a dropout that was drawn anew by far more.
_SIDE_PASS_TOLERANCE = 0.05


class Squares(NamedTuple):
    """This rank's part of a gradient reading, by layer module from the first one asked for; see GradientReading in
    controller.proto, with parts of this rank's own samples."""

    mean_of_squares: list[float]
    square_of_mean: list[float]
    parts: int
    samples: int
    progress: Sequence[float] = ()


class GradientStep:
    """The measurement of one training step. See egeria.gradients.gradient_readings for what is measured how.

    Owned by the training thread.

    Attributes:
      compared: whether a pass on the side has given what training's did, in this step or one before.
      seconds: spent inside of training's backward passes.
      in_vain: there was no pass on the side, since some rank could not make it; the same on all ranks.
      result: the reading, from before_step() on; None: there is none.
    """

    def __init__(
        self,
        replicas: Replicas,
        model: nn.Module,
        modules: Sequence[Sequence[nn.Parameter]],
        unfrozen: Sequence[nn.Parameter],
        ranks: int,
        metric: OptimizerMetric,
        compared: bool,
    ):
        self.compared = compared
        self.seconds = 0.0
        self.in_vain = False
        self.result: Squares | None = None
        self._replicas = replicas
        self._model = model
        self._ranks = ranks
        self._metric = metric
        metric.begin()
        self._unfrozen = list(unfrozen)
        frozen = {id(parameter) for parameter in unfrozen}
        self._parameters = [
            [parameter for parameter in module if parameter.requires_grad or id(parameter) in frozen]
            for module in modules
        ]
        self._trained = [parameter for parameter in pytree.tree_leaves(self._parameters) if parameter.requires_grad]
        self._own = Norms(metric)  # norms of this rank's gradient so far
        self._newest: dict[int, Tensor] = {}  # the gradient of the newest pass alone
        self._again = False  # the newest forward pass has had more than one backward pass
        self._again_in_some = False  # or any has
        self._micro: list[Norms] = []  # with one rank: the norms of each pass
        self._mean: Norms | None = None  # norms of the gradients that the backward pass has left
        self._synced: set[int] = set()  # parameters that the averaging pass has reached
        self._averaging = False
        self._queued = False
        self._full = False  # the averaging pass has ended, and another has begun
        self._batches: list[int] = []  # samples of the passes
        self._side_pass: SidePass | None = None
        self._failure: Exception | None = None  # in a backward pass, which must not see it
        self._measured = False
        self._handles: list[RemovableHandle] = []
        try:
            for parameter in self._trained:
                self._handles.append(parameter.register_hook(self._hook_of(parameter)))
        except Exception as error:  # pylint: disable=broad-exception-caught  # the other ranks will wait for this one
            self._failure = error

    # Training calls these.

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._full:
            return
        if self._synced:  # a pass without no_sync() is over; the next one's gradients add to its mean
            self._full = True
            return
        try:
            batch = batch_of(pytree.tree_leaves((args, kwargs)))
        except GraphError:
            batch = 0
        self._batches.append(batch)
        self._newest, self._again = {}, False
        self._micro.append(Norms(self._metric))
        ddp = self._replicas.ddp
        self._averaging = self._ranks > 1 and ddp is not None and ddp.require_backward_grad_sync
        if self._side_pass is not None:
            self._side_pass.close()
            self._side_pass = None
        if self._ranks == 1 or self._unfrozen:
            self._side_pass = SidePass(self._model, args, kwargs, batch)

    def after_forward(self, output: Any) -> None:
        if self._side_pass is not None and not self._full:
            self._side_pass.watch(output)

    def _hook_of(self, parameter: nn.Parameter) -> Callable[[Tensor], None]:
        def take(gradient: Tensor) -> None:
            self._again = self._again or id(parameter) in self._newest
            self._again_in_some = self._again_in_some or self._again
            if self._ranks == 1:
                self._newest[id(parameter)] = self._micro[-1].set(parameter, gradient)
                self._queue()
                return
            # Gradients that micro-batches under no_sync() have left are this rank's own, too.
            before = parameter.grad
            own = self._own.set(parameter, gradient if before is None else before + gradient)
            self._newest[id(parameter)] = own if before is None else norm(gradient)
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
        if self._full or (self._ranks == 1 and len(self._batches) < 2):
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

    # These take and give the results.

    def before_step(self, aside: Callable[[], Any], last: bool = False) -> None:
        """Before each optimizer's step: the first one behind a forward pass counts. With several optimizers, others may
        step behind the one that has ended the step before, or behind that one.

        Args:
          last: the step has ended: other ranks may wait for this one, though it has seen no forward pass.
        """
        if self._measured or not (self._batches or last):
            return
        self._measured = True
        self._unhook()
        side_pass, self._side_pass = self._side_pass, None
        try:
            if self._failure is not None and not (self._unfrozen and self._ranks > 1):
                raise CannotRepeat(f"{type(self._failure).__name__}: {self._failure}")
            if self._unfrozen:
                self.result = self._probe_frozen(side_pass, aside)
            elif self._ranks > 1:
                self.result = self._of_ranks()
            elif len(self._batches) > 1:
                self.result = self._of_micro_batches()
            elif side_pass is not None:
                with aside():
                    self.result = self._of_halves(side_pass)
        except CannotRepeat:
            self.in_vain = self.in_vain or self._ranks == 1
            raise
        finally:
            if side_pass is not None:
                side_pass.close()

    def close(self) -> None:
        self._unhook()
        self._metric.end()
        if self._side_pass is not None:
            self._side_pass.close()
            self._side_pass = None

    def _unhook(self) -> None:
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
            sum(self._batches) if all(self._batches) else 0,
        )

    def _of_micro_batches(self) -> Squares | None:
        parts = len(self._batches)
        if self._mean is None or len(set(self._batches)) > 1:
            return None
        if (
            self._again_in_some
            or len(self._micro) != parts
            or any(
                (parameter in norms) != (parameter in self._micro[0])
                for norms in self._micro
                for parameter in self._trained
            )
        ):
            raise CannotRepeat(
                f"its {parts} forward passes do not go with as many backward passes, so that they are no micro-batches"
            )
        # The step's gradient is the sum of theirs, so that g_p is `parts` times that of micro-batch p.
        of_passes = [norms.sums(self._parameters) for norms in self._micro]
        own = tuple([parts * sum(values) for values in zip(*kind)] for kind in zip(*of_passes))
        return self._squares_of(own, self._mean.sums(self._parameters), parts, sum(self._batches))

    def _of_halves(self, side_pass: SidePass) -> Squares:
        loss = side_pass.loss()
        if loss is not None:
            # Cheaper by a backward pass, and right with batch normalisation.
            if not self.compared:  # parts that pass alone cannot be compared, so a whole pass is, once
                (whole,) = side_pass.gradients(self._parameters, 1)
                self._compare(self._sums_of(whole)[0])
                self.compared = True
            halves = side_pass.gradients(self._parameters, 2, loss)
        else:
            halves = side_pass.gradients(self._parameters, 2)
            self._compare(self._sums_of(pytree.tree_map(torch.add, *halves))[0])
        # A half's gradient here is that of its share of the batch's mean loss. Where one half has a sample more, the
        # estimate of ||E g||^2 is still unbiased, as it is the product of two independent gradients.
        scale = [side_pass.batch / size for size in side_pass.sizes(2)]
        sums = [self._sums_of(half) for half in halves]
        own = tuple(
            [(scale[0] ** 2 * one + scale[1] ** 2 * other) / 2 for one, other in zip(*kind)] for kind in zip(*sums)
        )
        mean = pytree.tree_map(lambda one, other: scale[0] / 2 * one + scale[1] / 2 * other, *halves)
        return self._squares_of(own, self._sums_of(mean), 2, side_pass.batch)

    def _probe_frozen(self, side_pass: SidePass | None, aside: Callable[[], Any]) -> Squares | None:
        """Whatever happens on this rank, it takes part in what the others wait for."""
        if self._ranks == 1:
            if side_pass is None:
                return None
            with aside(), _requiring_gradients(self._unfrozen):
                return self._of_halves(side_pass)
        failure = self._failure
        flat: Tensor | None = None
        own: tuple[list[float], list[float]] = ([], [])
        try:
            if failure is not None:
                raise failure
            if side_pass is None:
                raise CannotRepeat("no forward pass of it has been seen")
            with aside(), _requiring_gradients(self._unfrozen):
                (whole,) = side_pass.gradients(self._parameters, 1)
            own = self._sums_of(whole)
            self._compare(own[0])
            flat = torch.cat([gradient.reshape(-1).float() for gradient in pytree.tree_leaves(whole)])
        except Exception as error:  # pylint: disable=broad-exception-caught  # the other ranks wait for this one
            failure = error
        able = torch.tensor([float(failure is None)], device=self._trained[0].device)
        dist.all_reduce(able, group=self._replicas.process_group)
        self.in_vain = bool(able != self._ranks)
        if failure is not None:
            raise failure if isinstance(failure, CannotRepeat) else CannotRepeat(str(failure)) from failure
        if self.in_vain or flat is None or side_pass is None:
            return None
        dist.all_reduce(flat, group=self._replicas.process_group)
        flat /= self._ranks
        parts = iter(flat.split([parameter.numel() for parameter in pytree.tree_leaves(self._parameters)]))
        means = pytree.tree_map(lambda parameter: next(parts).view(parameter.shape), self._parameters)
        return self._squares_of(own, self._sums_of(means), 1, side_pass.batch)

    def _compare(self, found: Sequence[float]) -> None:
        """Raises CannotRepeat unless the gradients of a pass on the side are, as far as there are others, those of
        training's newest pass."""
        if self._again:
            raise CannotRepeat("one forward pass had several backward passes")
        values = dict(zip(self._newest, numbers(self._newest.values())))
        trained = [sum(values.get(id(parameter), 0.0) ** 2 for parameter in module) for module in self._parameters]
        total = sum(trained)
        known = {id(parameter) for parameter in self._trained}
        for (mine, theirs), module in zip(zip(found, trained), self._parameters):
            if (
                any(id(parameter) in known for parameter in module)
                and not abs(mine - theirs) <= _SIDE_PASS_TOLERANCE * theirs + 1e-6 * total
            ):
                raise CannotRepeat(
                    "a forward pass on the side gives other gradients than training: the loss may "
                    "depend on more than the model's output, or the model on what cannot be put back"
                )

    def _sums_of(self, gradients: Sequence[Sequence[Tensor]]) -> tuple[list[float], list[float]]:
        """Norms.sums() of gradients that are ordered as the parameters are."""
        norms = Norms(self._metric)
        for parameter, gradient in zip(pytree.tree_leaves(self._parameters), pytree.tree_leaves(gradients)):
            norms.set(parameter, gradient)
        return norms.sums(self._parameters)

    def _squares_of(
        self, own: tuple[list[float], list[float]], mean: tuple[list[float], list[float]], parts: int, samples: int
    ) -> Squares:
        """Splits this rank's samples into `parts`: the average over them, and the mean over all ranks' parts."""
        of_all = parts * self._ranks
        progress = (
            [(of_all * square - squares) / (of_all - 1) for squares, square in zip(own[1], mean[1])]
            if of_all > 1
            else []
        )
        return Squares(own[0], mean[0], parts, samples, progress)


@contextlib.contextmanager
def _requiring_gradients(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """For a pass on the side through frozen layers."""
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)
