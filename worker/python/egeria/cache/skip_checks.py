"""This file finds the reasons against skipping a frozen prefix that can be seen without running it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from egeria.cache.refused import Refused
from egeria.freeze.replicas import is_fully_sharded
from egeria.model.modules import LayerModule
from egeria.model.wrappers import wrappers_of

# The hooks of these packages only look at what passes by for the model's own results, or prepare weights.
_KNOWN_HOOKS = ("egeria", "torch", "transformers")


def check_skippable(model: nn.Module, frozen: Sequence[LayerModule]) -> None:
    """Looks at the model as it is built.

    Args:
      model: unwrapped.
      frozen: layer modules 0..k-1.

    Raises:
      Refused: [SHARDED], [COMPILED], [COLLECTIVE], [TIED_PARAMETER], [NEEDS_GRADIENT], [HOOKED].
    """
    if any(is_fully_sharded(module) for module in model.modules()):
        raise Refused(
            "SHARDED", "the model is sharded: ranks that skip layers would not gather their parameters with the others"
        )
    inside = {inner for entry in frozen for unit in entry.units for inner in unit.modules()}
    for name, module in model.named_modules():
        if is_compiled(module) and (module in inside or module is model):
            raise Refused("COMPILED", f"'{name}' is compiled; compiled code does not see that a layer is skipped")
        if isinstance(module, nn.SyncBatchNorm) and (module.training or module.running_mean is None):
            raise Refused("COLLECTIVE", f"'{name}' talks to other ranks in the forward pass")
        if module in inside:
            check_hooks(name, module)
    belongs = {id(parameter) for entry in frozen for _, parameter in entry.parameters()}
    for name, tensor in (named for entry in frozen for named in entry.tensors()):
        if tensor.requires_grad and id(tensor) in belongs:
            raise Refused("NEEDS_GRADIENT", f"'{name}' requires a gradient")
        if tensor.requires_grad:
            raise Refused("TIED_PARAMETER", f"'{name}' trains on: layers behind the frozen ones use it, too")


def check_wrappers(model: nn.Module) -> None:
    """Raises Refused: [COMPILED] compiled code stands for the whole model. The look takes some milliseconds, and in a
    large process a tenth of a second."""
    if any(is_compiled(wrapper) for wrapper in wrappers_of(model)):
        raise Refused(
            "COMPILED", "the model is compiled as a whole; compiled code does not see that a layer is skipped"
        )


def is_compiled(module: nn.Module) -> bool:
    """Whether compiled code stands for the module's own."""
    dynamo = sys.modules.get("torch._dynamo")
    return (
        module._compiled_call_impl is not None
        or isinstance(module, torch.jit.ScriptModule)
        or (dynamo is not None and isinstance(module, dynamo.OptimizedModule))
    )


def check_hooks(name: str, module: nn.Module) -> None:
    """Raises Refused: [HOOKED] somebody else's hook on the module sees what it computes."""
    for origin in _foreign_hooks(module):
        raise Refused("HOOKED", f"a hook of '{origin}' on '{name}' may use what the layer computes", name)


def is_hooked(module: nn.Module) -> bool:
    """Whether somebody else's hook on the module sees what it computes."""
    return any(True for _ in _foreign_hooks(module))


def _foreign_hooks(module: nn.Module) -> Iterator[str]:
    """Yields where hooks come from."""
    for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
        origin = getattr(hook, "__module__", None) or type(hook).__module__
        if origin.partition(".")[0] not in _KNOWN_HOOKS and origin != "typing":
            yield origin
