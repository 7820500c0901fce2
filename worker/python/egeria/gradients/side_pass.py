"""A SidePass takes a step's forward pass once more, on the side, for gradients that the step itself does not give."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from egeria.gradients.cross_entropy import CrossEntropy
from egeria.model.inputs import GraphError, RootInputs
from egeria.model.isolation import RandomStates, device_of, restored
from egeria.model.outputs import tensors_in


class CannotRepeat(Exception):
    """Why a step tells nothing of its gradients; the text is for people."""


class SidePass:
    """Keeps what one training forward pass of a model was called with, and what the backward pass gave for its
    outputs; then takes both passes again, for a part of the samples at a time.

    The loss need not be known: the gradient of the loss by the outputs is kept, and with the rows of all other samples
    set to zero it is that of one part's share of the loss. So the outputs that reach the
    loss must have the samples as their first dimension.

    The forward pass is the same for all parts then, with the whole batch. Where the loss of other outputs is known,
    because it is recognised as cross entropy, each part passes alone instead, as the ranks' parts do: that is
    cheaper, and where batch normalisation ties the samples together, the gradients of two halves under common
    statistics would have more in common than the samples have (docs/adr/0016).

    The pass on the side begins with the random state of training's, in the same modes and under the same autocast; the
    model, its gradients and all random states are afterwards what they were (egeria.model.isolation.restored).

    Attributes:
      batch: samples of the pass.
    """

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], batch: int):
        """Before the forward pass of the unwrapped model. Copies its arguments."""
        self.batch = batch
        self._model = model
        self._failure: str | None = None
        self._inputs: RootInputs | None = None
        self._watched: list[Tensor] = []  # copies of the outputs
        self._gradients: dict[int, Tensor] = {}  # by the output's place
        self._handles: list[RemovableHandle] = []
        try:
            self._inputs = RootInputs(args, kwargs, batch)
        except GraphError as error:
            self._failure = str(error)
        self._autocast = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in sorted({"cpu", device_of(model).type})
        ]
        self._random = RandomStates(device_of(model))
        self._random.__enter__()

    def watch(self, output: Any) -> None:
        """After the forward pass: keeps the gradients that its outputs will get."""
        for place, tensor in enumerate(self._candidates(output, self.batch)):
            self._watched.append(tensor.detach().clone())
            self._handles.append(tensor.register_hook(lambda gradient, place=place: self._keep(place, gradient)))

    def sizes(self, parts: int) -> list[int]:
        """Samples in each of `parts` parts, which are as equal as can be."""
        bounds = [self.batch * part // parts for part in range(parts + 1)]
        return [end - begin for begin, end in zip(bounds, bounds[1:])]

    def loss(self) -> CrossEntropy | None:
        """The loss as a function of the outputs, after the backward pass; None where it is not recognised."""
        if len(self._gradients) != 1:
            return None
        ((place, gradient),) = self._gradients.items()
        return CrossEntropy.recognised(self._watched[place], gradient)

    def gradients(
        self, modules: Sequence[Sequence[nn.Parameter]], parts: int, loss: CrossEntropy | None = None
    ) -> list[list[list[Tensor]]]:
        """After the backward pass, before the optimizer's step.

        Args:
          modules: parameters, all of which require a gradient now.
          parts: the batch is cut into as many, of consecutive samples; see sizes().
          loss: each part passes without the others, and has this loss; None: all pass at once.

        Returns:
          For each part, for each module, for each parameter: the gradient of that part's share of the loss.

        Raises:
          CannotRepeat: the outputs that reach the loss have no rows, or there are too few, or the pass fails.
        """
        if self._inputs is None:
            raise CannotRepeat(self._failure or "its arguments are not known")
        if self.batch < parts:
            raise CannotRepeat(f"{self.batch} samples are too few for {parts} parts")
        if not self._gradients:
            raise CannotRepeat("no output of the model has a row for each sample and reaches the loss")
        parameters, structure = pytree.tree_flatten(modules)
        found: list[list[list[Tensor]]] = []
        begin = 0
        with restored(self._model), self._as_then():
            try:
                outputs = self._outputs(0, self.batch) if loss is None else []
                for size in self.sizes(parts):
                    end = begin + size
                    if loss is None:
                        seeds = self._masked(begin, end)
                    else:
                        outputs = self._outputs(begin, end)
                        seeds = [loss.gradient(outputs[0], begin, end)]
                    flat = torch.autograd.grad(
                        outputs, parameters, seeds, allow_unused=True, retain_graph=loss is None and end < self.batch
                    )
                    begin = end
                    flat = [
                        torch.zeros_like(parameter) if gradient is None else gradient.detach()
                        for parameter, gradient in zip(parameters, flat)
                    ]
                    found.append(pytree.tree_unflatten(flat, structure))
            except Exception as error:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
                raise CannotRepeat(f"its forward pass cannot be repeated: {type(error).__name__}: {error}") from error
        return found

    def close(self) -> None:
        """Lets go of everything. Idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._watched = []
        self._gradients = {}
        self._inputs = None

    def _outputs(self, begin: int, end: int) -> list[Tensor]:
        """The outputs of a pass with samples begin..end-1 that reach the loss."""
        assert self._inputs is not None
        batched = iter(self._inputs.batched)
        tensors = [tensor[begin:end] if next(batched) else tensor for tensor in self._inputs.tensors()]
        candidates = self._candidates(self._inputs.call(self._model, tensors), end - begin)
        return [candidates[place] for place in self._gradients]

    def _candidates(self, output: Any, samples: int) -> list[Tensor]:
        """The outputs with a row for each sample."""
        unique = {id(tensor): tensor for tensor in tensors_in(output)}.values()
        return [
            tensor
            for tensor in unique
            if tensor.requires_grad and tensor.is_floating_point() and tensor.dim() >= 1 and tensor.size(0) == samples
        ]

    def _keep(self, place: int, gradient: Tensor) -> None:
        self._gradients[place] = gradient.detach().clone()

    def _masked(self, begin: int, end: int) -> list[Tensor]:
        """The outputs' gradients, but for some samples only."""
        masked = []
        for gradient in self._gradients.values():
            rows = torch.zeros_like(gradient)
            rows[begin:end] = gradient[begin:end]
            masked.append(rows)
        return masked

    @contextlib.contextmanager
    def _as_then(self) -> Iterator[None]:
        with torch.enable_grad(), contextlib.ExitStack() as stack:
            for kind, enabled, dtype in self._autocast:
                if enabled or torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            self._random.__exit__()
            yield
