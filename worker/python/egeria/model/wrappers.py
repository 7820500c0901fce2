"""This file looks through the wrappers around a model, DistributedDataParallel and torch.compile, and finds them."""

from __future__ import annotations

import gc
import sys

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from egeria.model.live_objects import instances_of


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module under DistributedDataParallel, torch.compile and a DataParallel of one device, in whichever
    order they are."""
    while True:
        if isinstance(model, DistributedDataParallel) or calls_module_itself(model):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod
        else:
            return model


def calls_module_itself(model: nn.Module) -> bool:
    """Whether this is a DataParallel that makes no copies, as it has one device at most."""
    return isinstance(model, nn.DataParallel) and len(model.device_ids) <= 1


def wrappers_of(model: nn.Module) -> list[nn.Module]:
    """DistributedDataParallel and torch.compile around `model`, wherever they were made; found among all objects, which
    takes some milliseconds."""
    dynamo = sys.modules.get("torch._dynamo")
    kinds = (DistributedDataParallel,) if dynamo is None else (DistributedDataParallel, dynamo.OptimizedModule)
    tables = [one for one in gc.get_referrers(model) if type(one) is dict]
    if not any(table.get("module") is model or table.get("_orig_mod") is model for table in tables):
        return []
    return [one for one in instances_of(*kinds) if one.__dict__.get("_modules") and unwrap(one) is model]
