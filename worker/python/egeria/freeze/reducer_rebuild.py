"""The gradient reducer of a DistributedDataParallel is built anew for the parameters that require a gradient now."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# DistributedDataParallel._ddp_init_helper takes these where a reducer can be rebuilt in place.
_INIT_HELPER = ["parameters", "expect_sparse_gradient", "param_to_name_mapping", "static_graph"]
# State of a DistributedDataParallel that belongs to its user, besides that of every nn.Module.
_KEPT = {
    "require_backward_grad_sync",
    "require_forward_param_sync",
    "broadcast_bucket_size",
    "_join_config",
    "_ddp_sink_clone",
}


class Rebuilt:
    """A wrapper's new reducer and, until one of the two methods is called, its old one; without a wrapper nothing."""

    def __init__(self, ddp: DistributedDataParallel | None):
        """Before the change."""
        self._ddp = ddp
        self._before = dict(ddp.__dict__) if ddp is not None else {}

    def keep(self) -> None:
        """The new reducer averages the gradients."""
        before, self._before = self._before, {}
        if self._ddp is None or not before or before["reducer"] is self._ddp.reducer:
            return
        before["reducer"]._remove_autograd_hooks()
        for _, state in self._ddp._comm_hooks:
            _forget_buckets(state)

    def undo(self) -> None:
        """The wrapper has its old reducer, and all else as it was."""
        before, self._before = self._before, {}
        if self._ddp is None or not before:
            return
        unwanted, state = self._ddp.reducer, self._ddp.__dict__
        state.update(before)
        for name in [name for name in state if name not in before]:
            del state[name]
        if unwanted is not before["reducer"]:
            unwanted._remove_autograd_hooks()


def rebuild_reducer(ddp: DistributedDataParallel) -> None:
    """Builds the reducer inside the user's object: in place by torch's private functions where this torch has them,
    otherwise by moving in what the public constructor makes. An exception may leave it half changed; see
    Rebuilt.undo()."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on the user's options, made when the wrapper was
        if can_rebuild_in_place(ddp):
            _rebuild_in_place(ddp)
        else:
            _replace(ddp)


def can_rebuild_in_place(ddp: DistributedDataParallel) -> bool:
    """Whether this torch has the private functions that a rebuild in place needs."""
    functions = ("_build_params_for_reducer", "_build_debug_param_to_name_mapping", "_set_static_graph")
    return (
        all(callable(getattr(ddp, name, None)) for name in functions)
        and hasattr(ddp, "_ddp_init_helper")
        and list(inspect.signature(ddp._ddp_init_helper).parameters) == _INIT_HELPER
        and all(name in ddp.__dict__ for name in ("_comm_hooks", "_has_rebuilt_buckets", "static_graph"))
        and hasattr(ddp.reducer, "_remove_autograd_hooks")
    )


def _rebuild_in_place(ddp: DistributedDataParallel) -> None:
    hook = _builtin_hook(ddp)
    parameters, sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    ddp._has_rebuilt_buckets = False
    if ddp.static_graph:
        ddp.static_graph = False  # or it would not be set on the new reducer
        ddp._set_static_graph()
    hooks, ddp._comm_hooks = ddp._comm_hooks, []
    _register_hooks(ddp, hooks, hook)


def _replace(ddp: DistributedDataParallel) -> None:
    """Moves the inside of a new DistributedDataParallel with the same options into `ddp`."""
    hook = _builtin_hook(ddp)
    made = DistributedDataParallel(ddp.module, **_options(ddp))
    kept = _KEPT | set(nn.Module().__dict__)
    state = {name: value for name, value in made.__dict__.items() if name not in kept}
    hooks = list(ddp._comm_hooks)
    ddp.__dict__.update(state)
    _register_hooks(ddp, hooks, hook)


def _options(ddp: DistributedDataParallel) -> dict[str, Any]:
    """Arguments that make a DistributedDataParallel like `ddp`, as far as this torch's constructor has them."""
    limits = list(getattr(ddp, "bucket_bytes_cap_list", ()))
    is_default = getattr(ddp, "bucket_bytes_cap_default", False)
    options = {
        "device_ids": ddp.device_ids,
        "output_device": ddp.output_device,
        "dim": ddp.dim,
        "process_group": ddp.process_group,
        "bucket_cap_mb": None if is_default else ddp.bucket_bytes_cap / 2**20,
        "bucket_cap_mb_list": [size / 2**20 for size in limits] or None,
        "find_unused_parameters": ddp.find_unused_parameters,
        "gradient_as_bucket_view": ddp.gradient_as_bucket_view,
        "static_graph": ddp.static_graph,
        "skip_all_reduce_unused_params": getattr(ddp, "skip_all_reduce_unused_params", False),
        "batched_grad_copy": getattr(ddp, "batched_grad_copy", False),
        "init_sync": False,
    }
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    broadcast = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options[broadcast] = getattr(ddp, broadcast)
    return {name: value for name, value in options.items() if name in known}


def _builtin_hook(ddp: DistributedDataParallel) -> Any | None:
    """The communication hook that torch implements in C++, if one is registered: only the log tells."""
    name = str(ddp._get_ddp_logging_data().get("comm_hook", ""))
    kinds = getattr(dist, "BuiltinCommHookType", None)
    return getattr(kinds, name.rpartition(".")[2], None) if name.startswith("BuiltinCommHookType.") else None


def _register_hooks(ddp: DistributedDataParallel, hooks: Iterable[tuple[Any, Any]], builtin: Any | None) -> None:
    if builtin is not None:
        ddp._register_builtin_comm_hook(builtin)
    for hook, state in hooks:
        ddp.register_comm_hook(state, hook)


def _forget_buckets(state: Any) -> None:
    """PowerSGD keeps tensors per bucket, and buckets have other sizes now. Like at the start of the training, it
    begins two steps later: torch orders the buckets anew after the first."""
    if type(state).__name__ == "PowerSGDState":
        for memory in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
            memory.clear()
        state.iter = max(0, min(state.iter, state.start_powerSGD_iter - 2))
