"""This file finds where a recorded model is cut into its layer modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor, fx, nn

from egeria.model.inputs import GraphError
from egeria.model.modules import LayerModule, has_parameters
from egeria.reference.recording import Recording, stack_of


class Cuts:
    """Says where one layer module's part of the recording ends and the next one's begins."""

    def __init__(
        self,
        model: nn.Module,
        modules: Sequence[LayerModule],
        recording: Recording,
        is_activation: Callable[[fx.Node], bool],
    ):
        self._is_activation = is_activation
        self._modules = modules
        self._recording = recording
        self._position = {node: position for position, node in enumerate(recording.nodes)}
        self._owner: dict[fx.Node, int | None] = {}  # the layer module that an operator was recorded in
        self._uses = self._positions_by_module(model)
        self._first = {index: uses[0] for index, uses in self._uses.items()}
        self._last = self._last_positions()
        self._ends = self._end_positions()

    def _positions_by_module(self, model: nn.Module) -> dict[int, list[int]]:
        """Returns the positions of each layer module's operators, from its first use of a parameter on.

        Parts without weights (an activation that is called everywhere) and tensors that a container holds are no
        layers, and do not say where a layer module begins and ends. A weight that several layer modules have counts for
        the one that it is used in.
        """
        owner_of_module: dict[int, int] = {}
        owners_of_tensor: dict[int, list[int]] = {}
        with_weights: set[int] = set()
        for index, module in enumerate(self._modules):
            loose = {name for name, _ in module.loose}
            for unit in module.units:
                for inner in unit.modules():
                    owner_of_module.setdefault(id(inner), index)
                    if has_parameters(unit):
                        with_weights.add(id(inner))
            for name, tensor in module.tensors():
                if name not in loose:
                    owners_of_tensor.setdefault(id(tensor), []).append(index)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        owners_of_weight = {
            node: owners_of_tensor.get(id(parameters.get(name)), []) for node, name in self._recording.weights.items()
        }
        submodules = dict(model.named_modules(remove_duplicate=False))
        needed = self._ancestors(self._recording.outputs)
        uses: dict[int, list[int]] = {}
        for position, node in enumerate(self._recording.nodes):
            stack = reversed(stack_of(node, submodules))
            inside = next((module for module in stack if id(module) in owner_of_module), None)
            owner = self._owner[node] = None if inside is None else owner_of_module[id(inside)]
            if node not in needed:
                continue
            owners = [owners_of_weight[source] for source in node.all_input_nodes if source in owners_of_weight]
            users = {entry[0] for entry in owners if len(entry) == 1}
            shared = any(owner in entry for entry in owners)
            if inside is not None and id(inside) in with_weights and (owner in uses or shared):
                users.add(owner)
            for user in users:
                uses.setdefault(user, []).append(position)
        return uses

    @staticmethod
    def _ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
        found: set[fx.Node] = set()
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack += node.all_input_nodes
        return found

    def _last_positions(self) -> dict[int, int]:
        order = sorted(self._first, key=self._first.__getitem__)
        last = {index: uses[-1] for index, uses in self._uses.items()}
        for before, after in zip(order, order[1:]):
            if before > after:
                raise GraphError(
                    f"layer module '{self._modules[before].name}' runs before "
                    f"'{self._modules[after].name}'; list them in forward order"
                )
            # A module may be used again behind the beginning of the next one (an embedding that encoder and decoder
            # share). Its results there are the later one's.
            last[before] = max(use for use in self._uses[before] if use < self._first[after])
        return last

    def _end_positions(self) -> list[int]:
        ends: list[int] = []
        for index in range(len(self._modules)):
            begin = ends[-1] if ends else 0
            end = max(begin, self._last.get(index, -1) + 1)
            ends.append(self._behind_glue(index, begin, end) if end > begin else end)
        ends[-1] = len(self._recording.nodes)
        return ends

    def _behind_glue(self, index: int, begin: int, end: int) -> int:
        """Takes in what follows the last layer, works on this layer module's values alone and keeps their size: a
        functional activation, the sum of two embeddings. An operator that brings in an earlier value (a skip
        connection), or picks or pools, begins the next; but where the layer module has no activation yet (a position
        embedding, the same for all samples) it ends behind the operator that makes one."""
        nodes = self._recording.nodes
        later = [self._first[other] for other in range(index + 1, len(self._modules)) if other in self._first]
        stop = min(later, default=len(nodes))
        done = any(self._is_activation(node) for node in nodes[begin:end])
        while end < stop:
            node = nodes[end]
            owner = self._owner[node]
            sources = [source for source in node.all_input_nodes if self._is_value(source)]
            if owner is not None and owner > index:
                break
            if done and (
                not sources
                or any(self._position.get(source, -1) < begin for source in sources)
                or any(_elements(source) > _elements(node) for source in sources if self._is_activation(source))
            ):
                break
            done = done or self._is_activation(node)
            end += 1
        return end

    def _is_value(self, node: fx.Node) -> bool:
        return node not in self._recording.weights and node not in self._recording.constants

    def bounds(self, index: int) -> tuple[int, int]:
        """Returns begin and end: positions begin..end-1 belong to the layer module."""
        if index not in self._last:
            raise GraphError("none of its weights is used in evaluation mode")
        return (self._ends[index - 1] if index else 0), self._ends[index]

    def last_user(self, name: str) -> int | None:
        """Returns the layer module in whose part a parameter or buffer is used last; None where it is not used."""
        nodes = [node for node, weight in self._recording.weights.items() if weight == name]
        last = max(
            (self._position[user] for node in nodes for user in node.users if user in self._position), default=None
        )
        return None if last is None else next(index for index, end in enumerate(self._ends) if last < end)

    def needed_from(self, end: int) -> set[fx.Node]:
        """Returns the values that operators from `end` on, or the model's results, need directly."""
        needed = set(self._recording.outputs)
        for node in self._recording.nodes[end:]:
            needed.update(node.all_input_nodes)
        return needed


def _elements(node: fx.Node) -> float:
    value = node.meta.get("val")
    return int(value.numel()) if isinstance(value, Tensor) and isinstance(value.numel(), int) else 0
