"""This file finds which layer modules a pass uses a parameter in, besides the one whose unit holds it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from egeria.model.modules import LayerModule, each_once, has_parameters
from egeria.model.outputs import tensors_in

_logger = logging.getLogger("egeria")

# Nodes of autograd that give a parameter in another form, which is used where their result is.
_FORMS = tuple(
    f"{name}Backward"
    for name in (
        *("Alias", "Clone", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Squeeze", "T", "ToCopy"),
        *("Transpose", "UnsafeView", "Unsqueeze", "View"),
    )
)
# The graph does not show the uses inside a reentrant checkpoint.
_OPAQUE = "CheckpointFunctionBackward"

# For each parameter, by name: the units that had begun when it was last used outside of the units that hold it.
Uses = Mapping[str, frozenset[nn.Module]]


@dataclasses.dataclass
class _Call:
    unit: nn.Module
    begin: int
    end: int = 0


class PassUses:
    """Follows the calls of units in one forward pass, and reads the graph that autograd has made of it. Owned by the
    training thread."""

    def __init__(self, model: nn.Module, units: Iterable[nn.Module]):
        """`units` are those of layer modules."""
        self._model = model
        self._units = set(filter(has_parameters, units))
        self._calls: list[_Call] = []
        self._failed = False

    def enter(self, module: nn.Module) -> None:
        """A forward pass of `module` begins."""
        if module in self._units:
            self._calls.append(_Call(module, self._now()))

    def leave(self, module: nn.Module) -> None:
        """It has ended."""
        if module in self._units:
            call = next((call for call in reversed(self._calls) if call.unit is module and not call.end), None)
            if call is not None:
                call.end = self._now()

    def read(self, output: Any) -> Uses:
        """The uses of the pass that has returned `output`; none where the graph does not show all."""
        try:
            return {} if self._failed else self._read(output)
        except Exception:  # pylint: disable=broad-exception-caught  # what autograd's graphs may hold
            _logger.debug("egeria: where parameters are used cannot be told", exc_info=True)
            return {}

    def _read(self, output: Any) -> Uses:
        tensors = tensors_in(output)
        returned = {tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None}
        users: dict[Any, list[Any]] = {node: [] for node in returned}
        leaves: dict[int, Any] = {}
        ahead = list(returned)
        while ahead:
            node = ahead.pop()
            if node.name().endswith(_OPAQUE):
                return {}
            if (leaf := getattr(node, "variable", None)) is not None:
                leaves[id(leaf)] = node
            for source, _ in node.next_functions:
                if source is not None:
                    if source not in users:
                        users[source] = []
                        ahead.append(source)
                    users[source].append(node)
        end = self._now()
        given_out = {id(tensor) for tensor in tensors}
        uses: dict[str, frozenset[nn.Module]] = {}
        for name, parameter in self._model.named_parameters():
            moments = [end] if id(parameter) in given_out else []
            if (leaf := leaves.get(id(parameter))) is not None:
                moments += _moments(leaf, users, returned, end)
            if foreign := [moment for moment in moments if not self._is_own(parameter, moment)]:
                uses[name] = frozenset(call.unit for call in self._calls if call.begin < max(foreign))
        return uses

    def _now(self) -> int:
        """A number that is larger than those of all nodes that this thread has made. The pass sees no error of ours,
        and no tensor that is saved for its backward pass: checkpoints count those."""
        try:
            with _disable_current_modes(), torch.enable_grad():
                return torch.ones((), requires_grad=True, device="cpu").neg().grad_fn._sequence_nr()
        except Exception:  # pylint: disable=broad-exception-caught
            self._failed = True
            return 0

    def _is_own(self, parameter: nn.Parameter, moment: int) -> bool:
        """Whether that is within a call of a unit that holds the parameter."""
        return any(
            call.begin < moment < call.end and any(parameter is other for other in call.unit.parameters())
            for call in self._calls
        )


def _moments(leaf: Any, users: Mapping[Any, Sequence[Any]], returned: set[Any], end: int) -> list[int]:
    """When a parameter was used, in any form; `end` where it is part of what the pass returned."""
    found: list[int] = []
    ahead, seen = [leaf], {leaf}
    while ahead:
        node = ahead.pop()
        found += [end] if node in returned else []
        for user in users[node]:
            if not user.name().startswith(_FORMS):
                found.append(user._sequence_nr())
            elif user not in seen:
                seen.add(user)
                ahead.append(user)
    return found


def place(modules: Sequence[LayerModule], uses: Uses) -> list[LayerModule]:
    """Gives each parameter to the last layer module that takes part in it, as far as a pass has shown."""
    position = {unit: index for index, module in enumerate(modules) for unit in module.units}
    loose: list[list[tuple[str, nn.Module]]] = [[] for _ in modules]
    for index, module in enumerate(modules):
        for entry in module.loose:
            users = uses.get(entry[0])
            home = index if users is None else max((position.get(unit, 0) for unit in users), default=0)
            loose[home].append(entry)
        for name, owner in _held(module):
            home = max((position.get(unit, 0) for unit in uses.get(name, ())), default=0)
            if home > index:
                loose[home].append((name, owner))
    return each_once([dataclasses.replace(module, loose=tuple(own)) for module, own in zip(modules, loose)])


def _held(module: LayerModule) -> Iterator[tuple[str, nn.Module]]:
    """The parameters of a layer module's units by their full names, and who owns them."""
    for prefix, unit in zip(module.unit_names, module.units):
        for inner, owner in unit.named_modules(prefix=prefix):
            for name, _ in owner.named_parameters(prefix=inner, recurse=False):
                yield name, owner
