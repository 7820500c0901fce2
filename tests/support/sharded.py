"""Whole tensors of what is sharded over ranks."""

import torch
import torch.distributed as dist
from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that fully_shard() has sharded, on every rank: a collective. Others as they are.

    In place of full_tensor(), which corrupts the heap now and then ("malloc(): unaligned tcache chunk detected"), in
    torch 2.13 alone as with Egeria: the two threads of a gloo group note without a lock which collective they have
    ended last, and the name of that one, ALLGATHER_COALESCED, is longer than what a string holds in place.
    """
    shards = [dim for dim, placement in enumerate(getattr(tensor, "placements", ())) if placement.is_shard(0)]
    if not shards:
        return tensor
    (dim,) = shards
    group = tensor.device_mesh.get_group(dim)
    local, rows = tensor.detach().to_local(), tensor.size(0)
    mine = local.new_zeros(-(-rows // group.size()), *local.shape[1:])  # the last ranks may have fewer rows
    mine[: len(local)] = local
    parts = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(parts, mine, group=group)
    return torch.cat(parts)[:rows]
