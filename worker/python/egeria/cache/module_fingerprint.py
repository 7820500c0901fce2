"""A module fingerprint tells whether a model's modules still hold the same attributes: settings, and tensors that torch
does not register."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from egeria.cache.forward_patches import ForwardPatch
from egeria.cache.stable_text import is_bystander, name_of
from egeria.cache.value_fingerprint import OF_TORCH, ValueFingerprint
from egeria.model.modules import LayerModule

_OF_LIGHTNING = frozenset(("_current_fx_name", "_metric_attributes", "_param_requires_grad_state"))
# Ranks share what is kept, each on a device of its own.
_DEVICE_NUMBER = re.compile(r"_*((cuda|current|gpu|local|output)_)?(device|cuda|gpu)s?(_?(ids?|index|num|number))?")


class ModuleFingerprint:
    """Remembers the attributes of a model's modules as they are when it is made: all modules' but those inside active
    layer modules. So the model itself and the containers of its layers count, which may use their attributes before
    they call what is frozen.

    These are all values that a ValueFingerprint tells apart, also those of the modules' classes; and where a module is
    in no layer module, its buffers and the parameters that do not train. Devices are left out; parameters and buffers
    of frozen layer modules are left to FrozenWeights.

    Owned by the training thread.

    Attributes:
      modules: whose attributes these are, by name.
    """

    def __init__(self, model: nn.Module, modules: Sequence[LayerModule], prefix: int):
        """
        Args:
          model: unwrapped.
          modules: its layer modules.
          prefix: so many of them are frozen.

        Raises:
          TypeError: an attribute is a tensor of a kind that cannot be compared.
        """
        self._frozen = _inside(modules[:prefix])
        outside = _inside(modules[prefix:]) - self._frozen
        outside |= {id(module) for module in model.modules() if is_bystander(type(module))}
        self.modules = {name: module for name, module in model.named_modules() if id(module) not in outside}
        self._elsewhere = {id(module): f"module '{name}'" for name, module in model.named_modules()}
        self._elsewhere |= {id(tensor): "an active parameter" for tensor in model.parameters() if tensor.requires_grad}
        self._elsewhere |= {
            id(tensor): f"'{name}'"
            for entry in modules[:prefix]
            for name, tensor in (*entry.parameters(), *entry.buffers())
        }
        self._seen = self._look()

    @property
    def text(self) -> str:
        """These words are the same in every process where the attributes are the same, but for the tensors()."""
        return "\n".join(f"{' '.join(owner)}: {words}" for owner, words in self._seen.words.items())

    def tensors(self) -> list[Tensor]:
        """Returns what the attributes hold in memory, in order."""
        return [found.tensor for found in self._seen.tensors]

    def changed(self, patches: int = 0) -> str | None:
        """Returns the attribute that has changed since, if any. One that was assigned what it was has not. Each look
        sees only a part of the large tensors that were written to through `.data`.

        Args:
          patches: so many modules have a `forward` of ours at the moment (ForwardPatches.added).
        """
        if self._seen.same_objects(patches) and self._seen.same_contents():
            return None
        now = self._look(patches)
        changed = self._seen.difference(now)
        if changed is None:
            self._seen = now
            return None
        _, kind, name = changed
        return f"{name} of a {kind}"

    def _look(self, patches: int = 0) -> ValueFingerprint:
        seen = ValueFingerprint(self._elsewhere)
        for name, module in self.modules.items():
            owner = name, type(module).__name__
            seen.add((*owner, "class"), type(module))
            own = [name for name in vars(module) if name not in OF_TORCH and name not in _OF_LIGHTNING]
            _add(seen, owner, vars(module), own)
            tables = [module._modules]
            if id(module) not in self._frozen:
                tables += [module._parameters, module._buffers]
            for table in tables:
                _add(seen, owner, table, list(table))
        for kind in dict.fromkeys(kind for module in self.modules.values() for kind in type(module).__mro__):
            if not kind.__module__.startswith("torch.") and not is_bystander(kind):
                plain = [name for name, value in vars(kind).items() if not _is_code(name, value)]
                _add(seen, ("class", name_of(kind)), vars(kind), plain)
        seen.seal(patches)
        return seen


def _inside(modules: Iterable[LayerModule]) -> set[int]:
    """Returns the ids of submodules."""
    return {id(inner) for entry in modules for unit in entry.units for inner in unit.modules()}


def _add(seen: ValueFingerprint, owner: tuple[str, str], table: Mapping[str, Any], names: Sequence[str]) -> None:
    values = [(name, value.own if isinstance(value := table[name], ForwardPatch) else value) for name in names]
    values = [(name, value) for name, value in values if name != "forward" or value is not None]
    for name, value in values:
        seen.add((*owner, name), _without_device(name, value))
    seen.add_table(table, [name for name, _ in values])


def _without_device(name: str, value: Any) -> Any:
    numbers = value if isinstance(value, (list, tuple)) else [value]
    return None if _DEVICE_NUMBER.fullmatch(name) and all(type(entry) is int for entry in numbers) else value


def _is_code(name: str, value: Any) -> bool:
    return name.startswith("__") or callable(value) or hasattr(type(value), "__get__")
