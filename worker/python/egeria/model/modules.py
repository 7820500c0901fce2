"""A layer module is a group of consecutive layers that are frozen together; partition() cuts a model into them.

A model is cut by its structure and its parameter sizes (paper, figure 11), or as its owner says. Structure gives
*blocks*: the children of the model, of its lists and sequences, and of a container that holds many of the
parameters (a backbone inside a model with a head). The sizes then decide, by the same rule as for the native
trainer, how many consecutive blocks make a layer module.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Container, Iterator, Sequence

from torch import Tensor, nn

from egeria import _native
from egeria.errors import EgeriaError
from egeria.model.wrappers import unwrap

# A stage that holds at least this share of the parameters is looked into, to find where it can be cut.
_LARGE_SHARE = 0.125
# A container that is no list is entered if it holds at least this share, at least half of it in lists of its own.
_ENTERED_SHARE = 0.25

# The types that `modules` may have: see partition().
ModuleEntries = Sequence[nn.Module | Sequence[nn.Module] | str]
ModuleSpec = ModuleEntries | str | Callable[[nn.Module], ModuleEntries] | None


@dataclasses.dataclass(frozen=True)
class LayerModule:
    """Consecutive layers that are frozen together.

    Attributes:
      name: for people, the metrics and the controller; unique within a model.
      units: the submodules that it consists of, in forward order.
      unit_names: their names in the unwrapped model.
      loose: parameters and buffers that it takes part in, and that no unit of its holds: a container between the model
        and its units owns them (a class token, a temperature), or a unit of an earlier layer module does, whose
        parameter is used here too. Pairs of full name and owner.
      elsewhere: names of tensors of its units that belong to a later layer module, since that takes part in them too.
    """

    name: str
    units: tuple[nn.Module, ...]
    unit_names: tuple[str, ...]
    loose: tuple[tuple[str, nn.Module], ...] = ()
    elsewhere: frozenset[str] = frozenset()

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Those that belong to it, with their names in the unwrapped model; one that is used twice counts once."""
        return [(name, value) for name, value in self._own() if isinstance(value, nn.Parameter)]

    def buffers(self) -> list[tuple[str, Tensor]]:
        """Those that belong to it, by their names in the unwrapped model, also those that a checkpoint leaves out."""
        return [(name, value) for name, value in self._own() if not isinstance(value, nn.Parameter)]

    def names(self) -> tuple[str, list[str], list[str]]:
        """Its name, those of its units and those of its loose tensors, from which from_unit_names() makes it again."""
        return self.name, list(self.unit_names), [name for name, _ in self.loose]

    def parameter_count(self) -> int:
        """Number of scalars in the parameters (the whole tensor's, where it is sharded)."""
        return sum(parameter.numel() for _, parameter in self.parameters())

    def parameter_bytes(self) -> int:
        return sum(parameter.numel() * parameter.element_size() for _, parameter in self.parameters())

    def embedding_parameter_count(self) -> int:
        """Number of its scalars in the rows of embeddings, of which a batch uses a few."""
        tables = (nn.Embedding, nn.EmbeddingBag)
        rows = {id(layer.weight) for unit in self.units for layer in unit.modules() if isinstance(layer, tables)}
        return sum(parameter.numel() for _, parameter in self.parameters() if id(parameter) in rows)

    def _own(self) -> list[tuple[str, Tensor]]:
        return [(name, value) for name, value in self.tensors() if name not in self.elsewhere]

    def tensors(self) -> list[tuple[str, Tensor]]:
        """All parameters and buffers that it takes part in, also those that belong to a later layer module."""
        named = [(name, getattr(owner, name.rpartition(".")[2])) for name, owner in self.loose]
        for prefix, unit in zip(self.unit_names, self.units):
            named += [*unit.named_parameters(prefix=prefix), *unit.named_buffers(prefix=prefix)]
        unique: dict[int, tuple[str, Tensor]] = {}
        for name, value in named:
            if value is not None:
                unique.setdefault(id(value), (name, value))
        return list(unique.values())


def embedding_prefix(modules: Sequence[LayerModule]) -> int:
    """Counts the first layer modules that are lookup tables, unless they are most of the model; never the last one."""
    return _native.embedding_prefix(
        [(module.parameter_count(), module.embedding_parameter_count()) for module in modules]
    )


def partition(
    model: nn.Module,
    modules: ModuleSpec = None,
    calls: Sequence[nn.Module] | None = None,
    trained: Container[int] | None = None,
) -> list[LayerModule]:
    """Cuts a model into layer modules; every parameter belongs to exactly one, the last one that takes part in it.

    Args:
      model: plain or wrapped.
      modules: None: by structure and size. A list, in forward order, of submodules, lists of submodules, names, or
        regular expressions for whole names (each pattern is one layer module). One regular expression: its first group,
        or without a group the name, tells which layer module a submodule is of. A callable: called with the unwrapped
        model, returns such a list.
      calls: the submodules in the order in which a forward pass calls them, one entry per call, where that is known: it
        replaces the order of definition where `modules` is None.
      trained: ids of the parameters that train; None: those that require a gradient now.

    Raises:
      EgeriaError: [BAD_PARTITION] fewer than two layer modules, a parameter in none of them, a submodule in two, a name
        or pattern that fits nothing.
    """
    model = unwrap(model)
    if trained is None:
        trained = trained_in(model)
    if modules is None:
        return _by_structure(model, calls, trained)
    if not isinstance(modules, (str, nn.Module)) and callable(modules):
        modules = modules(model)
    if isinstance(modules, str):
        groups = _by_group(model, modules)
    elif isinstance(modules, Sequence) or isinstance(modules, (nn.ModuleList, nn.Sequential)):
        groups = [_group_of(model, entry) for entry in modules]
    else:
        raise _bad(
            f"modules is a {type(modules).__name__}; give a list of submodules or names, a regular "
            "expression, or a function of the model that returns a list"
        )
    return _finish(model, groups, trained)


def trained_in(model: nn.Module) -> frozenset[int]:
    """Ids of the parameters that require a gradient."""
    return frozenset(id(parameter) for parameter in model.parameters() if parameter.requires_grad)


def from_unit_names(model: nn.Module, names: Sequence[tuple[str, Sequence[str], Sequence[str]]]) -> list[LayerModule]:
    """Layer modules from (name, unit names, loose tensors' names), as a checkpoint has them.

    Raises:
      EgeriaError: [CHECKPOINT_MISMATCH] the model has no such submodule.
    """
    model = unwrap(model)
    result = []
    try:
        for name, units, loose in names:
            result.append(
                LayerModule(
                    name,
                    tuple(model.get_submodule(unit) for unit in units),
                    tuple(units),
                    tuple((entry, model.get_submodule(entry.rpartition(".")[0])) for entry in loose),
                )
            )
    except AttributeError as error:
        raise EgeriaError(
            "CHECKPOINT_MISMATCH",
            f"the checkpoint speaks of another model: {error}; resume with the model that it was written for, or "
            "without the Egeria part of the checkpoint",
        ) from None
    return each_once(result)


def each_once(modules: Sequence[LayerModule]) -> list[LayerModule]:
    """The layer modules, where a tensor that several of them have belongs to the last of these."""
    result: list[LayerModule] = []
    later: set[int] = set()
    for module in reversed(modules):
        tensors = module.tensors()
        elsewhere = frozenset(name for name, tensor in tensors if id(tensor) in later)
        result.append(dataclasses.replace(module, elsewhere=elsewhere))
        later.update(id(tensor) for _, tensor in tensors)
    return result[::-1]


def has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _bad(text: str) -> EgeriaError:
    return EgeriaError("BAD_PARTITION", text)


# By structure.


@dataclasses.dataclass
class _Block:
    """A block is never cut: one submodule with the normalisations and activations that follow it."""

    stage: str
    units: list[tuple[str, nn.Module]]
    parameter_count: int = 0  # without what a later block has, too

    @property
    def name(self) -> str:
        return self.units[0][0]


def _count(modules: Iterator[nn.Module] | Sequence[nn.Module]) -> int:
    parameters = {id(parameter): parameter.numel() for module in modules for parameter in module.parameters()}
    return sum(parameters.values())


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict))


def _is_heavy(module: nn.Module) -> bool:
    """False for normalisations, activations, pooling, dropout: what belongs to the layer before it."""
    return any(parameter.dim() >= 2 for parameter in module.parameters())


def _in_lists(module: nn.Module) -> int:
    """Parameters of `module`, at any depth, in lists of several blocks or of many layers (two layers in a sequence
    are rather the inside of a block)."""
    if _is_list(module):
        heavy = [child for child in module.children() if _is_heavy(child)]
        blocks = sum(next(child.children(), None) is not None for child in heavy)
        if blocks >= 2 or len(heavy) >= 4:
            return _count([module])
    return sum(_in_lists(child) for child in module.children())


@dataclasses.dataclass
class _Entry:
    """A submodule that is not looked into."""

    stage: str
    name: str
    module: nn.Module


def _in_order_of_calls(entries: list[_Entry], calls: Sequence[nn.Module]) -> list[_Entry]:
    """Orders entries by when a forward pass calls them. One with weights goes where it is called first. One without (an
    activation, a dropout) goes where it is called last, so that it does not freeze while something active still calls
    it. One that is not called stays behind the one that it is defined after, or goes to the end if it has no weights.
    One with weights that is there by another name already goes before the one that it is defined before.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, module in enumerate(calls):
        first.setdefault(id(module), position)
        last[id(module)] = position
    places: list[float] = []
    place = -1.0
    seen: set[nn.Module] = set()
    aliases: list[int] = []
    for entry in entries:
        with_weights = has_parameters(entry.module)
        table = first if with_weights else last
        found = [table[id(inner)] for inner in entry.module.modules() if id(inner) in table]
        if found:
            place = min(found) if with_weights else max(found)
        if with_weights and entry.module in seen:
            aliases.append(len(places))
        seen.add(entry.module)
        places.append(place if found or with_weights else float("inf"))
    for position in reversed(aliases):
        places[position] = places[min(position + 1, len(places) - 1)] - 0.5
    return [entry for _, entry in sorted(zip(places, entries), key=lambda placed: placed[0])]


class _Blocks:
    """Collects the blocks of a model, in the order of their calls or, where that is not known, their definition."""

    def __init__(self, model: nn.Module, calls: Sequence[nn.Module] | None):
        self._total = max(1, _count([model]))
        self._entries: list[_Entry] = []
        self._add_children(model, "", stage=None)
        entries = self._entries if calls is None else _in_order_of_calls(self._entries, calls)
        self.blocks: list[_Block] = []
        waiting: list[tuple[str, nn.Module]] = []  # light ones before the first heavy one
        for entry in entries:
            if _is_heavy(entry.module):
                self.blocks.append(_Block(entry.stage, [*waiting, (entry.name, entry.module)]))
                waiting = []
            else:
                # Not a stage of its own: it goes with the layer before it, wherever that is.
                (self.blocks[-1].units if self.blocks else waiting).append((entry.name, entry.module))
        if self.blocks:
            self.blocks[-1].units += waiting
        self._join_tied()
        self._separate_stages()

    def _join_tied(self) -> None:
        """A block whose weights a later one has, too, goes with the block behind it: it has nothing to freeze."""
        later: set[int] = set()
        joined: list[_Block] = []
        for block in reversed(self.blocks):
            own = {id(p): p.numel() for _, unit in block.units for p in unit.parameters() if id(p) not in later}
            later.update(own)
            if own or not joined:
                block.parameter_count = sum(own.values())
                joined.append(block)
            else:
                joined[-1].units[:0] = block.units
        self.blocks = joined[::-1]

    def _add_children(self, module: nn.Module, prefix: str, stage: str | None) -> None:
        for name, child in module.named_children():
            self._add(f"{prefix}.{name}" if prefix else name, child, stage)

    def _add(self, name: str, module: nn.Module, stage: str | None) -> None:
        large = _count([module]) >= _LARGE_SHARE * self._total
        composite = any(next(child.children(), None) is not None for child in module.children())
        if _is_list(module) and len(module) > 0 and (stage is None or (large and composite)):
            self._add_children(module, name, stage=name)
        elif not _is_list(module) and self._is_container(module):
            self._add_children(module, name, stage=None)
        else:
            self._entries.append(_Entry(stage or name, name, module))

    def _separate_stages(self) -> None:
        """Two lists whose entries are called in turn are no stages; each run of blocks of one list is."""
        runs: collections.Counter[str] = collections.Counter()
        for stage, run in itertools.groupby(self.blocks, key=lambda block: block.stage):
            for block in run:
                block.stage = f"{stage}#{runs[stage]}"
            runs[stage] += 1

    def _is_container(self, module: nn.Module) -> bool:
        count = _count([module])
        # Tables do not count: a small model with a large vocabulary has most of its parameters there.
        kinds = (nn.Embedding, nn.EmbeddingBag)
        tables = _count([inner for inner in module.modules() if isinstance(inner, kinds)])
        return count >= _ENTERED_SHARE * self._total and _in_lists(module) >= 0.5 * (count - tables) > 0


def _by_structure(model: nn.Module, calls: Sequence[nn.Module] | None, trained: Container[int]) -> list[LayerModule]:
    blocks = _Blocks(model, calls).blocks
    if len(blocks) < 2:
        raise _bad(
            f"the model has {len(blocks)} block(s) with weights, and the last never freezes; say with "
            "`modules` where it can be cut"
        )
    last = [block for block in blocks if block.stage == blocks[-1].stage]
    if len(last) > 1 and sum(block.parameter_count for block in last) >= _LARGE_SHARE * _count([model]):
        blocks[-1].stage = blocks[-1].name  # the head alone stays active for ever, not the stage that ends with it
    infos = [(block.name, block.stage, block.parameter_count) for block in blocks]
    try:
        cuts = _native.partition(infos, [])
    except RuntimeError as error:
        raise _bad(f"{error}; say with `modules` where the model can be cut") from None
    groups = [(name, [unit for block in blocks[begin:end] for unit in block.units]) for name, begin, end in cuts]
    return _finish(model, groups, trained)


# As the user says.

_Group = tuple[str, list[tuple[str, nn.Module]]]


def _group_of(model: nn.Module, entry: nn.Module | Sequence[nn.Module | str] | str) -> _Group:
    names = {id(module): name for name, module in model.named_modules()}
    units: list[tuple[str, nn.Module]] = []
    for item in [entry] if isinstance(entry, (str, nn.Module)) else entry:
        if isinstance(item, nn.Module):
            item = unwrap(item) if id(item) not in names else item
            if not names.get(id(item)):
                raise _bad(
                    f"a {type(item).__name__} in `modules` is no submodule of the model; list submodules "
                    "of the very model that is attached"
                )
            units.append((names[id(item)], item))
        elif item and item in names.values():
            units.append((item, model.get_submodule(item)))
        elif isinstance(item, str):
            units += [(name, module) for name, module, _ in _matches(model, item)]
        else:
            raise _bad(f"`modules` has a {type(item).__name__}; its entries are submodules, lists of them, or names")
    if not units:
        raise _bad("`modules` has an empty entry; leave it out")
    name = units[0][0] if len(units) == 1 else f"{units[0][0]}-{units[-1][0]}"
    return name, units


def _matches(model: nn.Module, pattern: str) -> list[tuple[str, nn.Module, str]]:
    """(name, submodule, key) of the outermost submodules whose whole name matches."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise _bad(f"'{pattern}' is neither a submodule's name nor a regular expression ({error})") from None
    found: list[tuple[str, nn.Module, str]] = []
    for name, module in model.named_modules():
        match = expression.fullmatch(name) if name else None
        if match and not any(name.startswith(outer + ".") for outer, _, _ in found):
            found.append((name, module, next((group for group in match.groups() if group is not None), name)))
    if not found:
        example = next((name for name, _ in model.named_modules() if name), "")
        raise _bad(f"'{pattern}' matches no submodule's whole name; a name is, for example, '{example}'")
    return found


def _by_group(model: nn.Module, pattern: str) -> list[_Group]:
    groups: dict[str, list[tuple[str, nn.Module]]] = {}
    for name, module, key in _matches(model, pattern):
        groups.setdefault(key, []).append((name, module))
    return list(groups.items())


# Both.


def _finish(model: nn.Module, groups: list[_Group], trained: Container[int]) -> list[LayerModule]:
    groups = _with_trained_end(groups, trained)
    if len(groups) < 2:
        raise _bad("the last layer module that trains never freezes, so that at least two are needed")
    _check_disjoint(groups)
    owned = {id(parameter) for _, units in groups for _, unit in units for parameter in unit.parameters()}
    loose, homeless = _loose(model, groups, owned)
    if homeless:
        more = f" and {len(homeless) - 1} more" if len(homeless) > 1 else ""
        raise _bad(
            f"the parameter '{homeless[0]}'{more} belongs to no layer module; every parameter must belong "
            "to one (the last never freezes): add the submodule that holds it to `modules`"
        )
    names = _unique([name for name, _ in groups])
    return each_once(
        [
            LayerModule(
                unique,
                tuple(unit for _, unit in units),
                tuple(unit_name for unit_name, _ in units),
                tuple(loose.get(index, ())),
            )
            for index, (unique, (_, units)) in enumerate(zip(names, groups))
        ]
    )


def _with_trained_end(groups: list[_Group], trained: Container[int]) -> list[_Group]:
    """Joins what has nothing to train at the end with the last layer module that has: that one never freezes."""
    parameters = [[id(parameter) for _, unit in units for parameter in unit.parameters()] for _, units in groups]
    last = max(
        (index for index, own in enumerate(parameters) if any(p in trained for p in own)), default=len(groups) - 1
    )
    joined = [named for _, units in groups[last:] for named in units]
    return groups if last == len(groups) - 1 else [*groups[:last], (f"{joined[0][0]}-{joined[-1][0]}", joined)]


def _check_disjoint(groups: list[_Group]) -> None:
    """A submodule that has several names may be in several layer modules, by one name each."""
    owner_of = {name: group for group, units in groups for name, unit in units if has_parameters(unit)}
    for group, units in groups:
        for name, unit in units:
            path = name.split(".")
            around = [".".join(path[:length]) for length in range(1, len(path) + 1)]
            other = next((outer for outer in around if owner_of.get(outer, group) != group), None)
            if other is not None and has_parameters(unit):
                names = " and ".join(f"'{owner}'" for owner in (owner_of[other], group))
                raise _bad(f"submodule '{name}' is in the layer modules {names}; list it once")


def _loose(
    model: nn.Module, groups: list[_Group], owned: set[int]
) -> tuple[dict[int, list[tuple[str, nn.Module]]], list[str]]:
    """Tensors that containers hold directly, by layer module: the last one inside the container, until a pass has shown
    where they are used (see egeria.model.parameter_uses). Second: names of parameters that are in no layer module."""
    inside = {id(inner) for _, units in groups for _, unit in units for inner in unit.modules()}
    loose: dict[int, list[tuple[str, nn.Module]]] = {}
    homeless: list[str] = []
    for prefix, container in model.named_modules():
        if id(container) in inside:
            continue
        homes = [
            index
            for index, (_, units) in enumerate(groups)
            if any(not prefix or name.startswith(prefix + ".") for name, _ in units)
        ]
        own = [*container.named_parameters(recurse=False), *container.named_buffers(recurse=False)]
        for short, tensor in own:
            name = f"{prefix}.{short}" if prefix else short
            if id(tensor) in owned:
                continue
            if homes:
                owned.add(id(tensor))
                loose.setdefault(homes[-1], []).append((name, container))
            elif isinstance(tensor, nn.Parameter):
                homeless.append(name)
    return loose, homeless


def _unique(names: list[str]) -> list[str]:
    """Names with a number added where one comes again."""
    seen: collections.Counter[str] = collections.Counter()
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return result
