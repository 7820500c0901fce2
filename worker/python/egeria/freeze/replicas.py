"""Replicas keeps the wrapper around a model that trains on several ranks right when layers freeze and unfreeze."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from egeria import _native
from egeria.errors import EgeriaError
from egeria.freeze.reducer_rebuild import Rebuilt, rebuild_reducer
from egeria.model.modules import LayerModule
from egeria.model.wrappers import unwrap, wrappers_of

# 64 bits over the element type, shape and bytes of each tensor of a list, in order.
hash_tensors = _native.hash_tensors


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

    def __init__(self, model: nn.Module):
        """`model` is as the user has it: plain, DistributedDataParallel, torch.compile around or inside it, FSDP2."""
        self.root = unwrap(model)
        self.ddp = _ddp_of(model)

    @property
    def kind(self) -> str:
        """ "plain", "ddp" or "fsdp2"."""
        if self.ddp is not None:
            return "ddp"
        return "fsdp2" if is_sharded(self.root) else "plain"

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """The ranks that train this model; None for one process. Plain models of several processes are taken to
        be averaged by hand, over all ranks."""
        if not dist.is_initialized():
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

    def discover(self) -> None:
        """Finds a DistributedDataParallel that was made after attach(). To be called inside a forward pass."""
        active = DistributedDataParallel._active_ddp_module
        if active is not None and active is not self.ddp and unwrap(active) is self.root:
            self.ddp = active

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
        """Makes the wrapper right for what requires a gradient now. No collective. An exception leaves it as it was.

        Returns:
          The change, to be kept or undone before the next pass, by all ranks alike: a new reducer's first backward
          pass has a collective more.

        Raises:
          EgeriaError: [NOTHING_TRAINABLE] no parameter requires a gradient.
        """
        if self.kind == "plain" and dist.is_initialized():
            # It has not run yet: a checkpoint is loaded before the first step. One that is made later needs no rebuild.
            made = (found for found in wrappers_of(self.root) if isinstance(found, DistributedDataParallel))
            self.ddp = next(made, None)
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
            rebuild_reducer(self.ddp)
        except BaseException:
            rebuilt.undo()
            raise
        return rebuilt

    def hash(self, frozen: Sequence[LayerModule]) -> int:
        """Hash of all parameters, and of the buffers of `frozen` layers; sharded tensors: this rank's shard."""
        buffers = [buffer for module in frozen for _, buffer in module.buffers()]
        return hash_tensors([_local(tensor).detach() for tensor in (*self.root.parameters(), *buffers)])

    def identical_on_all_ranks(
        self, frozen: Sequence[LayerModule] = (), group: dist.ProcessGroup | None = None
    ) -> bool:
        """Whether every rank has the same parameters, and the same buffers of `frozen` layers. A collective.

        Raises on every rank where one cannot tell its own: there what prevents it, else EgeriaError [NOT_COMPARED].

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
            failure, hashes = error, _UNKNOWN
        mine = torch.tensor(hashes, device=_device_of(group))
        others = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(others, mine, group=group)
        if failure is not None:
            raise failure
        seen = {tuple(other.tolist()) for other in others}
        if _UNKNOWN in seen:
            raise EgeriaError("NOT_COMPARED", "another rank cannot tell its parameters")
        return len(seen) == len({shard for shard, _, _ in seen}) and len({what for _, _, what in seen}) == 1

    def _shard(self) -> int:
        """The number of the part of the sharded parameters that this rank holds; 0 where they are whole."""
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


def is_sharded(model: nn.Module) -> bool:
    return any(is_fully_sharded(module) for module in model.modules())


def _ddp_of(model: nn.Module) -> DistributedDataParallel | None:
    """The DistributedDataParallel among the wrappers around the user's module."""
    while isinstance(getattr(model, "_orig_mod", None), nn.Module):
        model = model._orig_mod
    return model if isinstance(model, DistributedDataParallel) else None


# Comparing ranks.

_UNKNOWN = (-1, 0, 0)  # a rank that cannot hash its parameters tells this


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
