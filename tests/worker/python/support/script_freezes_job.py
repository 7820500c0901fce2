"""A script on two ranks that freezes layers by itself, thaws them and freezes more, and what the cache did in it.

  script_freezes_job.py OUT [--cache ADDRESS] [--compile] [--wrap-anew] [--deepen] [--spoil]
Each rank writes OUT/rank<r>.json. Without --cache Egeria is not attached at all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
from typing import Any

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
from egeria.cache.shallower_prefix import ShallowerPrefix
from support.ending import end_process_group

BATCH = 6
# Samples, five steps of each rank in an epoch, epochs, and from which steps on which layers do not train.
THAWS = 60, 48, {50: ["stem", "layer1"], 120: [], 200: ["stem", "layer1", "layer2"]}
# Twenty steps in an epoch. More freezes in the midst of epochs, and again before what froze second has come again.
DEEPENS = (
    240,
    9,
    {30: ["stem", "layer1"], 75: ["stem", "layer1", "layer2"], 95: ["stem", "layer1", "layer2", "layer3"]},
)


def freeze(model: nn.Module, names: list[str]) -> None:
    model.requires_grad_(True).train()
    for name in names:
        model.get_submodule(name).requires_grad_(False).eval()


def spoil() -> None:
    init = ShallowerPrefix.__init__

    def spoiled(self: ShallowerPrefix, *arguments: Any) -> None:
        init(self, *arguments)
        fetch = self._kept.fetch

        def wrong(*asked: Any) -> tuple[Any, ...]:
            tensors, *found = fetch(*asked)
            return [tensor + 1 for tensor in tensors], *found

        self._kept.fetch = wrong

    ShallowerPrefix.__init__ = spoiled


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--cache")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--wrap-anew", action="store_true", help="DistributedDataParallel is made anew at each change")
    parser.add_argument("--deepen", action="store_true", help="nothing thaws, and more freezes")
    parser.add_argument("--spoil", action="store_true", help="what is kept of a shallower prefix is wrong")
    arguments = parser.parse_args()
    if arguments.spoil:
        spoil()
    count, epochs, frozen = DEEPENS if arguments.deepen else THAWS
    torch.set_num_threads(1)
    be_patient()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = resnet()
    inputs = torch.randn(count, 3, 16, 16)
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
    losses, skipped, spared = [], {}, {}
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch, labels in loader:
            if len(losses) in frozen:
                freeze(network, frozen[len(losses)])
                optimizer.zero_grad()
                model = wrapped() if arguments.wrap_anew else model
            loss = F.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
            if session is not None:
                counters = session.cache_counters()
                skipped[len(losses)] = counters["passes_skipped"]
                spared[len(losses)] = counters["passes_spared"]
        if session is not None:
            wait_until_kept(session)
            dist.barrier()  # a rank's next samples may be those of the other
    weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in network.state_dict().values()))
    (arguments.out / f"rank{rank}.json").write_text(
        json.dumps(
            {
                "losses": losses,
                "weights": weights.hexdigest(),
                "skipped": [skipped.get(step, 0) for step in (*frozen, len(losses))],
                "spared": [spared.get(step, 0) for step in (*frozen, len(losses))],
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
