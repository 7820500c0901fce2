"""Sample ids for a training loop:

    loader = egeria.data.wrap(DataLoader(dataset, 32, shuffle=True))

Each batch's ids travel with it, through workers and pinned memory, to where the loop receives it; from there the
model's forward pass takes them (SampleIds). The loop sees what it would see without them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from egeria.data.node_sampler import NodeSampler
    from egeria.data.sample_ids import SampleIds, current
    from egeria.data.variants import Variants, VariantSampler
    from egeria.data.wrapped_loader import Marks, wrap

__all__ = ["Marks", "NodeSampler", "SampleIds", "VariantSampler", "Variants", "current", "wrap"]

_FILES = {
    "node_sampler": ("NodeSampler",),
    "sample_ids": ("SampleIds", "current"),
    "variants": ("VariantSampler", "Variants"),
    "wrapped_loader": ("Marks", "wrap"),
}


def __getattr__(name: str) -> Any:
    """Files are loaded when a name of theirs is used: a session needs sample_ids alone."""
    for file, names in _FILES.items():
        if name in names:
            return getattr(importlib.import_module(f"egeria.data.{file}"), name)
    raise AttributeError(f"module 'egeria.data' has no attribute {name!r}")
