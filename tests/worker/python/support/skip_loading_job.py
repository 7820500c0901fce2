"""Trains on two ranks that leave out samples; run by test_skip_loading.py.

skip_loading_job.py FOLDER CACHE
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys

import torch
import torch.distributed as dist
from cache_daemon import be_patient, wait_until_kept
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import egeria
from egeria.data import NodeSampler, wrap
from support.ending import end_process_group

EPOCHS = 14


class Images(Dataset):
    def __init__(self) -> None:
        self.loads = 0

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.loads += 1
        return torch.randn(3, 12, 12, generator=torch.Generator().manual_seed(index)), index % 10


def block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU())


def main() -> None:
    folder, cache = pathlib.Path(sys.argv[1]), sys.argv[2]
    be_patient()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(block(3, 8), block(8, 8), nn.Sequential(nn.Flatten(), nn.Linear(72, 10)))
    ranks = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    images = Images()
    sampler = NodeSampler(images, ranks_per_node=2)
    loader = wrap(DataLoader(images, 8, sampler=sampler), skip_loading=cache != "none")
    settings = egeria.Config(controller="none", plans=[(1, 1)], cache=cache, cache_use="always")
    loads = []
    with egeria.attach(ranks, optimizer, modules=["0", "1", "2"], config=settings) as session:
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            before = images.loads
            for batch, labels in loader:
                loss = nn.functional.cross_entropy(ranks(batch), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                session.step(loss)
                wait_until_kept(session)
            loads.append(images.loads - before)
    memory = loader.__dict__["_egeria_identity"].memory
    weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    report = {
        "loads": loads,
        "weights": weights.hexdigest(),
        "off": None if memory is None else memory.off,
        "left_out": 0 if memory is None else memory.counts["left_out"],
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(report))
    end_process_group()


if __name__ == "__main__":
    main()
