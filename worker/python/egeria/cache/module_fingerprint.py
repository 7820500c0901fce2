"""A module fingerprint tells whether a frozen prefix is still what it was: its weights, and the attributes of modules,
which are settings and tensors that torch does not register."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from egeria import _native
from egeria.cache.code_fingerprint import program_of
from egeria.cache.refused import Refused
from egeria.cache.stable_text import is_bystander, name_of
from egeria.cache.value_fingerprint import OF_TORCH, ValueFingerprint
from egeria.freeze.wishes import has_gradient
from egeria.model.modules import LayerModule
from egeria.model.plain_copies import Ours

_OF_LIGHTNING = frozenset(("_current_fx_name", "_metric_attributes", "_param_requires_grad_state"))
# Ranks share what is kept, each on a device of its own.
_DEVICE_NUMBER = re.compile(r"_*((cuda|current|gpu|local|output)_)?(device|cuda|gpu)s?(_?(ids?|index|num|number))?")


class ModuleFingerprint:
    """Remembers the weights of a frozen prefix, and the attributes of a model's modules as they are when it is made.

    The attributes of all modules count but those inside active layer modules: the model itself and the containers of
    its layers may use theirs before they call what is frozen. They are all values that a ValueFingerprint tells apart,
    also those of the modules' classes; and where a module is in no layer module, its buffers and the parameters that do
    not train. Devices are left out.

    The weights are the parameters and buffers of the frozen layer modules. DistributedDataParallel writes to buffers
    before every pass, mostly what they hold. On an accelerator these are compared only now and then; what
    DistributedDataParallel writes there is what rank 0 holds frozen too.

    Values that the code of these modules names count, too: globals, and attributes of the script's modules and classes.

    Writes that no version counts, through `.data`, are found by the contents, in host memory only.

    Owned by the training thread.

    Attributes:
      modules: whose attributes these are, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        modules: Sequence[LayerModule] | None,
        prefix: int = 0,
        function: Callable[..., Any] | None = None,
    ):
        """
        Args:
          model: unwrapped.
          modules: its layer modules; None: all of the model is frozen, whether its parameters require gradients or
            not, and its modes are left out.
          prefix: the number of layer modules that are frozen.
          function: what the model computes is given to it; its code and what that names count, too.

        Raises:
          TypeError: an attribute is a tensor of a kind that cannot be compared.
        """
        self._has_modes = modules is not None
        self._function = function
        if modules is None:
            modules, prefix = [], 0
            inside = {id(module) for module in model.modules()}
            trained: list[Tensor] = []
        else:
            inside = _inside(modules[:prefix])
            trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
        self._frozen = {name: module for name, module in model.named_modules() if id(module) in inside}
        self._loose = [entry for module in modules[:prefix] for entry in module.loose]
        outside = _inside(modules[prefix:]) - inside
        outside |= {id(module) for module in model.modules() if is_bystander(type(module))}
        self.modules = {name: module for name, module in model.named_modules() if id(module) not in outside}
        self._elsewhere = {id(module): f"module '{name}'" for name, module in model.named_modules()}
        self._elsewhere |= {id(tensor): "an active parameter" for tensor in trained}
        self._elsewhere |= {id(tensor): f"'{name}'" for entry in modules[:prefix] for name, tensor in entry.tensors()}
        self._weights = self._look_at_weights()
        self._attributes = self._look_at_attributes()
        own = [tensor for module in self.modules.values() for tensor in module._parameters.values()]
        self._still = _native.GradientFlags([one for one in own if one is not None and not has_gradient(one)])
        self._program = program_of(dict.fromkeys(map(type, self.modules.values())), function)
        self._named = self._look_at_names()

    @property
    def text(self) -> str:
        """These words are the same in every process where the prefix is the same, its modules' modes included."""
        modes = [
            f"{name}: {name_of(type(module))} {module.training if self._has_modes else ''}"
            for name, module in self._frozen.items()
        ]
        weights = [f"{name}: {words}" for name, words in self._weights.words.items()]
        attributes = [f"{' '.join(owner)}: {words}" for owner, words in self._attributes.words.items()]
        named = [f"{' '.join(name)}: {words}" for name, words in self._named.lasting_words.items()]
        return "\n".join((*modes, *weights, *attributes, *self._program.words, *named))

    @property
    def trains(self) -> bool:
        """Whether one of the parameters that did not train requires a gradient now."""
        return self._still.any()

    def check_unchanged(self, patches: int) -> None:
        """Compares with what is there now; what is equal to the bit has not changed. Each look at tensors that were
        written to through `.data` sees only a part of the large ones.

        Args:
          patches: the number of modules that have a `forward` of ours at the moment (ForwardPatches.added).

        Raises:
          Refused: [WEIGHTS_CHANGED], [SETTING_CHANGED], [NEEDS_GRADIENT].
        """
        if self.trains:
            raise Refused("NEEDS_GRADIENT", "a parameter of the frozen layers requires a gradient")
        if not self._weights.unchanged():
            now = self._look_at_weights()
            if (changed := self._weights.difference(now)) is not None:
                raise Refused("WEIGHTS_CHANGED", f"frozen '{changed}' has changed")
            self._weights = now
        if not self._attributes.unchanged(patches):
            now = self._look_at_attributes(patches)
            if (changed := self._attributes.difference(now)) is not None:
                _, kind, name = changed
                raise Refused("SETTING_CHANGED", f"an attribute of the model has changed: {name} of a {kind}")
            self._attributes = now
        if not self._named.unchanged():
            now = self._look_at_names()
            if (changed := self._named.difference(now)) is not None:
                owner, name = changed
                raise Refused("SETTING_CHANGED", f"'{name}' of {owner}, which the model's code names, has changed")
            self._named = now

    def _look_at_weights(self) -> ValueFingerprint:
        seen = ValueFingerprint({}, spares_device=True)
        for owner, module in self._frozen.items():
            for table in (module._parameters, module._buffers):
                _add_weights(seen, owner, table, list(table))
        for full_name, module in self._loose:
            owner, _, name = full_name.rpartition(".")
            for table in (module._parameters, module._buffers):
                _add_weights(seen, owner, table, [name] if name in table else [])
        seen.seal()
        return seen

    def _look_at_attributes(self, patches: int = 0) -> ValueFingerprint:
        seen = ValueFingerprint(self._elsewhere)
        seen.add_classes({(name, type(module).__name__, "class"): module for name, module in self.modules.items()})
        for name, module in self.modules.items():
            owner = name, type(module).__name__
            own = [name for name in vars(module) if name not in OF_TORCH and name not in _OF_LIGHTNING]
            _add(seen, owner, vars(module), own)
            tables = [module._modules]
            if name not in self._frozen:
                tables += [module._parameters, module._buffers]
            for table in tables:
                _add(seen, owner, table, list(table))
        if self._function is not None:
            seen.add(("", "function", name_of(self._function)), self._function)
        for kind in dict.fromkeys(kind for module in self.modules.values() for kind in type(module).__mro__):
            if not kind.__module__.startswith("torch.") and not is_bystander(kind):
                plain = [name for name, value in vars(kind).items() if not _is_code(name, value)]
                _add(seen, ("class", name_of(kind)), vars(kind), plain)
                seen.add_methods(("class", name_of(kind)), kind)
        seen.seal(patches)
        return seen

    def _look_at_names(self) -> ValueFingerprint:
        seen = ValueFingerprint(self._elsewhere)
        tables: dict[int, tuple[Mapping[str, Any], list[str]]] = {}
        for owner, table, name in self._program.names:
            if name in table:
                seen.add((owner, name), _without_device(name, table[name]))
                tables.setdefault(id(table), (table, []))[1].append(name)
        for table, names in tables.values():
            seen.watch_names(table, names)
        for function in self._program.functions:
            seen.add((name_of(function), "a function"), function)
        seen.seal()
        return seen


def _inside(modules: Iterable[LayerModule]) -> set[int]:
    """Returns the ids of submodules."""
    return {id(inner) for entry in modules for unit in entry.units for inner in unit.modules()}


def _add_weights(seen: ValueFingerprint, owner: str, table: Mapping[str, Tensor | None], names: Sequence[str]) -> None:
    for name in names:
        tensor = table[name]
        # A sharded model is refused by its name a moment later.
        seen.add(f"{owner}.{name}", tensor.to_local() if hasattr(tensor, "to_local") else tensor)
    seen.add_table(table, names)


def _add(seen: ValueFingerprint, owner: tuple[str, str], table: Mapping[str, Any], names: Sequence[str]) -> None:
    values = [(name, table[name]) for name in names]
    values = [(name, value.replaced() if isinstance(value, Ours) else value) for name, value in values]
    values = [(name, value) for name, value in values if value is not None or not isinstance(table[name], Ours)]
    for name, value in values:
        seen.add((*owner, name), _without_device(name, value))
    seen.add_table(table, [name for name, _ in values])


def _without_device(name: str, value: Any) -> Any:
    numbers = value if isinstance(value, (list, tuple)) else [value]
    return None if _DEVICE_NUMBER.fullmatch(name) and all(type(entry) is int for entry in numbers) else value


def _is_code(name: str, value: Any) -> bool:
    return name.startswith("__") or callable(value) or hasattr(type(value), "__get__")
