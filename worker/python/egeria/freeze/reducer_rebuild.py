"""The gradient reducer of a DistributedDataParallel is built anew for the parameters that require a gradient now."""

from __future__ import annotations

import warnings
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Rebuilt:
    """The new reducers of wrappers and, until one of the two methods is called, their old ones."""

    def __init__(self, *wrappers: DistributedDataParallel):
        """Before the change."""
        self._before = [(ddp, dict(ddp.__dict__)) for ddp in wrappers]

    def keep(self) -> None:
        """The new reducers average the gradients."""
        for ddp, before in self._taken():
            if before["reducer"] is ddp.reducer:
                continue
            before["reducer"]._remove_autograd_hooks()
            for _, state in ddp._comm_hooks:
                _forget_buckets(state)

    def undo(self) -> None:
        """The wrappers have their old reducers, and all else as it was."""
        for ddp, before in self._taken():
            unwanted, state = ddp.reducer, ddp.__dict__
            state.update(before)
            for name in [name for name in state if name not in before]:
                del state[name]
            if unwanted is not before["reducer"]:
                unwanted._remove_autograd_hooks()

    def _taken(self) -> list[tuple[DistributedDataParallel, dict[str, Any]]]:
        before, self._before = self._before, []
        return before


def rebuild_reducer(ddp: DistributedDataParallel) -> None:
    """Builds the reducer inside the user's object, as its constructor did. An exception may leave it half changed; see
    Rebuilt.undo()."""
    hook = _builtin_hook(ddp)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on the user's options, made when the wrapper was
        parameters, sparse = ddp._build_params_for_reducer()
        names = ddp._build_debug_param_to_name_mapping(parameters)
        ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
        ddp._has_rebuilt_buckets = False
        if ddp.static_graph:
            ddp.static_graph = False  # or it would not be set on the new reducer
            ddp._set_static_graph()
        hooks, ddp._comm_hooks = ddp._comm_hooks, []
        if hook is not None:
            ddp._register_builtin_comm_hook(hook)
        for function, state in hooks:
            ddp.register_comm_hook(state, function)


def _builtin_hook(ddp: DistributedDataParallel) -> Any | None:
    """The communication hook that torch implements in C++, if one is registered: only the log tells."""
    name = ddp._get_ddp_logging_data().get("comm_hook")
    return next((kind for kind in dist.BuiltinCommHookType.__members__.values() if str(kind) == name), None)


def _forget_buckets(state: Any) -> None:
    """PowerSGD keeps tensors per bucket, and buckets have other sizes now. Like at the start of the training, it
    begins two steps later: torch orders the buckets anew after the first."""
    if type(state).__name__ == "PowerSGDState":
        for memory in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
            memory.clear()
        state.iter = max(0, min(state.iter, state.start_powerSGD_iter - 2))
