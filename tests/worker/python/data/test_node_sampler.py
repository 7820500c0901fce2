"""A sampler that keeps each sample on its node: every sample once an epoch, always on the same node."""

from __future__ import annotations

import itertools
import pickle

import pytest
from torch.utils.data import DataLoader, DistributedSampler

from egeria import EgeriaError
from egeria.data import NodeSampler, current, wrap

EPOCHS = 3


def draw(samples: int, nodes: int, ranks: int, **options: bool | int) -> list[list[list[int]]]:
    """By epoch and rank."""
    samplers = [
        NodeSampler(range(samples), nodes * ranks, rank, ranks_per_node=ranks, **options)
        for rank in range(nodes * ranks)
    ]
    drawn = []
    for epoch in range(EPOCHS):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        drawn.append([list(sampler) for sampler in samplers])
        assert {len(indices) for indices in drawn[-1]} == {len(samplers[0])}
    return drawn


def of_node(epoch: list[list[int]], node: int, ranks: int) -> list[int]:
    return [index for indices in epoch[node * ranks : (node + 1) * ranks] for index in indices]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("samples", [40, 41, 42, 43, 5, 2])
@pytest.mark.parametrize("nodes,ranks", [(2, 2), (1, 3), (2, 1)])
def test_every_sample_comes_once_an_epoch_and_always_on_its_node(samples: int, nodes: int, ranks: int, shuffle: bool):
    drawn = draw(samples, nodes, ranks, shuffle=shuffle)
    homes = [{index for epoch in drawn for index in of_node(epoch, node, ranks)} for node in range(nodes)]
    assert sum(map(len, homes)) == samples and set().union(*homes) == set(range(samples))
    assert max(map(len, homes)) - min(map(len, homes)) <= 1
    for epoch in drawn:
        indices = [index for rank in epoch for index in rank]
        assert set(indices) == set(range(samples))
        # As many as with torch's own, repeated only to make the ranks alike.
        assert len(indices) == len(DistributedSampler(range(samples), nodes * ranks, 0)) * nodes * ranks


@pytest.mark.parametrize("samples", [40, 41, 43])
def test_without_the_rest_no_sample_comes_twice_and_every_one_now_and_then(samples: int):
    drawn = draw(samples, 2, 2, drop_last=True)
    for epoch in drawn:
        indices = [index for rank in epoch for index in rank]
        expected = 4 * len(DistributedSampler(range(samples), 4, 0, drop_last=True))
        assert len(set(indices)) == len(indices) == expected
    assert {index for epoch in drawn for rank in epoch for index in rank} == set(range(samples))


def test_epochs_are_shuffled_and_ranks_of_a_node_exchange_samples():
    drawn = draw(400, 2, 2)
    for rank, other in itertools.product(range(4), range(4)):
        common = len(set(drawn[0][rank]) & set(drawn[1][other]))
        assert 30 < common < 70 if rank // 2 == other // 2 else common == 0
    assert drawn[0][0] != drawn[1][0] and draw(400, 2, 2) == drawn
    assert drawn != draw(400, 2, 2, seed=1)
    home = set(of_node(drawn[0], 0, 2))
    assert home != set(of_node(draw(400, 2, 2, seed=1)[0], 0, 2))
    assert 70 < sum(index < 200 for index in home) < 130  # however the samples are sorted


def test_with_a_loader_it_is_known_ahead():
    sampler = NodeSampler(range(103), 4, 3, ranks_per_node=2)
    loader = wrap(DataLoader(range(103), 4, sampler=sampler))
    previous: list[int] | None = None
    for batch in loader:
        hint = current().upcoming()
        assert current().take(len(batch)) == batch.tolist()
        assert hint or len(batch) < 4 or batch.tolist() == previous
        previous = hint[0] if hint else None
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


def test_the_launcher_says_which_ranks_share_a_node(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(EgeriaError, match=r"^\[BAD_NODES\] LOCAL_WORLD_SIZE is not set"):
        NodeSampler(range(40), 4, 0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert NodeSampler(range(40), 4, 0).nodes == 2
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    assert NodeSampler(range(40), 4, 0).nodes == 2
    with pytest.raises(EgeriaError, match=r"^\[BAD_NODES\] 8 ranks on 2 nodes are not 2 on each"):
        NodeSampler(range(40), 8, 0)


def test_nodes_with_different_numbers_of_ranks_are_refused_on_each_rank(monkeypatch: pytest.MonkeyPatch):
    """Three on one, one on the other: the latter's number alone would fit."""
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    for local, ranks in (("3", range(3)), ("1", range(3, 4))):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
        for rank in ranks:
            with pytest.raises(EgeriaError, match=r"^\[BAD_NODES\]"):
                NodeSampler(range(40), 4, rank)
    with pytest.raises(EgeriaError, match=r"^\[BAD_NODES\] 4 ranks are not 3 on each node"):
        NodeSampler(range(40), 4, 0, ranks_per_node=3)


def test_more_nodes_than_samples_are_refused():
    with pytest.raises(EgeriaError, match=r"^\[BAD_NODES\] 1 samples cannot be dealt to 2 nodes"):
        NodeSampler(range(1), 4, 0, ranks_per_node=2)
