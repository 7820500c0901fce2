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
from egeria.freeze.packed_tensors import PackedTensors, device_of, plain_parts
from egeria.freeze.reducer_rebuild import Rebuilt, rebuild_reducer
from egeria.model.modules import LayerModule
from egeria.model.wrappers import unwrap, wrappers_of


class Replicas:
    """Knows how a model is wrapped and keeps the wrapper right.

    DistributedDataParallel builds its gradient reducer for the parameters that require a gradient at that moment.
    Without a rebuild a freeze raises, and an unfreeze lets the ranks drift apart silently. The rebuild happens
    inside the user's objects, whenever they were made, so that every reference to them stays valid; communication
    hooks, static_graph and all other options are kept. FSDP2 needs nothing.

    Every rank must call the methods at the same step, with the same frozen layers. Owned by the training thread.

    Attributes:
      root: the user's own module, unwrapped.
      ddp: its DistributedDataParallel, if there is one and it is known by now; the one that ran last.
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

    @property
    def ranks_meet(self) -> bool:
        """Whether all ranks take part in the pass that is about to begin, as DistributedDataParallel has them do."""
        return self.ddp is not None and self.ddp.require_backward_grad_sync

    def discover(self) -> None:
        """Finds a DistributedDataParallel that was made after attach(). To be called inside a forward pass."""
        if (active := DistributedDataParallel._active_ddp_module) is not None and unwrap(active) is self.root:
            self.ddp = active

    def adopt(self, wrapper: nn.Module) -> None:
        """A wrapper around the model was found that is newer than the one that is known."""
        self.ddp = _ddp_of(wrapper) or self.ddp

    def allow_recompiles(self, modules: int) -> None:
        """Lets torch.compile keep code for every frozen prefix of `modules` layer modules, in training and in
        evaluation: beyond its limit it would silently run uncompiled."""
        import torch._dynamo  # pylint: disable=import-outside-toplevel

        config = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, 4 * modules + 8)
        config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 64 * modules)

    def pack_buffers(self, freezing: Sequence[LayerModule]) -> PackedTensors:
        """Buffers of layers that freeze, so that these can stay as rank 0 has them.

        Between steps they differ: each rank updates running statistics with its own batch.
        """
        ignored = self.ddp.parameters_to_ignore if self.ddp is not None else ()
        buffers = (buffer for module in freezing for name, buffer in module.buffers() if name not in ignored)
        return PackedTensors(buffers, self.process_group)

    def rebuild(self) -> Rebuilt:
        """Makes the wrapper right for what requires a gradient now. No collective. An exception leaves it as it was.

        Returns:
          The change, to be kept or undone before the next pass, by all ranks alike: a new reducer's first backward
          pass has a collective more.

        Raises:
          EgeriaError: [NOTHING_TRAINABLE] no parameter requires a gradient.
        """
        wrappers = self._wrappers()
        if wrappers and not any(parameter.requires_grad for parameter in self.root.parameters()):
            raise EgeriaError(
                "NOTHING_TRAINABLE",
                "no parameter requires a gradient; the last layer module "
                "must have trainable parameters: say with `modules` where the model is to be cut",
            )
        rebuilt = Rebuilt(*wrappers)
        try:
            for ddp in wrappers:
                rebuild_reducer(ddp)
        except BaseException:
            rebuilt.undo()
            raise
        return rebuilt

    def _wrappers(self) -> list[DistributedDataParallel]:
        """Those around the model, wherever they were made: one that is made while layers are frozen does not average
        their gradients, and need not have run yet."""
        if not dist.is_initialized():
            return []
        made = [found for found in wrappers_of(self.root) if isinstance(found, DistributedDataParallel)]
        if self.ddp is None:
            self.ddp = next(iter(made), None)
        return made

    def hash(self, frozen: Sequence[LayerModule]) -> tuple[int, int, int]:
        """Hashes of the parameters, of which of them require a gradient, and of the buffers of `frozen` layers."""
        parameters = list(self.root.parameters())
        flags = torch.tensor([parameter.requires_grad for parameter in parameters])
        return _hash(parameters), _hash([flags]), _hash(buffer for module in frozen for _, buffer in module.buffers())

    def identical_on_all_ranks(
        self, frozen: Sequence[LayerModule] = (), group: dist.ProcessGroup | None = None, own_buffers: bool = False
    ) -> bool:
        """Whether every rank has the same parameters, and the same buffers of `frozen` layers. A collective.

        Raises on every rank where one cannot tell its own: there what prevents it, else EgeriaError [NOT_COMPARED].

        Shards are compared among the ranks that hold the same ones (there are none of these if a model is not
        replicated too); for a sharded model, also which parameters require a gradient.

        Args:
          frozen: layers that are frozen.
          group: of the same ranks, for the comparison; None: that of the training.
          own_buffers: the script has changed buffers of frozen layers on this rank, and may have done so in its own
            way. Where a rank says so, none compares them.
        """
        group = group if group is not None else self.process_group
        if group is None:
            return True
        failure: Exception | None = None
        try:
            parameters, flags, buffers = self.hash(frozen)
            hashes = [self._shard(), parameters, flags, int(own_buffers), buffers]
        except Exception as error:  # pylint: disable=broad-exception-caught  # the other ranks wait for this one
            failure, hashes = error, _UNKNOWN
        mine = torch.tensor(hashes, device=device_of(group))
        others = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(others, mine, group=group)
        if failure is not None:
            raise failure
        told = [other.tolist() for other in others]
        if _UNKNOWN in told:
            raise EgeriaError("NOT_COMPARED", "another rank cannot tell its parameters")
        compared = 3 if any(other[3] for other in told) else 5
        seen = {tuple(other[:compared]) for other in told}
        return len(seen) == len({other[0] for other in seen}) and len({other[2] for other in seen}) == 1

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

_UNKNOWN = [-1, 0, 0, 0, 0]  # a rank that cannot hash its parameters tells this


def _hash(tensors: Iterable[Tensor]) -> int:
    """64 bits over the element type, shape and bits of each tensor, as a number that fits an int64; sharded tensors:
    this rank's shard."""
    value = _native.hash_tensors([part for tensor in tensors for part in plain_parts(tensor)])
    return (value & (2**63 - 1)) - (value & 2**63)


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor; any other as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _shard_of(parameter: nn.Parameter) -> int:
    """Number of this rank among those that share one copy of a parameter out among them."""
    mesh, number = parameter.device_mesh, 0
    for size, index, placement in zip(mesh.shape, mesh.get_coordinate(), parameter.placements):
        if not placement.is_replicate():
            number = number * size + index
    return number
