"""The optimizer's metric tells by how much a step along a gradient lowers the loss, to first order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

# Where a tensor is larger and has at least so many columns, only an eighth of them is looked at, other ones each step.
# Otherwise a square would take a good part of a step's time.
_LARGE = 1 << 16
_LEAST_COLUMNS = 64
_COLUMNS = 8

# Where running means, or sums, of squared gradients are kept: Adam and its kin, whosever they are, call them so; of
# others the optimizer has to be known, since Adadelta's "square_avg", say, is half of what it makes of a gradient.
_OF_ADAM = "exp_avg_sq"
_OF_OTHERS = {torch.optim.RMSprop: "square_avg", torch.optim.Adagrad: "sum"}


class OptimizerMetric:
    """The metric P in which g' P g is what a step along the gradient g takes off the loss: P = lr / (sqrt(v) + eps) for
    an optimizer that divides by the root of a running mean v of squares, lr for SGD. Momentum is left out. It is
    not known for other optimizers, for a parameter before its first step, or where another rank has its state.

    An entry that has never had a gradient has no scale yet, and counts nothing: what Adam makes of its first one does
    not depend on its size.
    """

    def __init__(self, optimizers: Sequence[Optimizer]):
        self._optimizers = optimizers
        self._owners: dict[int, tuple[Optimizer, dict]] = {}
        self._rates: dict[int, float] = {}  # by group; one on a device is waited for, so that it is asked for once
        self._turn = 0
        self._inverse: dict[int, Tensor] = {}  # lr / P, of the parameters whose P is no number

    def begin(self) -> None:
        """A step begins: groups, rates and running means may be others."""
        self._owners = {
            id(parameter): (optimizer, group)
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        self._rates = {}
        self._turn += 1
        self._inverse = {}

    def end(self) -> None:
        """Lets go of what was kept for the step."""
        self._inverse = {}

    def knows(self, parameter: nn.Parameter) -> bool:
        """Whether P is known; what no optimizer changes has a P of 0."""
        owner = self._owners.get(id(parameter))
        if owner is None:
            return True
        plain = isinstance(owner[0], torch.optim.SGD) or self._squares_of(parameter) is not None
        return plain and _is_number(owner[1].get("lr"))

    def rate(self, parameter: nn.Parameter) -> float:
        """Its learning rate; 0 where no optimizer has it."""
        owner = self._owners.get(id(parameter))
        if owner is None:
            return 0.0
        group = owner[1]
        if id(group) not in self._rates:
            self._rates[id(group)] = max(0.0, float(group["lr"])) if _is_number(group.get("lr")) else 0.0
        return self._rates[id(group)]

    def square(
        self, parameter: nn.Parameter, gradient: Tensor, columns: tuple[int, int] | None = None
    ) -> Tensor | None:
        """g' P g / lr, 0-dimensional; None where P is lr alone, or not known. `columns`: those that `gradient` has, as
        columns_of() says; None: all."""
        squares = self._squares_of(parameter)
        if squares is None:
            return None
        state, kept = squares
        gradient = gradient.detach()
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            inverse = self._inverse_of(parameter, state, kept)[tuple(gradient.indices())]
            return _ratio(gradient.values(), inverse)
        if columns is None and (columns := columns_of(parameter, self._turn)) is not None:
            gradient = gradient.narrow(1, *columns)
        if columns is None:
            return _ratio(gradient, self._inverse_of(parameter, state, kept))
        part = _ratio(gradient, self._inverse_of(parameter, state, kept.narrow(1, *columns)))
        return part * (parameter.shape[1] / columns[1])

    def _squares_of(self, parameter: nn.Parameter) -> tuple[dict, Tensor] | None:
        """The optimizer's state of a parameter, and the v in it."""
        if id(parameter) not in self._owners:
            return None
        optimizer, group = self._owners[id(parameter)]
        state = optimizer.state.get(parameter, {})
        name = next((name for kind, name in _OF_OTHERS.items() if isinstance(optimizer, kind)), _OF_ADAM)
        squares = state.get(name)
        if not isinstance(squares, Tensor) or squares.shape != parameter.shape:
            return None
        # An optimizer whose numbers are of another kind does something else with them: Adafactor's eps is a pair.
        known = [group.get("lr"), group.get("eps", 0.0), state.get("step", None if name == _OF_ADAM else 0.0)]
        if not all(map(_is_number, known)):
            return None
        return state, squares.detach()

    def _inverse_of(self, parameter: nn.Parameter, state: dict, squares: Tensor) -> Tensor:
        """lr / P, where v is `squares`."""
        kept = self._inverse.get(id(parameter))
        if kept is not None and kept.shape == squares.shape:
            return kept
        group = self._owners[id(parameter)][1]
        inverse = squares.sqrt()
        never = inverse == 0
        if "betas" in group and _OF_ADAM in state:
            inverse /= _bias_correction(state["step"], float(group["betas"][1]))
        inverse.add_(float(group.get("eps", 1e-8))).masked_fill_(never, math.inf)
        if parameter.device.type == "cpu":  # on an accelerator computing it twice is cheaper than memory
            self._inverse[id(parameter)] = inverse
        return inverse


def _ratio(gradient: Tensor, inverse: Tensor) -> Tensor:
    """The sum of g^2 / inverse."""
    gradient = gradient.to(inverse.dtype)
    return (gradient / inverse).mul_(gradient).sum()


def _bias_correction(steps: Tensor | float, beta: float) -> Tensor | float:
    """By what the root of a running mean is too small after so many steps; computed where `steps` are, since asking a
    device for them would wait for it."""
    if isinstance(steps, Tensor) and steps.device.type != "cpu":
        return (1 - beta**steps).sqrt()
    return math.sqrt(1 - beta ** float(steps)) if float(steps) > 0 else 1.0


def columns_of(parameter: nn.Parameter, turn: int) -> tuple[int, int] | None:
    """The first of the columns that are looked at in this turn, and how many. None: all are."""
    if parameter.dim() < 2 or parameter.numel() < _LARGE or parameter.shape[1] < _LEAST_COLUMNS:
        return None
    length = parameter.shape[1] // _COLUMNS
    return turn * length % (parameter.shape[1] - length + 1), length


def _is_number(value: Any) -> bool:
    """Whether it is a number, or a tensor of one, which is not looked at: a device would have to be waited for."""
    return value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, (int, float))
