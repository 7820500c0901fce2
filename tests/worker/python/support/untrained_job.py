"""A script whose optimizer holds the head alone, in many ways, with Egeria or without.

  untrained_job.py OUT WAY [--cache ADDRESS] [--ranks] [--compile] [--clip NORM] [--plans JSON]
Each rank writes OUT/rank<r>.json. Without --cache Egeria is not attached at all. Ways are functions of this file that
no other code names, so that none counts as what may run in another.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from cache_daemon import be_patient, wait_until_kept
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import egeria
from egeria import data
from support.ending import end_process_group

SAMPLES, BATCH, EPOCHS = 64, 8, 5


class Net(nn.Module):
    """A trunk of three blocks, a neck and a head of the same shape, and a layer that nothing calls."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            *(nn.Sequential(nn.Conv2d(3 if i == 0 else 8, 8, 3, 2, 1), nn.ReLU()) for i in range(3))
        )
        self.neck = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.neck(self.trunk(x).mean((2, 3)))))


class Run:
    """One training: its model, and what a way needs to train it."""

    def __init__(self, arguments: argparse.Namespace, change: Callable[[Net], Any] = lambda network: None):
        torch.manual_seed(0)
        self.network = Net()
        change(self.network)
        self.model: nn.Module = self.network
        self.arguments = arguments
        self.session: Any = None
        self.log: list[Any] = []
        self.skipped: list[int] = []
        self.steps = 0
        inputs = torch.randn(SAMPLES, 3, 16, 16)
        self.samples = TensorDataset(inputs, inputs.flatten(1).argmax(1) % 8)
        if arguments.ranks:
            self.model = DistributedDataParallel(self.network, find_unused_parameters=True)
        if arguments.compile:
            self.model = torch.compile(self.model)

    def attach(self, *optimizers: torch.optim.Optimizer) -> None:
        if self.arguments.cache:
            cached = {"cache": self.arguments.cache, "cache_use": "always"}
            config = egeria.Config(controller="none", policy="none", plans=self.arguments.plans, **cached)
            self.session = egeria.attach(self.model, list(optimizers), config=config)

    def batches(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        sampler = DistributedSampler(self.samples, shuffle=True, seed=3) if self.arguments.ranks else None
        loader = DataLoader(self.samples, BATCH, shuffle=sampler is None, sampler=sampler)
        if self.session is not None:
            loader = data.wrap(loader)
        torch.manual_seed(1)
        for epoch in range(EPOCHS):
            for images, labels in loader:
                yield epoch, images, labels
                self.steps += 1
            if self.session is not None:
                wait_until_kept(self.session)
                if self.arguments.ranks:
                    dist.barrier()
                self.skipped.append(self.session.cache_counters().get("passes_skipped", 0))

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.model(images), labels)


def zero_first(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.head.parameters(), 0.1, momentum=0.9)
    run.attach(optimizer)
    for _, *batch in run.batches():
        optimizer.zero_grad()
        run.loss(*batch).backward()
        if arguments.clip is not None:
            nn.utils.clip_grad_norm_(run.model.parameters(), arguments.clip)
        optimizer.step()
    return run


def zero_last(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.head.parameters(), 0.1, momentum=0.9)
    run.attach(optimizer)
    for _, *batch in run.batches():
        run.loss(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return run


def neck_and_head(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD([{"params": run.network.neck.parameters()}, {"params": run.network.head.parameters()}], 0.1)
    run.attach(optimizer)
    for _, *batch in run.batches():
        optimizer.zero_grad()
        run.loss(*batch).backward()
        optimizer.step()
    return run


def model_cleared(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.head.parameters(), 0.1)
    run.attach(optimizer)
    for epoch, *batch in run.batches():
        if epoch == 3 and len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": run.network.trunk.parameters()})
        run.loss(*batch).backward()
        optimizer.step()
        run.model.zero_grad()
    return run


def added_later(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.head.parameters(), 0.1)
    run.attach(optimizer)
    for epoch, *batch in run.batches():
        if epoch == 3 and len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": run.network.trunk[2].parameters(), "lr": 0.05})
        optimizer.zero_grad()
        run.loss(*batch).backward()
        optimizer.step()
    return run


def made_later(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.head.parameters(), 0.1)
    run.attach(optimizer)
    for epoch, *batch in run.batches():
        if epoch == 3 and len(optimizer.param_groups[0]["params"]) == 2:
            optimizer = SGD([value for value in run.network.parameters() if value.requires_grad], 0.02)
        loss = run.loss(*batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return run


def put_in_by_hand(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.head.parameters(), 0.1)
    run.attach(optimizer)
    for epoch, *batch in run.batches():
        if epoch == 3 and len(optimizer.param_groups[0]["params"]) == 2:
            optimizer.param_groups[0]["params"] += run.network.neck.parameters()
        optimizer.zero_grad()
        run.loss(*batch).backward()
        optimizer.step()
    return run


def added_with_what_has_gathered(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.head.parameters(), 0.1)
    run.attach(optimizer)
    for epoch, *batch in run.batches():
        if epoch == 3 and len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": run.network.trunk.parameters(), "lr": 1e-3})
        run.loss(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return run


def two_from_the_start(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer, other = SGD(run.network.head.parameters(), 0.1), SGD(run.network.parameters(), 0.02)
    run.attach(optimizer)
    for epoch, *batch in run.batches():
        optimizer = other if epoch == 3 else optimizer
        optimizer.zero_grad()
        run.loss(*batch).backward()
        optimizer.step()
    return run


def narrowed_later(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.parameters(), 0.1)
    run.attach(optimizer)
    for epoch, *batch in run.batches():
        if epoch == 1 and len(optimizer.param_groups[0]["params"]) > 2:
            optimizer = SGD(run.network.head.parameters(), 0.1)
        optimizer.zero_grad()
        run.loss(*batch).backward()
        optimizer.step()
    return run


def tie(network: Net) -> None:
    network.head.weight = network.neck.weight


def tied(arguments: argparse.Namespace) -> Run:
    run = Run(arguments, tie)
    optimizer = SGD(run.network.head.parameters(), 0.1)
    run.attach(optimizer)
    for _, *batch in run.batches():
        optimizer.zero_grad()
        run.loss(*batch).backward()
        optimizer.step()
    return run


def moved_without(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.head.parameters(), 0.1)
    run.attach(optimizer)
    for _, *batch in run.batches():
        optimizer.zero_grad()
        run.loss(*batch).backward()
        optimizer.step()
        for value in run.network.trunk.parameters():
            value.data.mul_(0.999)
    return run


def frozen_and_thawed(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.head.parameters(), 0.1)
    run.attach(optimizer)
    for epoch, *batch in run.batches():
        if not arguments.ranks:
            run.network.trunk.requires_grad_(epoch != 2)
        run.log.append([value.requires_grad for value in run.network.parameters()])
        optimizer.zero_grad()
        run.loss(*batch).backward()
        optimizer.step()
    return run


# In these, gradients are used.


def clipped(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.head.parameters(), 0.1)
    run.attach(optimizer)
    for _, *batch in run.batches():
        run.model.zero_grad()
        run.loss(*batch).backward()
        nn.utils.clip_grad_norm_(run.model.parameters(), 0.5)
        optimizer.step()
    return run


def clipped_later(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.head.parameters(), 0.1)
    run.attach(optimizer)
    for epoch, *batch in run.batches():
        optimizer.zero_grad()
        run.loss(*batch).backward()
        if epoch >= 2:
            nn.utils.clip_grad_norm_(run.model.parameters(), 0.5)
        optimizer.step()
    return run


def clipped_by_a_helper(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.head.parameters(), 0.1)
    run.attach(optimizer)
    helper = {"clip": norms}
    for epoch, *batch in run.batches():
        optimizer.zero_grad()
        run.loss(*batch).backward()
        if epoch == 3:
            helper["clip"](run.model)
        optimizer.step()
    return run


def norms(model: nn.Module) -> None:
    for value in model.parameters():
        if getattr(value, "grad") is not None:  # noqa: B009
            value.grad.clamp_(-1e-3, 1e-3)


def logged(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.head.parameters(), 0.1)
    run.attach(optimizer)
    for _, *batch in run.batches():
        run.loss(*batch).backward()
        optimizer.step()
        if run.steps % 7 == 6:
            run.log.append([value.grad.norm().item() for value in run.network.trunk.parameters()])
        optimizer.zero_grad()
    return run


def moved_by_hand(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.head.parameters(), 0.1)
    run.attach(optimizer)
    for _, *batch in run.batches():
        run.model.zero_grad()
        run.loss(*batch).backward()
        optimizer.step()
        for value in run.network.trunk.parameters():
            value.data -= 0.05 * value.grad
    return run


def asked_for(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    optimizer = SGD(run.network.head.parameters(), 0.1)
    run.attach(optimizer)
    for epoch, *batch in run.batches():
        optimizer.zero_grad()
        loss = run.loss(*batch)
        if epoch == 2:
            found = torch.autograd.grad(loss, list(run.network.trunk.parameters()), retain_graph=True)
            run.log.append([value.norm().item() for value in found])
        loss.backward()
        optimizer.step()
    return run


def hooked(arguments: argparse.Namespace) -> Run:
    run = Run(arguments)
    run.network.trunk[0][0].weight.register_hook(lambda value: run.log.append(value.norm().item()))
    optimizer = SGD(run.network.head.parameters(), 0.1)
    run.attach(optimizer)
    for _, *batch in run.batches():
        optimizer.zero_grad()
        run.loss(*batch).backward()
        optimizer.step()
    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("way")
    parser.add_argument("--cache")
    parser.add_argument("--ranks", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--clip", type=float)
    parser.add_argument("--plans", type=json.loads, default=())
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    be_patient()
    if arguments.ranks:
        dist.init_process_group("gloo")
    run: Run = globals()[arguments.way](arguments)
    weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in run.network.state_dict().values()))
    session = run.session
    (arguments.out / f"rank{dist.get_rank() if arguments.ranks else 0}.json").write_text(
        json.dumps(
            {
                "weights": weights.hexdigest(),
                "log": run.log,
                "random": torch.get_rng_state().sum().item(),
                "skipped": run.skipped,
                "summary": session.summary() if session is not None else None,
                "progress": session.progress() if session is not None else None,
                "reason": session.cache_estimates()["reason"] if session is not None else None,
            }
        ),
        encoding="utf-8",
    )
    if session is not None:
        session.close()
    if arguments.ranks:
        end_process_group()


if __name__ == "__main__":
    main()
