"""A training on two ranks that stops in the middle of the first epoch after a freeze, to be killed, or goes on
from there.

  caching_resume_job.py OUT [--cache ADDRESS] [--freeze-at STEP] [--hold-at STEP] [--exit-at STEP] [--resume STEP]
A checkpoint is written after each of the first steps: OUT/step<n>.pt. Each rank writes OUT/rank<r>.json, and
OUT/held<r>.json when it waits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from cache_daemon import be_patient, wait_until_kept
from caching_job import BATCH, STEPS_PER_EPOCH, Images, ResNet
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import egeria
from egeria import data
from support.ending import end_process_group

EPOCHS = 5
CHECKPOINTS = 6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--cache", default="none")
    parser.add_argument("--freeze-at", type=int, default=4)
    parser.add_argument("--hold-at", type=int, default=-1, help="step after which to wait for the end")
    parser.add_argument("--exit-at", type=int, default=-1, help="step after which to exit as if all were well")
    parser.add_argument("--resume", type=int, default=0, help="begin with the checkpoint of this step")
    arguments = parser.parse_args()
    be_patient()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = ResNet(14)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
    session = egeria.attach(
        model,
        optimizer,
        config=egeria.Config(plans=[(arguments.freeze_at, 2)], cache=arguments.cache, cache_use="always"),
        total_steps=EPOCHS * STEPS_PER_EPOCH,
    )
    step = arguments.resume
    if step:
        saved = torch.load(arguments.out / f"step{step}.pt")
        network.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        session.load_state_dict(saved["egeria"])
    images = Images(augment=False)
    sampler = DistributedSampler(images, shuffle=True, seed=3)
    hits = {}  # hits of the cache until the end of each epoch
    for epoch in range(step // STEPS_PER_EPOCH, EPOCHS):
        sampler.set_epoch(epoch)
        # A loop that went through the batches that it has had already would have no ids in this epoch.
        rest = list(sampler)[step % STEPS_PER_EPOCH * BATCH :]
        for batch, labels in data.wrap(DataLoader(images, BATCH, sampler=rest)):
            loss = F.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.step(loss)
            step += 1
            wait_until_kept(session)
            if rank == 0 and step <= CHECKPOINTS:
                torch.save(
                    {
                        "model": network.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "egeria": session.state_dict(),
                    },
                    arguments.out / f"step{step}.pt",
                )
            if step == arguments.hold_at:
                say_what_is_stored(arguments.out, rank, session)
                time.sleep(600)
            if step == arguments.exit_at:
                say_what_is_stored(arguments.out, rank, session)
                end_process_group()
                sys.exit()
        hits[epoch] = session.cache_counters().get("cache_hits", 0)
    weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in network.state_dict().values()))
    write(
        arguments.out / f"rank{rank}.json",
        {"weights": weights.hexdigest(), "hits": hits, "counters": session.cache_counters()},
    )
    session.close()
    end_process_group()


def say_what_is_stored(out: pathlib.Path, rank: int, session: egeria.Session) -> None:
    """All that was offered, and the checkpoint."""
    counters = session.cache_counters()
    assert counters["cache_stored"] == counters["cache_offered"], counters  # none was dropped or refused
    dist.barrier()
    write(out / f"held{rank}.json", {"pid": os.getpid(), "counters": counters})


def write(path: pathlib.Path, value: dict[str, Any]) -> None:
    path.with_suffix(".part").write_text(json.dumps(value), encoding="utf-8")
    path.with_suffix(".part").rename(path)


if __name__ == "__main__":
    main()
