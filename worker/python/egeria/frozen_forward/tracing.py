"""A trace is the graph of operators that a pass of a frozen part has run, with its weights as constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.shape_prop import ShapeProp

from egeria.cache.cut_finding import check_keeps_nothing
from egeria.cache.refused import Refused
from egeria.model.inputs import SIMPLE
from egeria.model.shadow import NoShadow, Shadow


@dataclasses.dataclass
class Trace:
    """A pass of a frozen part.

    Attributes:
      module: takes the tensors among the arguments, and returns those among the results. Its nodes know the shapes.
      outputs: what the pass has computed.
      structure: of the result, for pytree.
      leaves: of the result; None stands for each tensor.
    """

    module: fx.GraphModule
    outputs: list[Tensor]
    structure: Any
    leaves: list[Any]

    def result(self, tensors: Sequence[Tensor]) -> Any:
        """Puts the result together as the frozen part returns it."""
        ahead = iter(tensors)
        return pytree.tree_unflatten([next(ahead) if leaf is None else leaf[0] for leaf in self.leaves], self.structure)


def trace(shadow: Shadow, leaves: Sequence[Any], structure: Any) -> Trace:
    """Runs a shadow's pass, and follows it operator by operator.

    Args:
      leaves: of the arguments (args, kwargs), which have this `structure` for pytree.

    Raises:
      Refused: [RANDOM], [WRITES_INPUT], [KEEPS_STATE], [NO_GRAPH] the pass cannot be followed; [NO_SHADOW].
    """
    inside = list(shadow.model.modules())
    attributes = {inner: dict(inner.__dict__) for inner in inside}
    buffers = _versions(shadow.model.buffers())
    tensors = [leaf.detach().clone() for leaf in leaves if isinstance(leaf, Tensor)]
    versions = _versions(tensors)
    found: list[Any] = []

    def run(*given: Tensor) -> list[Tensor]:
        ahead = iter(given)
        args, kwargs = pytree.tree_unflatten(
            [next(ahead) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure
        )
        found[:] = pytree.tree_flatten(shadow.model(*args, **kwargs))
        for leaf in found[0]:
            if not isinstance(leaf, (Tensor, *SIMPLE)):
                raise Refused("NO_GRAPH", f"its result holds a {type(leaf).__name__}")
        return [leaf for leaf in found[0] if isinstance(leaf, Tensor)]

    try:
        with shadow.running(tensors), torch.no_grad():
            module = make_fx(run, tracing_mode="real", pre_dispatch=True)(*tensors)
    except NoShadow as error:
        raise Refused("NO_SHADOW", str(error)) from error
    except Refused:
        raise
    except Exception as error:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
        raise Refused("NO_GRAPH", f"its pass cannot be followed: {type(error).__name__}: {_line_of(error)}") from error
    check_keeps_nothing(dict.fromkeys(inside), attributes)
    if _versions(shadow.model.buffers()) != buffers:
        raise Refused("KEEPS_STATE", "it changes a buffer")
    if _versions(tensors) != versions:
        raise Refused("WRITES_INPUT", "it writes to its input")
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags:
            if not _is_without_dropout(node):
                raise Refused("RANDOM", f"it draws random numbers ({node.target})")
    with torch.no_grad():
        ShapeProp(module).propagate(*tensors)
        outputs = list(module(*tensors))
    kept = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in found[0]]
    return Trace(module, outputs, found[1], kept)


def _versions(tensors: Iterable[Tensor]) -> list[tuple[int, int]]:
    return [(id(tensor), tensor._version) for tensor in tensors]


def _is_without_dropout(node: fx.Node) -> bool:
    if node.target is torch.ops.aten.dropout.default:
        return node.args[2] is False
    if node.target is torch.ops.aten.scaled_dot_product_attention.default:
        return (node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)) == 0.0
    return False


def _line_of(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "")[:200]


def check_modes(name: str, module: nn.Module) -> None:
    """Raises Refused [TRAINING_MODE] where a layer inside uses statistics of the batch, or drops at random."""
    for inner_name, inner in module.named_modules(prefix=name):
        norm = isinstance(inner, (nn.modules.batchnorm._NormBase, nn.SyncBatchNorm))
        drop = isinstance(inner, nn.modules.dropout._DropoutNd) and inner.p > 0
        if (norm or drop) and inner.training:
            raise Refused(
                "TRAINING_MODE",
                f"'{inner_name}', a {type(inner).__name__}, is in training mode, so that its output depends on the "
                "batch or on chance; call eval() on it where it is to be frozen",
            )
