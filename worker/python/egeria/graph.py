"""The model as a graph of operators: what the controller gets of each layer module, and what probes run.

`torch.export` records the whole model once, in evaluation mode, on a real batch of b samples. The recording is cut
behind the last operator of each layer module. Module l's graph computes its *output*, the activation whose Gram
matrix is taken, from its *inputs*: the values that the output needs and that were computed before the cut. Values
that depend on the model's inputs only (attention masks) are computed anew in each graph instead of being sent.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import json
import logging
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind

from egeria.isolation import device_of, plain_evaluation, undisturbed
from egeria.modules import LayerModule, has_parameters

_logger = logging.getLogger("egeria")

# egeria.v1.DataType.
_DATA_TYPES = {
    torch.float32: 1, torch.float64: 2, torch.float16: 3, torch.bfloat16: 4, torch.int64: 5, torch.int32: 6,
    torch.uint8: 7, torch.int8: 8, torch.bool: 9,
}
# ATen's numbers, which graph.proto uses.
_MEMORY_FORMATS = {
    torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2, torch.channels_last_3d: 3,
}
# Operators on sizes, where those are not constants.
_INTEGER_OPERATORS = {
    operator.add: "sym_add", operator.sub: "sym_sub", operator.mul: "sym_mul", operator.floordiv: "sym_floordiv",
    operator.mod: "sym_mod", torch.sym_max: "sym_max", torch.sym_min: "sym_min",
}
# They check and compute nothing.
_ASSERTIONS = {
    "aten::_assert_scalar", "aten::_assert_async", "aten::_assert_tensor_metadata", "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
}
# A value that needs no weight is computed anew in each graph if that takes at most so many operators.
_MOST_RECOMPUTED = 100
_WRAPPER = "model"  # the attribute of _Flat that holds the user's model
_SIMPLE = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout, slice)


class GraphError(Exception):
    """Why a model or a layer module has no graph; the text is for people."""


class ShapeMismatch(Exception):
    """These inputs have other sizes than the exported graph."""


@dataclasses.dataclass(frozen=True)
class ExportedModule:
    """One layer module's graph.

    Attributes:
      graph_json: egeria.v1.ModuleGraph as protobuf JSON; None where it has no graph.
      error: why, in words.
      input_names: names of its inputs, in the graph's order.
    """

    graph_json: str | None
    error: str | None
    input_names: tuple[str, ...] = ()


class RootInputs:
    """What the model was called with, cut to its first b samples.

    The tensors whose first dimension is the batch are cut; those of another first size (a table, a mask over
    positions) stay whole. Tensors are copies, so that a training step may change its own in place.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], samples: int):
        leaves, self._structure = pytree.tree_flatten((tuple(args), dict(sorted(kwargs.items()))))
        self.batch = _batch_of(leaves)
        self.samples = min(samples, self.batch)
        self.batched = tuple(leaf.dim() >= 1 and leaf.size(0) == self.batch for leaf in leaves
                             if isinstance(leaf, Tensor))
        self.leaves = leaves
        self._cut()
        self.leaves = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]

    def narrowed(self, samples: int) -> RootInputs:
        """The same inputs with fewer samples."""
        other = copy.copy(self)
        other.samples = min(samples, self.samples)
        other._cut()
        return other

    def _cut(self) -> None:
        batched = iter(self.batched)
        self.leaves = [leaf.detach().narrow(0, 0, self.samples) if isinstance(leaf, Tensor) and next(batched) else leaf
                       for leaf in self.leaves]

    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(tensor.shape) for tensor in self.tensors())

    def call(self, function: Callable[..., Any], tensors: Sequence[Tensor] | None = None) -> Any:
        """Calls `function` as the model was called, with other tensors where they are given."""
        leaves = self.leaves
        if tensors is not None:
            remaining = iter(tensors)
            leaves = [next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        return function(*args, **kwargs)

    def check_simple(self) -> None:
        """Raises GraphError for an argument that a recording would silently take for a constant."""
        for leaf in self.leaves:
            if not isinstance(leaf, (Tensor, *_SIMPLE)):
                raise GraphError(f"the model takes a {type(leaf).__name__}, which is not a tensor, a number, or a "
                                 "list, tuple or dict of those")

    def same_call(self, other: RootInputs) -> bool:
        """Whether everything but the contents and sizes of tensors is as in `other`."""
        return (self._structure == other._structure and len(self.leaves) == len(other.leaves)
                and all(_same_leaf(mine, theirs) for mine, theirs in zip(self.leaves, other.leaves)))


def _same_leaf(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, Tensor) or isinstance(theirs, Tensor):
        return (isinstance(mine, Tensor) and isinstance(theirs, Tensor) and mine.dtype == theirs.dtype
                and mine.dim() == theirs.dim())
    return type(mine) is type(theirs) and bool(mine == theirs)


def _batch_of(leaves: Iterable[Any]) -> int:
    """The first size that most tensors share; of the first tensor where none is more common."""
    sizes = [leaf.size(0) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() >= 1]
    if not sizes:
        raise GraphError("the model is called without a tensor that has a batch dimension")
    return max(sizes, key=lambda size: (sizes.count(size), -sizes.index(size)))


def export_model(model: nn.Module, modules: Sequence[LayerModule], inputs: RootInputs,
                 dynamic: Sequence[tuple[int, int]] = ()) -> ExportedModel:
    """Records the unwrapped `model` and cuts it into the graphs of `modules`.

    The training model is left exactly as it was, its random states included.

    Args:
      inputs: of one real batch.
      dynamic: (index of the tensor, dimension) of the input sizes that vary from batch to batch.

    Raises:
      GraphError: the model cannot be recorded, or its layer modules do not follow each other in the recording. An
        error of one layer module only is in ExportedModel.module().error.
    """
    inputs.check_simple()
    flat = _Flat(model, inputs)
    tensors = inputs.tensors()
    shapes = None
    if dynamic:
        per_tensor: list[dict[int, Any]] = [{} for _ in tensors]
        for index, dimension in dynamic:
            per_tensor[index][dimension] = torch.export.Dim.AUTO
        shapes = (tuple(per_tensor),)
    with undisturbed(model), warnings.catch_warnings(), _quiet_torch():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(flat, tuple(tensors), dynamic_shapes=shapes, strict=False)
            program = program.run_decompositions({})
        except Exception as error:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
            raise GraphError(f"torch.export: {_first_line(error)}") from error
        return ExportedModel(model, modules, inputs, dynamic, _recording_of(program))


class _Flat(nn.Module):
    """The model as a function of tensors only, with tensors as results."""

    def __init__(self, model: nn.Module, inputs: RootInputs):
        super().__init__()
        self.add_module(_WRAPPER, model)
        self.__dict__["training"] = False
        self._inputs = inputs

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        result = self._inputs.call(self.get_submodule(_WRAPPER), tensors)
        return _tensors_in(result)


def _tensors_in(value: Any) -> list[Tensor]:
    """Tensors of a result, also of one whose type pytree does not know (an output class)."""
    found: list[Tensor] = []
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            found += [tensor for field in dataclasses.fields(leaf) for tensor in _tensors_in(getattr(leaf, field.name))]
    return found


@contextlib.contextmanager
def _quiet_torch():
    """torch.export explains its failures at length on the log; ours says them in one line."""
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch.fx", "torch._export", "torch._dynamo")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


def _first_line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


# The recording.


@dataclasses.dataclass
class _Recording:
    """A functional graph whose leaves are the model's inputs, its weights by name, and constants."""

    nodes: list[fx.Node]  # call_function only, in order
    inputs: list[fx.Node]
    weights: dict[fx.Node, str]  # parameters and buffers: names in the unwrapped model
    constants: dict[fx.Node, Tensor]
    outputs: list[fx.Node]


def _recording_of(program: torch.export.ExportedProgram) -> _Recording:
    graph = program.graph_module.graph
    _inline_scopes(program.graph_module)
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs if hasattr(spec.arg, "name")}
    recording = _Recording([], [], {}, {}, [])
    for node in graph.nodes:
        if node.op == "placeholder":
            spec = specs[node.name]
            if spec.kind == InputKind.USER_INPUT:
                recording.inputs.append(node)
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                recording.weights[node] = spec.target.removeprefix(f"{_WRAPPER}.")
            elif spec.kind == InputKind.CONSTANT_TENSOR:
                recording.constants[node] = program.constants[spec.target].detach()
            else:
                raise GraphError(f"the model holds a {spec.kind.name.lower().replace('_', ' ')}")
        elif node.op == "get_attr":
            value = _attribute(program.graph_module, node.target)
            if isinstance(value, Tensor):
                recording.constants[node] = value.detach()
        elif node.op == "call_function":
            recording.nodes.append(node)
        elif node.op == "output":
            wanted = set(program.graph_signature.user_outputs)
            recording.outputs = [value for value in node.args[0] if isinstance(value, fx.Node) and value.name in wanted]
    return recording


def _attribute(module: Any, path: str) -> Any:
    for name in str(path).split("."):
        module = getattr(module, name)
    return module


def _inline_scopes(module: fx.GraphModule) -> None:
    """Takes `with torch.no_grad()` and `with torch.autocast(enabled=False)` inside a model out of the recording:
    both do nothing here. What else is a scope stays, and is refused by name where a layer module needs it."""
    hops = torch.ops.higher_order
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is hops.wrap_with_set_grad_enabled:
            scope, operands = node.args[1], node.args[2:]
        elif node.target is hops.wrap_with_autocast and node.args[2] is False:
            scope, operands = node.args[4], node.args[5:]
        else:
            continue
        inner: fx.GraphModule = _attribute(module, scope.target)
        _inline_scopes(inner)
        values = dict(zip((n for n in inner.graph.nodes if n.op == "placeholder"), operands))
        with module.graph.inserting_before(node):
            result = module.graph.graph_copy(inner.graph, values)
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        for user in list(node.users):
            if user.target is operator.getitem:
                user.replace_all_uses_with(results[user.args[1]])
                module.graph.erase_node(user)
        if node.users:
            node.replace_all_uses_with(results[0])
        module.graph.erase_node(node)


# Cutting it.


@dataclasses.dataclass
class _Piece:
    """One layer module's part of the recording."""

    output: fx.Node
    inputs: list[fx.Node]  # nodes of the recording: values of earlier pieces, or inputs of the model
    nodes: list[fx.Node]


class ExportedModel:
    """A recorded model, in the pieces of its layer modules. Runs with the weights that the model has now.

    Owned by the training thread. Refers to the model; holds no copy of its weights.

    Attributes:
      modules: the layer modules, with what containers hold put where it is used last, so that nothing freezes that an
        active layer module still uses.
    """

    def __init__(self, model: nn.Module, modules: Sequence[LayerModule], inputs: RootInputs,
                 dynamic: Sequence[tuple[int, int]], recording: _Recording):
        self.samples = inputs.samples
        self._model = model
        self._device = device_of(model)
        self._example = inputs
        self._dynamic = frozenset(dynamic)
        self._recording = recording
        self._position = {node: index for index, node in enumerate(recording.nodes)}
        self._cheap: dict[fx.Node, set[fx.Node] | None] = {}
        cuts = _Cuts(model, modules, recording, self._is_activation)
        self._pieces: list[_Piece | None] = []
        self._modules: list[ExportedModule] = []
        for index in range(len(modules)):
            try:
                piece = self._piece_of(cuts, index)
                self._modules.append(self._describe(piece))
                self._pieces.append(piece)
            except GraphError as error:
                self._modules.append(ExportedModule(None, str(error)))
                self._pieces.append(None)
        self._programs: dict[tuple[str, int], _Program] = {}
        self.modules = _settle(modules, cuts)

    def module(self, index: int) -> ExportedModule:
        return self._modules[index]

    def weights(self, index: int) -> dict[str, Tensor]:
        """What a snapshot of the layer module consists of, by the names of its graph. Not copies."""
        return self._program("module", index).weights()

    def inputs_of(self, index: int, inputs: RootInputs) -> list[Tensor]:
        """The layer module's inputs for these inputs of the model, computed by the modules before it with the
        weights that they have now.

        Raises:
          ShapeMismatch: the inputs have other sizes than those that the model was recorded with.
        """
        self._check(inputs)
        return self._program("prefix", index)(inputs.tensors())

    def run(self, index: int, inputs: Sequence[Tensor]) -> Tensor:
        """The layer module's output, with the weights that it has now: b x ... ."""
        return self._program("module", index)(list(inputs))[0]

    def run_with(self, index: int, inputs: Sequence[Tensor], weights: dict[str, Tensor]) -> Tensor:
        """The layer module's output with these weights."""
        return self._program("module", index)(list(inputs), weights)[0]

    def _check(self, inputs: RootInputs) -> None:
        example = self._example
        if not inputs.same_call(example):
            raise ShapeMismatch("the model is called in another way than when it was recorded")
        for index, (mine, theirs) in enumerate(zip(inputs.shapes(), example.shapes())):
            if len(mine) != len(theirs) or any(
                    a != b and (index, dimension) not in self._dynamic
                    for dimension, (a, b) in enumerate(zip(mine, theirs))):
                raise ShapeMismatch(f"an input is {list(mine)}, where {list(theirs)} was recorded")

    def _piece_of(self, cuts: _Cuts, index: int) -> _Piece:
        begin, end = cuts.bounds(index)
        output = self._output_of(cuts, begin, end)
        inputs, nodes = self._needs([output], begin)
        inputs.sort(key=lambda node: self._position.get(node, -1), reverse=True)  # the newest is the main one
        # Not even before this layer module: its inputs are computed by a run of what comes before.
        for node in {*nodes, *self._needs(inputs, 0)[1]}:
            _refuse_random(node)
        return _Piece(output, inputs, nodes)

    def _needs(self, wanted: Sequence[fx.Node], begin: int) -> tuple[list[fx.Node], list[fx.Node]]:
        """What computing `wanted` takes: inputs (from before `begin`) and operators, in order."""
        inputs: dict[fx.Node, None] = {}
        nodes: set[fx.Node] = set()
        stack = list(wanted)
        while stack:
            node = stack.pop()
            if node in nodes or node in inputs or node in self._recording.weights or node in self._recording.constants:
                continue
            if node not in self._position:
                inputs[node] = None  # of the model
                continue
            again = self._recomputable(node)
            if self._position[node] < begin and again is None:
                if isinstance(node.meta.get("val"), Tensor):
                    inputs[node] = None
                    continue
                # A size or a list: it is made anew from the tensors that it is of.
            nodes.add(node)
            stack += node.all_input_nodes
        return list(inputs), sorted(nodes, key=self._position.__getitem__)

    def _recomputable(self, node: fx.Node) -> set[fx.Node] | None:
        """The operators under `node`, itself included, if they are few and need no weight; else None."""
        if node not in self._cheap:
            below: set[fx.Node] | None = {node}
            for source in node.all_input_nodes:
                if source in self._recording.weights:
                    below = None
                elif source in self._position:
                    inner = self._recomputable(source)
                    below = None if inner is None or below is None else below | inner
                if below is None:
                    break
            self._cheap[node] = below if below is not None and len(below) <= _MOST_RECOMPUTED else None
        return self._cheap[node]

    def _output_of(self, cuts: _Cuts, begin: int, end: int) -> fx.Node:
        """The newest activation of the layer module that something behind it needs."""
        behind = cuts.needed_from(end)
        for node in reversed(self._recording.nodes[begin:end]):
            if node in behind and self._is_activation(node):
                return node
        raise GraphError(f"nothing that it computes has the {self.samples} samples as its first dimension and is "
                         "used behind it")

    def _is_activation(self, node: fx.Node) -> bool:
        """Whether weights made it, and its first dimension is the samples."""
        value = node.meta.get("val")
        return (isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2
                and value.shape[0] == self.samples and self._recomputable(node) is None)

    # Programs.

    def _program(self, kind: str, index: int) -> _Program:
        program = self._programs.get((kind, index))
        if program is None:
            piece = self._pieces[index]
            if piece is None:
                raise GraphError(self._modules[index].error or "")
            if kind == "module":
                program = _Program(self, piece.inputs, piece.nodes, [piece.output])
            else:
                _, nodes = self._needs(piece.inputs, 0)
                program = _Program(self, self._recording.inputs, nodes, piece.inputs)
            self._programs[kind, index] = program
        return program

    # As a message.

    def _describe(self, piece: _Piece) -> ExportedModule:
        writer = _Writer(self._recording, self._model)
        text = writer.write(piece.inputs, piece.nodes, piece.output)
        return ExportedModule(text, None, tuple(writer.name_of(node) for node in piece.inputs))


class _Cuts:
    """Where one layer module's part of the recording ends and the next one's begins."""

    def __init__(self, model: nn.Module, modules: Sequence[LayerModule], recording: _Recording,
                 is_activation: Callable[[fx.Node], bool]):
        self._is_activation = is_activation
        self._modules = modules
        self._recording = recording
        self._position = {node: position for position, node in enumerate(recording.nodes)}
        self._owner: dict[fx.Node, int | None] = {}  # by the submodule that an operator was recorded in
        self._uses = self._positions_by_module(model)
        self._first = {index: uses[0] for index, uses in self._uses.items()}
        self._last = self._last_positions()
        self._ends = self._end_positions()

    def _positions_by_module(self, model: nn.Module) -> dict[int, list[int]]:
        """Positions of the operators of each layer module, from its first use of a parameter on.

        Parts without weights (an activation that is called everywhere) and tensors that a container holds are no layers,
        and do not say where a layer module begins and ends.
        """
        owner_of_module: dict[int, int] = {}
        owner_of_parameter: dict[int, int] = {}
        with_weights: set[int] = set()
        for index, module in enumerate(self._modules):
            loose = {name for name, _ in module.loose}
            for unit in module.units:
                for inner in unit.modules():
                    owner_of_module.setdefault(id(inner), index)
                    if has_parameters(unit):
                        with_weights.add(id(inner))
            for name, parameter in module.parameters():
                if name not in loose:
                    owner_of_parameter.setdefault(id(parameter), index)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        owner_of_weight = {node: owner_of_parameter.get(id(parameters.get(name)))
                           for node, name in self._recording.weights.items()}
        submodules = dict(model.named_modules(remove_duplicate=False))
        needed = self._ancestors(self._recording.outputs)
        uses: dict[int, list[int]] = {}
        for position, node in enumerate(self._recording.nodes):
            inside = next((module for module in reversed(self._stack(node, submodules)) if id(module) in owner_of_module),
                          None)
            owner = self._owner[node] = None if inside is None else owner_of_module[id(inside)]
            if node not in needed:
                continue
            users = {owner_of_weight.get(source) for source in node.all_input_nodes} - {None}
            if inside is not None and id(inside) in with_weights and owner in uses:
                users.add(owner)
            for user in users:
                uses.setdefault(user, []).append(position)
        return uses

    @staticmethod
    def _stack(node: fx.Node, submodules: dict[str, nn.Module]) -> list[nn.Module]:
        """The submodules in whose forward the operator was recorded, outermost first."""
        names = (str(path).split("@")[0].removeprefix(_WRAPPER).removeprefix(".")
                 for path, _ in (node.meta.get("nn_module_stack") or {}).values())
        return [submodules[name] for name in names if name in submodules]

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
                raise GraphError(f"layer module '{self._modules[before].name}' runs before "
                                 f"'{self._modules[after].name}'; list them in forward order")
            # Used again behind the beginning of the next one (an embedding that encoder and decoder share): what it
            # computes there is the later one's.
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
        functional activation, the sum of two embeddings. What brings in an earlier value (a skip connection), and
        what picks or pools, begins the next; but where the layer module has no activation yet (a position embedding,
        the same for all samples) it ends behind the operator that makes one."""
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
            if done and (not sources or any(self._position.get(source, -1) < begin for source in sources)
                         or any(_elements(source) > _elements(node) for source in sources
                                if self._is_activation(source))):
                break
            done = done or self._is_activation(node)
            end += 1
        return end

    def _is_value(self, node: fx.Node) -> bool:
        return node not in self._recording.weights and node not in self._recording.constants

    def bounds(self, index: int) -> tuple[int, int]:
        """Positions begin..end-1 belong to the layer module."""
        if index not in self._last:
            raise GraphError("none of its weights is used in evaluation mode")
        return (self._ends[index - 1] if index else 0), self._ends[index]

    def last_user(self, name: str) -> int | None:
        """The layer module in whose part a parameter or buffer is used last; None where it is not used."""
        nodes = [node for node, weight in self._recording.weights.items() if weight == name]
        last = max((self._position[user] for node in nodes for user in node.users if user in self._position),
                   default=None)
        return None if last is None else next(index for index, end in enumerate(self._ends) if last < end)

    def needed_from(self, end: int) -> set[fx.Node]:
        """Values that operators from `end` on, or the model's results, need directly."""
        needed = set(self._recording.outputs)
        for node in self._recording.nodes[end:]:
            needed.update(node.all_input_nodes)
        return needed


def _settle(modules: Sequence[LayerModule], cuts: _Cuts) -> list[LayerModule]:
    homes: dict[int, list[tuple[str, nn.Module]]] = {}
    for index, module in enumerate(modules):
        for name, owner in module.loose:
            last = cuts.last_user(name)
            homes.setdefault(index if last is None else last, []).append((name, owner))
    return [dataclasses.replace(module, loose=tuple(homes.get(index, ()))) for index, module in enumerate(modules)]


def _elements(node: fx.Node) -> float:
    value = node.meta.get("val")
    return int(value.numel()) if isinstance(value, Tensor) and isinstance(value.numel(), int) else 0


def _refuse_random(node: fx.Node) -> None:
    """Raises GraphError for an operator that draws random numbers with the arguments that it has."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return
    names = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(names, node.args)), **node.kwargs}
    if given.get("train") is False or ("dropout_p" in names and not given.get("dropout_p", 0.0)):
        return
    raise GraphError(f"{target._schema.name} draws random numbers in evaluation mode")


class _Program:
    """Operators as a function of tensors, compiled to Python; weights come from the model at each call."""

    def __init__(self, exported: ExportedModel, inputs: Sequence[fx.Node], nodes: Sequence[fx.Node],
                 outputs: Sequence[fx.Node]):
        recording = exported._recording
        self._model = exported._model
        self._device = exported._device
        graph = fx.Graph()
        values = {node: graph.placeholder(f"input_{i}") for i, node in enumerate(inputs)}
        used = {source for node in nodes for source in node.all_input_nodes} | set(outputs)
        weights = [node for node in recording.weights if node in used]
        constants = [node for node in recording.constants if node in used]
        for i, node in enumerate(weights):
            values[node] = graph.placeholder(f"weight_{i}")
        for i, node in enumerate(constants):
            values[node] = graph.placeholder(f"constant_{i}")
        for node in nodes:
            if not _is_assertion(node):
                values[node] = graph.node_copy(node, values.__getitem__)
        graph.output(tuple(values[node] for node in outputs))
        self._names = [recording.weights[node] for node in weights]
        self._constant_names = [f"constant:{node.name}" for node in constants]
        self._constants = [recording.constants[node] for node in constants]
        self._function = fx.GraphModule(nn.Module(), graph).forward

    def __call__(self, inputs: list[Tensor], weights: dict[str, Tensor] | None = None) -> list[Tensor]:
        named = weights if weights is not None else self.weights()
        arguments = [named[name] for name in (*self._names, *self._constant_names)]
        with plain_evaluation(self._device):
            return list(self._function(*inputs, *arguments))

    def weights(self) -> dict[str, Tensor]:
        found = {name: tensor_named(self._model, name).detach() for name in self._names}
        found.update(zip(self._constant_names, self._constants))
        return found


def tensor_named(model: nn.Module, name: str) -> Tensor:
    """A parameter or buffer by its full name."""
    owner, _, short = name.rpartition(".")
    return getattr(model.get_submodule(owner), short)


def _is_assertion(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in _ASSERTIONS


class _Writer:
    """Writes a piece as egeria.v1.ModuleGraph in protobuf's JSON. Value names begin with '%', which no weight's
    name does."""

    def __init__(self, recording: _Recording, model: nn.Module):
        self._recording = recording
        self._model = model
        self._weights: dict[str, Tensor] = {}

    def name_of(self, node: fx.Node) -> str:
        if node in self._recording.weights:
            return self._recording.weights[node]
        return f"constant:{node.name}" if node in self._recording.constants else f"%{node.name}"

    def write(self, inputs: Sequence[fx.Node], nodes: Sequence[fx.Node], output: fx.Node) -> str:
        written = [self._node(node) for node in nodes if not _is_assertion(node)]
        for name, tensor in self._weights.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise GraphError(f"'{name}' has elements that are infinite or not numbers")
        if not inputs:
            raise GraphError("its output does not depend on the model's input")
        return json.dumps({
            "inputs": [self._spec(self.name_of(node), node.meta["val"]) for node in inputs],
            "weights": [self._spec(name, tensor) for name, tensor in self._weights.items()],
            "nodes": written,
            "outputs": [self.name_of(output)],
        })

    def _spec(self, name: str, tensor: Tensor) -> dict[str, Any]:
        if tensor.dtype not in _DATA_TYPES:
            raise GraphError(f"'{name}' has the element type {tensor.dtype}, which cannot be sent")
        shape = [size if isinstance(size, int) else -1 for size in tensor.shape]
        return {"name": name, "dtype": _DATA_TYPES[tensor.dtype], "shape": shape}

    def _node(self, node: fx.Node) -> dict[str, Any]:
        outputs = [self.name_of(node)]
        if node.target is operator.getitem:
            return {"op": "egeria::getitem", "args": [self._argument(argument) for argument in node.args],
                    "outputs": outputs}
        if node.target in _INTEGER_OPERATORS:
            return {"op": f"egeria::{_INTEGER_OPERATORS[node.target]}",
                    "args": [self._argument(argument) for argument in node.args], "outputs": outputs}
        if not isinstance(node.target, torch._ops.OpOverload):
            raise GraphError(f"[UNKNOWN_OP] {getattr(node.target, '__name__', node.target)}")
        schema = node.target._schema
        return {
            "op": schema.name,
            "overload": schema.overload_name,
            "args": [self._argument(argument) for argument in node.args],
            "kwargs": {name: self._argument(argument) for name, argument in node.kwargs.items()},
            "outputs": outputs,
        }

    def _argument(self, value: Any) -> dict[str, Any]:  # pylint: disable=too-many-return-statements
        if isinstance(value, fx.Node):
            self._remember(value)
            return {"value": self.name_of(value)}
        if value is None:
            return {"none": {}}
        if isinstance(value, bool):
            return {"boolValue": value}
        if isinstance(value, int):
            return {"intValue": value}
        if isinstance(value, float):
            return {"floatValue": value if math.isfinite(value) else _infinite(value)}
        if isinstance(value, str):
            return {"stringValue": value}
        if isinstance(value, torch.dtype):
            if value not in _DATA_TYPES:
                raise GraphError(f"the element type {value} cannot be sent")
            return {"dtypeValue": _DATA_TYPES[value]}
        if isinstance(value, torch.device):
            return {"stringValue": "cpu"}  # the controller's; a job may train elsewhere
        if isinstance(value, torch.memory_format):
            return {"intValue": _MEMORY_FORMATS[value]}
        if value is torch.strided:
            return {"intValue": 0}
        if isinstance(value, (list, tuple)):
            return {"list": {"items": [self._argument(item) for item in value]}}
        raise GraphError(f"[UNKNOWN_OP] an operator takes a {type(value).__name__}")

    def _remember(self, node: fx.Node) -> None:
        if node in self._recording.weights:
            name = self._recording.weights[node]
            self._weights.setdefault(name, tensor_named(self._model, name).detach())
        elif node in self._recording.constants:
            self._weights.setdefault(self.name_of(node), self._recording.constants[node])


def _infinite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
