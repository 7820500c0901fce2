"""An ExportedModel has each layer module as a graph of operators, which the controller gets and probes run.

`torch.export` records the whole model once, in evaluation mode, on a real batch of b samples. The recording is cut
behind the last operator of each layer module. Module l's graph computes its *output*, the activation whose Gram
matrix is taken, from its *inputs*: the values that the output needs and that were computed before the cut. Values
that depend on the model's inputs only (attention masks) are computed anew in each graph instead of being sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn

from egeria.model.inputs import GraphError, RootInputs, ShapeMismatch
from egeria.model.isolation import device_of, plain_evaluation
from egeria.model.modules import LayerModule, each_once
from egeria.reference.graph_json import GraphWriter
from egeria.reference.module_cuts import Cuts
from egeria.reference.recording import Recording, is_assertion, record, tensor_named

# A value that needs no weight is computed anew in each graph if that takes at most this many operators.
_MAX_RECOMPUTED = 100


@dataclasses.dataclass(frozen=True)
class ExportedModule:
    """Holds one layer module's graph.

    Attributes:
      graph_json: egeria.v1.ModuleGraph as protobuf JSON; None where there is no graph.
      error: why there is none, in words.
      input_names: names of the graph's inputs, in order.
    """

    graph_json: str | None
    error: str | None
    input_names: tuple[str, ...] = ()


def export_model(
    model: nn.Module, modules: Sequence[LayerModule], inputs: RootInputs, dynamic: Sequence[tuple[int, int]] = ()
) -> ExportedModel:
    """Records the unwrapped `model` and cuts it into the graphs of `modules`.

    The training model is left exactly as it was, its random states included.

    Args:
      inputs: one real batch.
      dynamic: (index of the tensor, dimension) of the input sizes that vary from batch to batch.

    Raises:
      GraphError: the model cannot be recorded, or its layer modules do not follow each other in the recording. An
        error of one layer module only is in ExportedModel.module().error.
    """
    return ExportedModel(model, modules, inputs, dynamic, record(model, inputs, dynamic))


@dataclasses.dataclass
class _Piece:
    """Holds one layer module's part of the recording."""

    output: fx.Node
    inputs: list[fx.Node]  # nodes of the recording: values of earlier pieces, or inputs of the model
    nodes: list[fx.Node]


class ExportedModel:
    """Keeps a recorded model in the pieces of its layer modules, and runs them with the weights that it has now.

    Owned by the training thread. Refers to the model; holds no copy of its weights.

    Attributes:
      modules: the layer modules, with what containers hold put where it is used last, so that nothing freezes that
        an active layer module still uses.
    """

    def __init__(
        self,
        model: nn.Module,
        modules: Sequence[LayerModule],
        inputs: RootInputs,
        dynamic: Sequence[tuple[int, int]],
        recording: Recording,
    ):
        self.samples = inputs.samples
        self._model = model
        self._device = device_of(model)
        self._example = inputs
        self._dynamic = frozenset(dynamic)
        self._recording = recording
        self._position = {node: index for index, node in enumerate(recording.nodes)}
        self._cheap: dict[fx.Node, set[fx.Node] | None] = {}
        cuts = Cuts(model, modules, recording, self._is_activation)
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
        """Returns what a snapshot of the layer module consists of, by the names of its graph. They are no copies."""
        return self._program("module", index).weights()

    def inputs_of(self, index: int, inputs: RootInputs) -> list[Tensor]:
        """Computes the layer module's inputs for these inputs of the model, by the modules before it with the weights
        that they have now.

        Raises:
          ShapeMismatch: the inputs have other sizes than those that the model was recorded with.
        """
        self._check(inputs)
        return self._program("prefix", index)(inputs.tensors())

    def run(self, index: int, inputs: Sequence[Tensor]) -> Tensor:
        """Computes the layer module's output, b x ..., with the weights that it has now."""
        return self._program("module", index)(list(inputs))[0]

    def _check(self, inputs: RootInputs) -> None:
        example = self._example
        if not inputs.same_call(example):
            raise ShapeMismatch("the model is called in another way than when it was recorded")
        for index, (mine, theirs) in enumerate(zip(inputs.shapes(), example.shapes())):
            if len(mine) != len(theirs) or any(
                a != b and (index, dimension) not in self._dynamic for dimension, (a, b) in enumerate(zip(mine, theirs))
            ):
                raise ShapeMismatch(f"an input is {list(mine)}, where {list(theirs)} was recorded")

    def _piece_of(self, cuts: Cuts, index: int) -> _Piece:
        begin, end = cuts.bounds(index)
        output = self._output_of(cuts, begin, end)
        inputs, nodes = self._needs([output], begin)
        inputs.sort(key=lambda node: self._position.get(node, -1), reverse=True)  # the newest is the main one
        # Random numbers may not be drawn before this layer module either: a run of that computes its inputs.
        for node in {*nodes, *self._needs(inputs, 0)[1]}:
            _refuse_random(node)
        return _Piece(output, inputs, nodes)

    def _needs(self, wanted: Sequence[fx.Node], begin: int) -> tuple[list[fx.Node], list[fx.Node]]:
        """Returns what computing `wanted` takes: inputs (from before `begin`) and operators, in order."""
        inputs: dict[fx.Node, None] = {}
        nodes: set[fx.Node] = set()
        stack = list(wanted)
        while stack:
            node = stack.pop()
            if node in nodes or node in inputs:
                continue
            if node in self._recording.weights or node in self._recording.constants:
                continue
            if node not in self._position:
                inputs[node] = None  # it is an input of the model
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
        """Returns the operators under `node`, itself included, if they are few and need no weight; else None."""
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
            self._cheap[node] = below if below is not None and len(below) <= _MAX_RECOMPUTED else None
        return self._cheap[node]

    def _output_of(self, cuts: Cuts, begin: int, end: int) -> fx.Node:
        """Returns the newest activation of the layer module that something behind it needs."""
        behind = cuts.needed_from(end)
        for node in reversed(self._recording.nodes[begin:end]):
            if node in behind and self._is_activation(node):
                return node
        raise GraphError(
            f"nothing that it computes has the {self.samples} samples as its first dimension and is used behind it"
        )

    def _is_activation(self, node: fx.Node) -> bool:
        """Returns whether weights made it, and its first dimension is the samples."""
        value = node.meta.get("val")
        return (
            isinstance(value, Tensor)
            and value.is_floating_point()
            and value.dim() >= 2
            and value.shape[0] == self.samples
            and self._recomputable(node) is None
        )

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

    def _describe(self, piece: _Piece) -> ExportedModule:
        writer = GraphWriter(self._recording, self._model)
        text = writer.write(piece.inputs, piece.nodes, piece.output)
        return ExportedModule(text, None, tuple(writer.name_of(node) for node in piece.inputs))


def _settle(modules: Sequence[LayerModule], cuts: Cuts) -> list[LayerModule]:
    homes: dict[int, list[tuple[str, nn.Module]]] = {}
    for index, module in enumerate(modules):
        for name, owner in module.loose:
            last = cuts.last_user(name)
            homes.setdefault(index if last is None else last, []).append((name, owner))
    settled = [dataclasses.replace(module, loose=tuple(homes.get(index, ()))) for index, module in enumerate(modules)]
    return each_once(settled)


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
    """Runs operators as a function of tensors, compiled to Python; weights come from the model at each call."""

    def __init__(
        self, exported: ExportedModel, inputs: Sequence[fx.Node], nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]
    ):
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
            if not is_assertion(node):
                values[node] = graph.node_copy(node, values.__getitem__)
        graph.output(tuple(values[node] for node in outputs))
        self._names = [recording.weights[node] for node in weights]
        self._constant_names = [f"constant:{node.name}" for node in constants]
        self._constants = [recording.constants[node] for node in constants]
        self._function = fx.GraphModule(nn.Module(), graph).forward

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        named = self.weights()
        arguments = [named[name] for name in (*self._names, *self._constant_names)]
        with plain_evaluation(self._device):
            return list(self._function(*inputs, *arguments))

    def weights(self) -> dict[str, Tensor]:
        found = {name: tensor_named(self._model, name).detach() for name in self._names}
        found.update(zip(self._constant_names, self._constants))
        return found
