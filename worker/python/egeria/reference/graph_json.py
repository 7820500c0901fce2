"""This file writes graphs as messages egeria.v1.ModuleGraph, in protobuf's JSON."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from egeria.model.inputs import GraphError
from egeria.reference.recording import Recording, is_assertion, tensor_named

# These are the numbers of egeria.v1.DataType.
_DATA_TYPES = {
    torch.float32: 1,
    torch.float64: 2,
    torch.float16: 3,
    torch.bfloat16: 4,
    torch.int64: 5,
    torch.int32: 6,
    torch.uint8: 7,
    torch.int8: 8,
    torch.bool: 9,
}
# These are ATen's numbers, which graph.proto uses.
_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}
# These operators are not torch's: they pick from lists, and compute sizes that are not constants.
_OWN_OPERATORS = {
    operator.getitem: "getitem",
    operator.add: "sym_add",
    operator.sub: "sym_sub",
    operator.mul: "sym_mul",
    operator.floordiv: "sym_floordiv",
    operator.mod: "sym_mod",
    torch.sym_max: "sym_max",
    torch.sym_min: "sym_min",
}


class GraphWriter:
    """Writes a piece as egeria.v1.ModuleGraph in protobuf's JSON. Value names begin with '%', which no weight's
    name does."""

    def __init__(self, recording: Recording, model: nn.Module):
        self._recording = recording
        self._model = model
        self._weights: dict[str, Tensor] = {}

    def name_of(self, node: fx.Node) -> str:
        if node in self._recording.weights:
            return self._recording.weights[node]
        return f"constant:{node.name}" if node in self._recording.constants else f"%{node.name}"

    def write(self, inputs: Sequence[fx.Node], nodes: Sequence[fx.Node], output: fx.Node) -> str:
        written = [self._node(node) for node in nodes if not is_assertion(node)]
        for name, tensor in self._weights.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise GraphError(f"'{name}' has elements that are infinite or not numbers")
        if not inputs:
            raise GraphError("its output does not depend on the model's input")
        return json.dumps(
            {
                "inputs": [self._spec(self.name_of(node), node.meta["val"]) for node in inputs],
                "weights": [self._spec(name, tensor) for name, tensor in self._weights.items()],
                "nodes": written,
                "outputs": [self.name_of(output)],
            }
        )

    def _spec(self, name: str, tensor: Tensor) -> dict[str, Any]:
        if tensor.dtype not in _DATA_TYPES:
            raise GraphError(f"'{name}' has the element type {tensor.dtype}, which cannot be sent")
        shape = [size if isinstance(size, int) else -1 for size in tensor.shape]
        return {"name": name, "dtype": _DATA_TYPES[tensor.dtype], "shape": shape}

    def _node(self, node: fx.Node) -> dict[str, Any]:
        own = _OWN_OPERATORS.get(node.target)
        if own is None and not isinstance(node.target, torch._ops.OpOverload):
            raise GraphError(f"[UNKNOWN_OP] {getattr(node.target, '__name__', node.target)}")
        args, outputs = [self._argument(argument) for argument in node.args], [self.name_of(node)]
        if own is not None:
            return {"op": f"egeria::{own}", "args": args, "outputs": outputs}
        schema = node.target._schema
        kwargs = {name: self._argument(argument) for name, argument in node.kwargs.items()}
        overload = schema.overload_name
        return {"op": schema.name, "overload": overload, "args": args, "kwargs": kwargs, "outputs": outputs}

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
            # Protobuf wants text for what JSON has no numbers for: NaN, Infinity, -Infinity.
            return {"floatValue": value if math.isfinite(value) else json.dumps(value)}
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
