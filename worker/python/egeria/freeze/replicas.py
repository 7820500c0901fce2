"""Replicas keeps the wrapper around a model that trains on several ranks right when layers freeze and unfreeze."""

from __future__ import annotations

import gc
import inspect
import logging
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from egeria import _native
from egeria.errors import EgeriaError
from egeria.model.modules import LayerModule
from egeria.model.wrappers import unwrap

_logger = logging.getLogger("egeria")

# What DistributedDataParallel._ddp_init_helper takes where a reducer can be rebuilt in place.
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


class PackedBuffers:
    """Buffers that are to be the same on all ranks of `group`, in one message per type; None: there are no others."""

    def __init__(self, buffers: Iterable[Tensor], group: dist.ProcessGroup | None):
        self._group = group
        self._messages: list[tuple[list[Tensor], Tensor]] = []
        if group is None:
            return
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for buffer in buffers:
            kinds.setdefault((buffer.dtype, buffer.device), []).append(buffer)
        where = _device_of(group)
        for (_, device), alike in kinds.items():
            message = torch.cat([buffer.reshape(-1) for buffer in alike])
            self._messages.append((alike, message if device.type == where.type else message.to(where)))

    def share(self) -> None:
        """Gives the values of the group's first rank to all. A collective."""
        for buffers, message in self._messages:
            dist.broadcast(message, src=dist.get_global_rank(self._group, 0), group=self._group)
            for buffer, part in zip(buffers, message.split([buffer.numel() for buffer in buffers])):
                buffer.copy_(part.view_as(buffer))


class Replicas:
    """Knows how a model is wrapped and keeps the wrapper right.

    DistributedDataParallel builds its gradient reducer for the parameters that require a gradient at that moment.
    Without a rebuild a freeze raises, and an unfreeze lets the ranks drift apart silently. The rebuild happens
    inside the user's object, so that every reference to it stays valid; communication hooks, static_graph and all
    other options are kept. FSDP2 needs nothing.

    Every rank must call the methods at the same step, with the same frozen layers. Owned by the training thread.

    Attributes:
      root: the user's own module, unwrapped.
      ddp: its DistributedDataParallel, if there is one and it is known by now.
    """

    def __init__(self, model: nn.Module, *, rebuild: str = "auto"):
        """
        Args:
          model: as the user has it: plain, DistributedDataParallel, torch.compile around or inside it, FSDP2.
          rebuild: how to rebuild a reducer: "in_place" by torch's private functions, "replace" by what the public
            constructor makes, "auto" in place where this torch can.
        """
        self.root = unwrap(model)
        self.ddp = _ddp_of(model)
        self._rebuild = rebuild

    @property
    def kind(self) -> str:
        """ "plain", "ddp" or "fsdp2"."""
        if self.ddp is not None:
            return "ddp"
        return "fsdp2" if any(is_fully_sharded(module) for module in self.root.modules()) else "plain"

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """The ranks that train this model; None for one process. Plain models of several processes are taken to
        be averaged by hand, over all ranks."""
        if not dist.is_available() or not dist.is_initialized():
            return None
        group = self.ddp.process_group if self.ddp is not None else self._mesh_group()
        return group if dist.get_world_size(group) > 1 else None

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients that a backward pass yields on this rank, with what is frozen now."""
        local = (_local(parameter) for parameter in self.root.parameters() if parameter.requires_grad)
        return sum(tensor.numel() * tensor.element_size() for tensor in local)

    @property
    def inside_join(self) -> bool:
        """The training runs in DistributedDataParallel.join()."""
        return self.ddp is not None and self.ddp._join_config.enable

    def discover(self) -> bool:
        """Finds a DistributedDataParallel that was made after attach(). To be called inside a forward pass.

        Returns:
          Whether one was found now.
        """
        active = DistributedDataParallel._active_ddp_module
        if active is None or active is self.ddp or unwrap(active) is not self.root:
            return False
        self.ddp = active
        return True

    def allow_recompiles(self, modules: int) -> None:
        """Lets torch.compile keep code for every frozen prefix of `modules` layer modules, in training and in
        evaluation: beyond its limit it would silently run uncompiled."""
        import torch._dynamo  # pylint: disable=import-outside-toplevel

        config = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, 4 * modules + 8)
        config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 64 * modules)

    def pack_buffers(self, freezing: Sequence[LayerModule]) -> PackedBuffers:
        """Buffers of layers that freeze, so that these can stay as rank 0 has them.

        Between steps they differ: each rank updates running statistics with its own batch.
        """
        ignored = self.ddp.parameters_to_ignore if self.ddp is not None else ()
        buffers = (
            _local(buffer).detach() for module in freezing for name, buffer in module.buffers() if name not in ignored
        )
        return PackedBuffers(buffers, self.process_group)

    def rebuild(self) -> Rebuilt:
        """Makes the wrapper right for what requires a gradient now. No collective. What raises leaves it as it was.

        Returns:
          The change, to be kept or undone before the next pass, by all ranks alike: a new reducer's first backward
          pass has a collective more.

        Raises:
          EgeriaError: [NOTHING_TRAINABLE] no parameter requires a gradient.
        """
        if self.kind == "plain":
            self.ddp = _search(self.root)
        rebuilt = Rebuilt(self.ddp)
        if self.ddp is None:
            return rebuilt
        if not any(parameter.requires_grad for parameter in self.ddp.parameters()):
            raise EgeriaError(
                "NOTHING_TRAINABLE",
                "no parameter requires a gradient; the last layer module "
                "must have trainable parameters: say with `modules` where the model is to be cut",
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # remarks on the user's options, made when the wrapper was
                if self._rebuild == "replace" or (self._rebuild == "auto" and not _can_rebuild_in_place(self.ddp)):
                    _replace(self.ddp)
                else:
                    _rebuild_in_place(self.ddp)
        except BaseException:
            rebuilt.undo()
            raise
        return rebuilt

    def hash(self, frozen: Sequence[LayerModule] = ()) -> int:
        """Hash of all parameters, and of the buffers of `frozen` layers; sharded tensors: this rank's shard."""
        buffers = [buffer for module in frozen for _, buffer in module.buffers()]
        return hash_tensors([_local(tensor).detach() for tensor in (*self.root.parameters(), *buffers)])

    def identical_on_all_ranks(
        self, frozen: Sequence[LayerModule] = (), group: dist.ProcessGroup | None = None
    ) -> bool:
        """Whether every rank has the same parameters, and the same buffers of `frozen` layers. A collective.

        Shards are compared among the ranks that hold the same ones (there are none of these if a model is not
        replicated too); for a sharded model, also which parameters require a gradient.

        Args:
          frozen: layers that are frozen.
          group: of the same ranks, for the comparison; None: that of the training.
        """
        group = group if group is not None else self.process_group
        if group is None:
            return True
        failure: Exception | None = None
        try:
            flags = torch.tensor([parameter.requires_grad for parameter in self.root.parameters()])
            hashes = (self._shard(), _signed(self.hash(frozen)), _signed(hash_tensors([flags])))
        except Exception as error:  # pylint: disable=broad-exception-caught  # the other ranks wait for this one
            failure, hashes = error, (-1, dist.get_rank(), 0)  # unlike any other's
        mine = torch.tensor(hashes, device=_device_of(group))
        others = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(others, mine, group=group)
        if failure is not None:
            raise failure
        seen = {tuple(other.tolist()) for other in others}
        return len(seen) == len({shard for shard, _, _ in seen}) and len({what for _, _, what in seen}) == 1

    def _shard(self) -> int:
        """Which part of the sharded parameters this rank holds; 0 where they are whole."""
        sharded = (parameter for parameter in self.root.parameters() if hasattr(parameter, "device_mesh"))
        numbers = {_shard_of(parameter) for parameter in sharded}
        return numbers.pop() if len(numbers) == 1 else dist.get_rank() if numbers else 0

    def _mesh_group(self) -> dist.ProcessGroup:
        meshes = {
            mesh
            for parameter in self.root.parameters()
            if (mesh := getattr(parameter, "device_mesh", None)) is not None
        }
        if len(meshes) == 1 and (mesh := meshes.pop()).ndim == 1:
            return mesh.get_group()
        return dist.group.WORLD


def is_fully_sharded(module: nn.Module) -> bool:
    """True for what torch's fully_shard() (FSDP2) was applied to."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, getattr(fsdp, "FSDPModule", ()))


def _ddp_of(model: nn.Module) -> DistributedDataParallel | None:
    """The DistributedDataParallel among the wrappers around the user's module."""
    while isinstance(getattr(model, "_orig_mod", None), nn.Module):
        model = model._orig_mod
    return model if isinstance(model, DistributedDataParallel) else None


def _search(root: nn.Module) -> DistributedDataParallel | None:
    """A DistributedDataParallel around `root` that has not run yet, found among all objects: for a switch before
    the first step, when a checkpoint is loaded. One that is made later needs no rebuild."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return next(
        (
            found
            for found in gc.get_objects()
            if issubclass(type(found), DistributedDataParallel) and "module" in found._modules and unwrap(found) is root
        ),
        None,
    )


# Rebuilding a reducer.


def _can_rebuild_in_place(ddp: DistributedDataParallel) -> bool:
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


# Comparing ranks.


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor; any other as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _device_of(group: dist.ProcessGroup) -> torch.device:
    """Where tensors for a collective of `group` have to be."""
    if "gloo" in dist.get_backend(group):
        return torch.device("cpu")
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def _shard_of(parameter: nn.Parameter) -> int:
    """Number of this rank among those that share one copy of a parameter out among them."""
    mesh, number = parameter.device_mesh, 0
    for size, index, placement in zip(mesh.shape, mesh.get_coordinate(), parameter.placements):
        if not placement.is_replicate():
            number = number * size + index
    return number


def _signed(value: int) -> int:
    """64 bits as a number that fits an int64."""
    return (value & (2**63 - 1)) - (value & 2**63)


def hash_tensors(tensors: list[Tensor]) -> int:
    """64 bits over the element type, shape and bytes of each tensor, in order."""
    return _native.hash_tensors(tensors)
