"""This sampler is for trainings on several nodes, each of which has a cache of its own."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sized

import torch
from torch.utils.data import DistributedSampler

from egeria.errors import EgeriaError


class NodeSampler(DistributedSampler):
    """Stands for torch's DistributedSampler, and keeps each sample on its node from epoch to epoch, where what was
    cached for it is.

    The samples are dealt to the nodes at random, once, by the seed. In each epoch every node shuffles its own and
    deals them to its ranks; set_epoch() says which epoch it is. Every sample comes once an epoch. So that all
    ranks have as many, some of a node's samples come twice, or with drop_last some are left out, others in each
    epoch. Thus each node's part is shuffled, not the whole dataset.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        ranks_per_node: int | None = None,
    ):
        """
        Args:
          num_replicas, rank: the default process group's where they are None.
          ranks_per_node: the same on all nodes, whose ranks follow each other; LOCAL_WORLD_SIZE, as torchrun and
            egeria-run set it, where it is None.

        Raises:
          EgeriaError: [BAD_NODES] the nodes have different numbers of ranks, or more of them than there are
            samples.
        """
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        ranks = _ranks_per_node(self.num_replicas) if ranks_per_node is None else ranks_per_node
        if ranks < 1 or self.num_replicas % ranks != 0:
            raise EgeriaError(
                "BAD_NODES",
                f"{self.num_replicas} ranks are not {ranks} on each node; start as "
                "many on every node, or use torch's DistributedSampler",
            )
        self.ranks_per_node = ranks
        self.nodes = self.num_replicas // ranks
        if len(dataset) < self.nodes:
            raise EgeriaError(
                "BAD_NODES",
                f"{len(dataset)} samples cannot be dealt to {self.nodes} nodes; use torch's DistributedSampler",
            )

    def __iter__(self) -> Iterator[int]:
        node, place = divmod(self.rank, self.ranks_per_node)
        mine = self._of_node(node)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            mine = mine[torch.randperm(len(mine), generator=generator)]
        number = self.num_samples * self.ranks_per_node
        indices = mine.repeat(math.ceil(number / len(mine)))[:number]
        return iter(indices[place :: self.ranks_per_node].tolist())

    def _of_node(self, node: int) -> torch.Tensor:
        """Returns the samples that are this node's in every epoch."""
        if not self.shuffle:
            return torch.arange(node, len(self.dataset), self.nodes)
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randperm(len(self.dataset), generator=generator)[node :: self.nodes]


def _ranks_per_node(ranks: int) -> int:
    """Returns what the launcher says. Raises EgeriaError on every rank where nodes have different numbers."""
    local = os.environ.get("LOCAL_WORLD_SIZE")
    if local is None:
        raise EgeriaError(
            "BAD_NODES",
            "LOCAL_WORLD_SIZE is not set, so that nobody knows which ranks share a "
            "node; start the training by torchrun or egeria-run, or give NodeSampler() "
            "ranks_per_node",
        )
    nodes = os.environ.get("GROUP_WORLD_SIZE")
    if nodes is not None and int(local) * int(nodes) != ranks:
        raise EgeriaError(
            "BAD_NODES",
            f"{ranks} ranks on {nodes} nodes are not {local} on each; start as many on "
            "every node, or use torch's DistributedSampler",
        )
    return int(local)
