"""This file records a whole model as one graph of operators, by torch.export."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import operator
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind

from egeria.model.inputs import GraphError, RootInputs
from egeria.model.outputs import tensors_in
from egeria.model.shadow import Shadow

# These operators only check, and compute nothing.
_ASSERTIONS = {
    "aten::_assert_scalar",
    "aten::_assert_async",
    "aten::_assert_tensor_metadata",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
}
_WRAPPER = "model"  # the attribute of _Flat that holds the user's model


@dataclasses.dataclass
class Recording:
    """Holds a functional graph whose leaves are the model's inputs, its weights by name, and constants."""

    nodes: list[fx.Node]  # call_function only, in order
    inputs: list[fx.Node]
    weights: dict[fx.Node, str]  # parameters and buffers: names in the unwrapped model
    constants: dict[fx.Node, Tensor]
    outputs: list[fx.Node]


def record(model: nn.Module, inputs: RootInputs, dynamic: Sequence[tuple[int, int]]) -> Recording:
    """Records the unwrapped `model` in evaluation mode, by a shadow of it.

    Args:
      dynamic: (index of the tensor, dimension) of the input sizes that are not to be constants.

    Raises:
      GraphError: torch.export cannot.
      NoShadow: the model has none.
    """
    inputs.check_simple()
    tensors = inputs.tensors()
    shapes = None
    if dynamic:
        per_tensor: list[dict[int, Any]] = [{} for _ in tensors]
        for index, dimension in dynamic:
            per_tensor[index][dimension] = torch.export.Dim.AUTO
        shapes = (tuple(per_tensor),)
    shadow = Shadow(model)
    with shadow.evaluated(guarded=False) as twin, warnings.catch_warnings(), _quiet_torch():
        warnings.simplefilter("ignore")
        try:
            flat = _Flat(twin, inputs)
            program = torch.export.export(flat, tuple(tensors), dynamic_shapes=shapes, strict=False)
            program = program.run_decompositions({})
        except Exception as error:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
            raise GraphError(f"torch.export: {_first_line(error)}") from error
        return _recording_of(program, model)


def stack_of(node: fx.Node, submodules: dict[str, nn.Module]) -> list[nn.Module]:
    """Returns the submodules in whose forward the operator was recorded, outermost first."""
    names = (
        str(path).split("@")[0].removeprefix(_WRAPPER).removeprefix(".")
        for path, _ in (node.meta.get("nn_module_stack") or {}).values()
    )
    return [submodules[name] for name in names if name in submodules]


def tensor_named(model: nn.Module, name: str) -> Tensor:
    """Returns a parameter or buffer by its full name."""
    owner, _, short = name.rpartition(".")
    return getattr(model.get_submodule(owner), short)


def is_assertion(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in _ASSERTIONS


class _Flat(nn.Module):
    """Wraps the model as a function of tensors only, with tensors as results."""

    def __init__(self, model: nn.Module, inputs: RootInputs):
        super().__init__()
        self.add_module(_WRAPPER, model)
        self.__dict__["training"] = False
        self._inputs = inputs

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        result = self._inputs.call(self.get_submodule(_WRAPPER), tensors)
        return tensors_in(result)


@contextlib.contextmanager
def _quiet_torch() -> Iterator[None]:
    """Keeps torch.export from explaining its failures at length on the log; ours says them in one line."""
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


def _recording_of(program: torch.export.ExportedProgram, model: nn.Module) -> Recording:
    graph = program.graph_module.graph
    _inline_scopes(program.graph_module)
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs if hasattr(spec.arg, "name")}
    recording = Recording([], [], {}, {}, [])
    for node in graph.nodes:
        if node.op == "placeholder":
            spec = specs[node.name]
            if spec.kind == InputKind.USER_INPUT:
                recording.inputs.append(node)
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                recording.weights[node] = spec.target.removeprefix(f"{_WRAPPER}.")
            elif spec.kind == InputKind.CONSTANT_TENSOR:
                own = _attribute(model, spec.target.removeprefix(f"{_WRAPPER}."))  # the model's, not the shadow's
                recording.constants[node] = (program.constants[spec.target] if own is None else own).detach()
            else:
                raise GraphError(f"the model holds a {spec.kind.name.lower().replace('_', ' ')}")
        elif node.op == "get_attr":
            value = operator.attrgetter(node.target)(program.graph_module)
            if isinstance(value, Tensor):
                recording.constants[node] = value.detach()
        elif node.op == "call_function":
            recording.nodes.append(node)
        elif node.op == "output":
            wanted = set(program.graph_signature.user_outputs)
            recording.outputs = [value for value in node.args[0] if isinstance(value, fx.Node) and value.name in wanted]
    return recording


def _attribute(model: nn.Module, name: str) -> Tensor | None:
    try:
        found = operator.attrgetter(name)(model)
    except AttributeError:
        return None
    return found if isinstance(found, Tensor) else None


def _inline_scopes(module: fx.GraphModule) -> None:
    """Takes `with torch.no_grad()` and `with torch.autocast(enabled=False)` inside a model out of the recording:
    both do nothing here. Any other scope stays, and is refused by name where a layer module needs it."""
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
        inner: fx.GraphModule = operator.attrgetter(scope.target)(module)
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
