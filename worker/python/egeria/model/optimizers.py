"""TrainingOptimizers are the optimizers that train a model, those made later included."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

from torch import nn
from torch.optim import Optimizer

# Wrappers have the optimizer that they wrap by one of these names.
_INNER = ("optimizer", "base_optimizer", "inner_optimizer", "optim", "_optimizer")


class TrainingOptimizers(list[Optimizer]):
    """The optimizers that step a model's parameters now, in the order in which they were attached or found.

    It is one list for all who read learning rates from it, or momentum. Owned by the training thread.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]):
        super().__init__(optimizers)
        self._model = model
        self._others: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._ever_held = parameters_of(optimizers)
        self._displaced_by: dict[int, list[Optimizer]] = {}  # by a new one's id, those whose parameters it has

    def take(self, optimizer: Optimizer) -> bool:
        """An optimizer steps: returns whether it trains the model. One that is new is taken in; one whose parameters it
        has, or that has none of the model's any more, goes, unless it steps before the new one steps again."""
        if any(known is optimizer for known in self):
            self._settle(optimizer)
            return True
        own = parameters_of([optimizer])
        if self._others.get(optimizer) == len(own):
            return False
        trained = set(map(id, self._model.parameters()))
        if own.isdisjoint(trained):
            self._others[optimizer] = len(own)
            return False
        self._ever_held |= own
        held = [(known, parameters_of([known])) for known in self]
        self._displaced_by[id(optimizer)] = [
            known for known, ids in held if not own.isdisjoint(ids) or trained.isdisjoint(ids)
        ]
        self.append(optimizer)
        return True

    def trained(self) -> frozenset[int]:
        """Ids of the parameters that ask for a gradient and are in one of them."""
        held = parameters_of(self)
        return frozenset(id(value) for value in self._model.parameters() if value.requires_grad and id(value) in held)

    def orphans(self) -> str | None:
        """Says which parameters ask for a gradient and are in none of them any more: an optimizer that was made while
        they were frozen may be without them. None: there are none."""
        held = parameters_of(self)
        lost = self._ever_held - held
        names = [name for name, value in self._model.named_parameters() if value.requires_grad and id(value) in lost]
        if not names:
            return None
        return (
            f"[PARAMETER_WITHOUT_OPTIMIZER] '{names[0]}' and {len(names) - 1} more parameters train again, but no "
            "optimizer that steps holds them; make a new optimizer from all of model.parameters()"
        )

    def _settle(self, optimizer: Optimizer) -> None:
        if not self._displaced_by:
            return
        displaced = self._displaced_by.pop(id(optimizer), ())
        self[:] = [known for known in self if not any(known is gone for gone in displaced)]
        for rivals in self._displaced_by.values():
            rivals[:] = [known for known in rivals if known is not optimizer]


def stepping_optimizer(entry: object) -> Optimizer | None:
    """The optimizer that steps: inside accelerate's wrapper, or inside an object that is none itself, and looks ahead,
    scales or averages. None: there is none."""
    seen: list[object] = []
    while not isinstance(entry, Optimizer) and entry is not None and not any(entry is other for other in seen):
        seen.append(entry)
        held = [getattr(entry, name, None) for name in _INNER]
        entry = next((found for found in held if found is not None), None)
    return getattr(entry, "optimizer", entry)


def parameters_of(optimizers: Iterable[Optimizer]) -> set[int]:
    """The ids of the parameters that optimizers hold."""
    return {id(entry) for optimizer in optimizers for group in optimizer.param_groups for entry in group["params"]}
