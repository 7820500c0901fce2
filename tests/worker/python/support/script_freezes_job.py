"""A script on two ranks that freezes layers by itself, thaws them and freezes more, and what the cache did in it.

  script_freezes_job.py OUT [--cache ADDRESS] [--compile] [--wrap-anew]
Each rank writes OUT/rank<r>.json. Without --cache Egeria is not attached at all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from cache_daemon import be_patient, wait_until_kept
from skipped_models import resnet
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import egeria
from egeria import data
from support.ending import end_process_group

SAMPLES, BATCH, EPOCHS = 60, 6, 48  # five steps of each rank in an epoch
# From each of these steps on, these layers do not train.
FROZEN = {50: ["stem", "layer1"], 120: [], 200: ["stem", "layer1", "layer2"]}


def freeze(model: nn.Module, names: list[str]) -> None:
    model.requires_grad_(True).train()
    for name in names:
        model.get_submodule(name).requires_grad_(False).eval()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--cache")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--wrap-anew", action="store_true", help="DistributedDataParallel is made anew at each change")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    be_patient()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = resnet()
    inputs = torch.randn(SAMPLES, 3, 16, 16)
    samples = TensorDataset(inputs, inputs.flatten(1).argmax(1) % 10)
    torch.manual_seed(100 + rank)

    def wrapped() -> nn.Module:
        model = DistributedDataParallel(network, find_unused_parameters=not arguments.wrap_anew)
        return torch.compile(model) if arguments.compile else model

    model = wrapped()
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
    session = None
    sampler = DistributedSampler(samples, shuffle=True, seed=3)
    loader = DataLoader(samples, BATCH, sampler=sampler)
    if arguments.cache:
        config = egeria.Config(controller="none", policy="none", cache=arguments.cache, cache_use="always")
        session = egeria.attach(model, optimizer, config=config)
        loader = data.wrap(loader)
    losses, skipped = [], {}
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for batch, labels in loader:
            if len(losses) in FROZEN:
                freeze(network, FROZEN[len(losses)])
                optimizer.zero_grad()
                model = wrapped() if arguments.wrap_anew else model
            loss = F.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
            if session is not None:
                skipped[len(losses)] = session.cache_counters()["passes_skipped"]
        if session is not None:
            wait_until_kept(session)
            dist.barrier()  # a rank's next samples may be those of the other
    weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in network.state_dict().values()))
    (arguments.out / f"rank{rank}.json").write_text(
        json.dumps(
            {
                "losses": losses,
                "weights": weights.hexdigest(),
                "skipped": [skipped.get(step, 0) for step in (50, 120, 200, len(losses))],
                "summary": session.summary() if session is not None else None,
                "reason": session.cache_estimates()["reason"] if session is not None else None,
            }
        ),
        encoding="utf-8",
    )
    if session is not None:
        session.close()
    end_process_group()


if __name__ == "__main__":
    main()
