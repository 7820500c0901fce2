"""This file counts how many layers' outputs a model needs at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from egeria.cache.dataflow import Dataflow
from egeria.cache.forward_patches import ForwardPatches
from egeria.cache.model_call import Call
from egeria.cache.pass_outcome import flatten
from egeria.cache.prefix_cut import side_pass
from egeria.model.modules import has_parameters


def widest_cut(model: nn.Module, entries: Sequence[nn.Module], call: Call) -> list[str]:
    """The layers whose outputs are still needed at the place between two layers, frozen or not, where most are;
    in the order of their calls.

    A chain of layers needs one, a model that takes one early output along two (DeepLabv3+). One that joins several
    stages again with later ones (U-Net), or returns what each layer gives (hidden states), needs more the deeper
    one looks.

    Args:
      entries: layers, whatever is inside them. Others are the outermost submodules with weights that have none of
        these inside.
    """
    flow = Dataflow()
    names: list[str] = []
    busy: list[nn.Module] = []  # the layer that is being computed

    def follow(module: nn.Module, name: str) -> Callable[..., Any]:
        def function(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if busy:
                return original(*args, **kwargs)
            mark = len(names)
            names.append(name)
            busy.append(module)
            try:
                with flow.part(mark):
                    value = original(*args, **kwargs)
            finally:
                busy.pop()
            for tensor in _all_tensors(value):  # a table that is the same for all samples crosses no cut
                flow.mark([tensor], [mark] if tensor.shape[:1] == (call.batch,) else [])
            return value

        return function

    with ForwardPatches() as patches, side_pass(model):
        for name, module in _layers(model, entries):
            patches.replace(module, follow(module, name))
        with flow:
            value = call.run(model.forward)
        needed_in_the_end = flow.marks(_all_tensors(flatten(value)[0]))
    last_use = {**flow.last_use, **dict.fromkeys(needed_in_the_end, len(names))}
    cuts = [[layer for layer in range(end + 1) if last_use.get(layer, 0) > end] for end in range(len(names))]
    return [names[layer] for layer in max(cuts, key=len, default=[])]


def _layers(model: nn.Module, entries: Sequence[nn.Module]) -> list[tuple[str, nn.Module]]:
    """What may turn out to be an outermost layer when the model runs."""
    inside = {inner for entry in entries for inner in entry.modules()} - set(entries)
    around = {module for module in model.modules() if not set(entries).isdisjoint(module.modules())} - set(entries)
    return [
        (name, module)
        for name, module in model.named_modules()
        if module not in inside and module not in around and has_parameters(module)
    ]


def _all_tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor) and leaf.layout is torch.strided]
