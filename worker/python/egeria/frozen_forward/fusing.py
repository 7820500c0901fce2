"""A trace gets its inference form here: fewer passes over memory, by the kernels that torch.compile uses on CPUs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn.utils.fusion import fuse_conv_bn_weights

from egeria.frozen_forward.tracing import Trace

_aten = torch.ops.aten
_CONVOLUTIONS = (_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default)
_ADDITIONS = (_aten.add.Tensor, _aten.add_.Tensor)
# The parameters of these stay in float32, where values are rounded.
_NORMS = (_aten.batch_norm.default, _aten.layer_norm.default, _aten.group_norm.default)
_SAME = (_aten.detach.default, _aten.alias.default, _aten.dropout.default)
_LAST = torch.channels_last


def fuse(trace: Trace, dtype: torch.dtype) -> bool:
    """Rewrites a trace in place: folds batch normalisation into convolutions, joins these with what follows, puts
    channels last, and computes in `dtype`. The outputs have the element types and strides that they had.

    Returns:
      Whether anything but the element type has changed.
    """
    graph = _Graph(trace.module)
    fused = sum(graph.fold(node) for node in graph.nodes(_aten.batch_norm.default))
    graph.keep_outputs(trace.outputs)
    if graph.nodes(_aten.conv2d.default):
        graph.put_channels_last()
        fused += sum(graph.join(node) for node in graph.nodes(_aten.conv2d.default))
    if dtype != torch.float32:
        graph.compute_in(dtype)
    graph.finish()
    return fused > 0


class _Graph:
    """Changes a graph. Constants are attributes of its module."""

    def __init__(self, module: fx.GraphModule):
        self._module = module
        self._graph = module.graph
        self._constants = 0
        for node in list(self._graph.nodes):
            if node.target in _SAME:
                node.replace_all_uses_with(node.args[0])
                self._graph.erase_node(node)
            elif node.target is _aten.view.default:  # a tensor that was contiguous may have its channels last
                node.target = _aten.reshape.default

    def nodes(self, *targets: Any) -> list[fx.Node]:
        return [node for node in self._graph.nodes if node.target in targets]

    def finish(self) -> None:
        self._graph.eliminate_dead_code()
        used = {node.target for node in self._graph.nodes if _is_constant(node)}
        for table in (self._module._parameters, self._module._buffers):
            for name in [name for name in table if name not in used]:
                delattr(self._module, name)
        self._graph.lint()
        self._module.recompile()

    def fold(self, norm: fx.Node) -> bool:
        """Folds a batch normalisation into the convolution before it."""
        layer, weight, bias, mean, variance, training, _, epsilon, _ = norm.args
        if layer.target not in _CONVOLUTIONS or len(layer.users) != 1 or training:
            return False
        given = [_argument(layer, 1), _argument(layer, 2), mean, variance, weight, bias]
        if any(entry is not None and not _is_constant(entry) for entry in given):
            return False
        kernel, old_bias, *statistics = (None if entry is None else self._value(entry) for entry in given)
        folded = fuse_conv_bn_weights(kernel, old_bias, *statistics[:2], epsilon, *statistics[2:])
        with self._graph.inserting_before(layer):
            nodes = [self._constant(tensor.detach()) for tensor in folded]
        layer.args = (layer.args[0], *nodes, *layer.args[3:])
        _copy_meta(norm, layer)
        norm.replace_all_uses_with(layer)
        self._graph.erase_node(norm)
        return True

    def compute_in(self, dtype: torch.dtype) -> None:
        """Rounds the weights, and what comes in."""
        for node in [node for node in self._graph.nodes if _is_constant(node)]:
            if self._value(node).dtype == torch.float32 and not all(user.target in _NORMS for user in node.users):
                with self._graph.inserting_before(node):
                    rounded = self._constant(self._value(node).to(dtype))
                node.replace_all_uses_with(rounded)
        for node in self._inputs():
            if node.meta["tensor_meta"].dtype == torch.float32:
                self._behind(node, _aten.to.dtype, dtype)

    def put_channels_last(self) -> None:
        for node in self._inputs():
            if len(node.meta["tensor_meta"].shape) == 4:
                self._behind(node, _aten.contiguous.default, memory_format=_LAST)
        for layer in self.nodes(_aten.conv2d.default):
            if _is_constant(layer.args[1]):
                with self._graph.inserting_before(layer):
                    kernel = self._constant(self._value(layer.args[1]).contiguous(memory_format=_LAST))
                layer.args = (layer.args[0], kernel, *layer.args[2:])

    def keep_outputs(self, outputs: Sequence[Tensor]) -> None:
        """Gives the outputs the element types and strides that they had."""
        last = next(node for node in self._graph.nodes if node.op == "output")
        kept = []
        with self._graph.inserting_before(last):
            for node, before in zip(last.args[0], outputs):
                if (order := _order_of(before)) is not None:
                    node = self._graph.call_function(_aten.contiguous.default, (node,), {"memory_format": order})
                if before.is_floating_point():
                    node = self._graph.call_function(_aten.to.dtype, (node, before.dtype))
                kept.append(node)
        last.args = (kept,)

    def join(self, layer: fx.Node) -> bool:
        """Joins a convolution with an addition and an activation that follow it."""
        if not _is_constant(layer.args[1]):
            return False
        places = {node: place for place, node in enumerate(self._graph.nodes)}
        chain, other, activation = [layer], None, None
        if (after := _only_user(layer)) is not None and after.target in _ADDITIONS and not after.kwargs:
            operands = [entry for entry in after.args if entry is not layer]
            if len(operands) == 1 and _like(operands[0], after):
                other = operands[0]
                chain.append(after)
        if (after := _only_user(chain[-1])) is not None and (activation := _activation(after)) is not None:
            chain.append(after)
        end = chain[-1]
        between = (node for node in self._graph.nodes if places[layer] < places[node] < places[end])
        if any(_writes(node) and node not in chain for node in between):  # the layer would see what is written
            return False
        with self._graph.inserting_before(end):
            joined = self._joined(layer, other, activation, places, end)
        _copy_meta(end, joined)
        end.replace_all_uses_with(joined)
        for node in chain[::-1]:
            self._graph.erase_node(node)
        return len(chain) > 1

    def _joined(
        self, layer: fx.Node, other: fx.Node | None, activation: Any, places: dict[fx.Node, int], end: fx.Node
    ) -> fx.Node:
        """A sum is written over `other` where that is an earlier layer's result, which nobody needs any more."""
        kernels = torch.ops.mkldnn
        inputs, kernel = layer.args[:2]
        numbers = [_pair(_argument(layer, place, default)) for place, default in ((4, 0), (3, 1), (5, 1))]
        rest = kernel, _argument(layer, 2), *numbers, _argument(layer, 6, 1)
        pointwise = kernels._convolution_pointwise
        if other is None:
            arguments = (inputs, *rest, *(activation or ("none", [], "")))
            return self._graph.call_function(pointwise.default, arguments)
        added = "add", 1.0, *(activation or (None, [], None))
        fresh = pointwise.default, pointwise.binary, kernels._convolution_pointwise_.binary, _aten.conv2d.default
        users = [user for user in other.users if places[user] < places[end] and user not in layer.users]
        is_free = (
            other.target in fresh
            and other is not inputs
            and all(user.target in fresh for user in users)
            and all(places[user] <= places[end] for user in other.users)
        )
        if is_free:
            return self._graph.call_function(kernels._convolution_pointwise_.binary, (other, inputs, *rest, *added))
        return self._graph.call_function(pointwise.binary, (inputs, other, *rest, *added))

    def _inputs(self) -> list[fx.Node]:
        return [node for node in self._graph.nodes if node.op == "placeholder" and "tensor_meta" in node.meta]

    def _behind(self, node: fx.Node, target: Any, *args: Any, **kwargs: Any) -> None:
        """All who use `node` get target(node, ...) instead."""
        last = [entry for entry in self._graph.nodes if entry.op == "placeholder"][-1]
        with self._graph.inserting_after(last):
            made = self._graph.call_function(target, (node, *args), kwargs)
        _copy_meta(node, made)
        node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)

    def _value(self, node: fx.Node) -> Tensor:
        return operator.attrgetter(str(node.target))(self._module).detach()

    def _constant(self, tensor: Tensor) -> fx.Node:
        name = f"_inference_constant{self._constants}"
        self._constants += 1
        self._module.register_buffer(name, tensor.clone(memory_format=torch.preserve_format))
        return self._graph.get_attr(name)


def _is_constant(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "get_attr"


def _argument(node: fx.Node, place: int, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else default


def _pair(value: Any) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * 2 if len(values) == 1 else values


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _copy_meta(before: fx.Node, after: fx.Node) -> None:
    after.meta.update(before.meta)


def _order_of(tensor: Tensor) -> torch.memory_format | None:
    if tensor.is_contiguous():
        return torch.contiguous_format
    return _LAST if tensor.dim() == 4 and tensor.is_contiguous(memory_format=_LAST) else None


def _shape(node: Any) -> Any:
    return node.meta["tensor_meta"].shape if isinstance(node, fx.Node) and "tensor_meta" in node.meta else None


def _like(one: Any, other: fx.Node) -> bool:
    return _shape(one) is not None and _shape(one) == _shape(other)


def _writes(node: fx.Node) -> bool:
    """Whether an operator writes to what it is given; those of ours write to what nobody else uses."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.namespace != "mkldnn" and target._schema.is_mutable


def _activation(node: fx.Node) -> tuple[str, list[float], str] | None:
    """Returns oneDNN's words for an activation: a name, numbers, and which of several algorithms."""
    target = node.target
    if target in (_aten.relu.default, _aten.relu_.default):
        return "relu", [], ""
    if target in (_aten.hardtanh.default, _aten.hardtanh_.default):
        return "hardtanh", [float(_argument(node, 1, -1.0)), float(_argument(node, 2, 1.0))], ""
    if target is _aten.relu6.default or target is _aten.relu6_.default:
        return "hardtanh", [0.0, 6.0], ""
    if target in (_aten.silu.default, _aten.silu_.default):
        return "swish", [], ""
    if target in (_aten.hardswish.default, _aten.hardswish_.default):
        return "hardswish", [], ""
    return None
