"""One rank of a training on a GPU, for test_ranks.py.

  ranks_on_gpu.py OUT BACKENDS STEP:PREFIX,...|none ddp|fsdp2|apart
All ranks use the first GPU. Each writes OUT/rank<r>.json. With "apart" rank 1 changes a weight while layers are frozen.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpu_training import CLASSES, DEVICE, MODULES, Convolutions
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import egeria
from egeria import _native
from support.ending import end_process_group

STEPS = 16


def main() -> None:
    out, (backend, plans, wrap) = pathlib.Path(sys.argv[1]), sys.argv[2:]
    if DEVICE.type == "cuda":
        torch.cuda.set_device(0)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group(backend)
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = Convolutions().to(DEVICE)
    if wrap != "fsdp2":
        model = DistributedDataParallel(network, device_ids=[0] if DEVICE.type == "cuda" else None)
    else:
        for unit in (network.stem, *network.blocks, network.head):
            fully_shard(unit)
        model = fully_shard(network)
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    entries = [tuple(map(int, entry.split(":"))) for entry in plans.split(",")] if plans != "none" else []
    controller = {} if entries else {"controller": os.environ["EGERIA_CONTROLLER"], "policy": "gradnorm"}
    controller |= {} if entries else {"observe": True, "options": {"interval_steps": 2}}
    config = egeria.Config(plans=entries, on_divergence="resync" if wrap == "apart" else "stop", **controller)
    session = egeria.attach(model, optimizer, modules=MODULES[Convolutions], config=config)
    hashes, prefixes = [], []
    for step in range(STEPS):
        data = torch.Generator().manual_seed(2 * step + rank)
        images = torch.randn(8, 3, 16, 16, generator=data).to(DEVICE)
        labels = torch.randint(0, CLASSES, (8,), generator=data).to(DEVICE)
        torch.manual_seed(step)
        if wrap == "apart" and step == 7 and rank == 1:
            network.head.weight.data.mul_(1.001)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        session.step(loss)
        time.sleep(0.0 if entries else 0.1)  # a controller needs a moment to answer
        hashes.append(_native.hash_tensors([getattr(value, "_local_tensor", value) for value in network.parameters()]))
        prefixes.append(session.prefix)
    switches = [[switch.step, switch.frozen_prefix, switch.ranks_identical] for switch in session.switches]
    (out / f"rank{rank}.json").write_text(json.dumps({"hashes": hashes, "prefixes": prefixes, "switches": switches}))
    session.close()
    end_process_group()


if __name__ == "__main__":
    main()
