"""Plays the Python package's part in the conformance list: trains the scenarios of scenarios.py on one of two ranks,
under torchrun, and writes its records.

  python_rank.py FOLDER CONTROLLER    (the address for scenarios with readings)
"""

from __future__ import annotations

import collections
import contextlib
import copy
import json
import pathlib
import sys
import time
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from scenarios import SAMPLES, SCENARIOS, STEPS, Scenario
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import egeria
from egeria import _native
from egeria.freeze.replicas import Replicas
from support.ending import end_process_group


class Block(nn.Module):
    """As ToyBlock in tests/support/toy_model.cc, without dropout."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width_in, width_out, 3, padding=1)
        self.norm = nn.BatchNorm2d(width_out)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class Head(nn.Module):
    """As ToyHead there."""

    def __init__(self, width_in: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in * 36, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.flatten(x, 1))


class Training:
    """A model with its wrapper, optimizer and session: as ToyRank in tests/worker/session."""

    def __init__(self, scenario: Scenario, controller: str):
        torch.manual_seed(3)
        blocks = [Block(3, 4), Block(4, 8), Block(8, 12), Head(12)]
        names = ["block0", "block1", "block2", "head"]
        self.model = nn.Sequential(collections.OrderedDict(zip(names, blocks)))
        for block in blocks[: scenario.freeze_first]:
            block.requires_grad_(False)
        self.wrapped = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9, weight_decay=0.01)
        config = egeria.Config(
            controller=controller if scenario.readings else "none",
            plans=scenario.plans,
            policy="plasticity",  # it reads samples
            observe=scenario.readings,
            reference="controller",
            batch_size=SAMPLES,
            cache="none",
            pin_frozen_modes=True,
        )
        self.session = egeria.attach(self.wrapped, self.optimizer, modules=names, config=config)

    def step(self, number: int, rank: int) -> float:
        data = torch.Generator().manual_seed(100 * (number - 1) + rank)
        images = torch.randn(8, 3, 6, 6, generator=data)
        labels = torch.randint(0, 5, (8,), generator=data)
        self.wrapped.train()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.wrapped(images), labels)
        loss.backward()
        self.optimizer.step()
        self.session.step(loss)
        return loss.item()

    def state(self) -> dict[str, Any]:
        return {
            "model": {name: value.clone() for name, value in self.model.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "session": self.session.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.session.load_state_dict(state["session"])

    def hashes(self) -> tuple[list[int], list[int]]:
        """Hashes the parameters, and the buffers, of each layer module."""
        return tuple(
            [_native.hash_tensors([value.detach() for value in kind(block)]) for block in self.model]
            for kind in (nn.Module.parameters, nn.Module.buffers)
        )


def keep_offers(record: dict[str, Any]) -> contextlib.ExitStack:
    """Notes each reading that this rank gives to its link."""
    offer_sample, offer_gradients = _native.RankLink.offer_sample, _native.RankLink.offer_gradients

    def sample(link: Any, request: Any, step: int, inputs: Any, compared: Tensor) -> bool:
        record["gram"][step] = compared.flatten().tolist()
        return offer_sample(link, request, step, inputs, compared)

    def gradients(link: Any, request: Any, step: int, *squares: Any) -> bool:
        record["gradients"][step] = squares
        return offer_gradients(link, request, step, *squares)

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(_native.RankLink, "offer_sample", sample))
    stack.enter_context(mock.patch.object(_native.RankLink, "offer_gradients", gradients))
    return stack


def fail(*_: Any) -> None:
    raise RuntimeError("this rank cannot switch")


def mean_over_ranks(own: dict[int, Any]) -> dict[int, dict[str, Any]]:
    """Averages over the ranks what each knows of the gradients of each step, as GradientExchange does."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    found = {}
    for step in own:
        squares = [known[step] for known in everyone]
        means = [
            [sum(column) / len(squares) for column in zip(*(rank[kind] for rank in squares))] for kind in (0, 1, 4)
        ]
        found[step] = {
            **dict(zip(("mean_of_squares", "square_of_mean", "progress"), means)),
            "parts": sum(rank[2] for rank in squares),
            "samples": sum(rank[3] for rank in squares),
        }
    return found


def wait_for_controller(session: egeria.Session) -> None:
    while not session.counters().get("connected"):
        time.sleep(0.01)


def train(scenario: Scenario, rank: int, controller: str) -> dict[str, Any]:
    record: dict[str, Any] = collections.defaultdict(list, gram={}, gradients={})
    training = Training(scenario, controller)
    fails = mock.patch.object(Replicas, "rebuild", fail) if scenario.fails_on == rank else contextlib.nullcontext()
    with keep_offers(record), fails:
        for step in range(1, STEPS + 1):
            record["loss"].append(training.step(step, rank))
            record["prefix"].append(max(training.session.prefix, training.session.summary()["frozen_by_script"]))
            parameters, buffers = training.hashes()
            record["parameters"].append(parameters)
            record["buffers"].append(buffers)
            if scenario.readings and step == 2:  # the link has just been started
                wait_for_controller(training.session)
            if step == scenario.resumes_at:
                state = copy.deepcopy(training.state())
                training.session.close(finished=False)
                training = Training(scenario, controller)
                training.restore(state)
    session = training.session
    record["switches"] = [[s.step, s.frozen_prefix, s.unfreeze, s.ranks_identical] for s in session.switches]
    record["undone"] = session.summary()["switches_undone"]
    session.close()
    record["gradients"] = mean_over_ranks(record["gradients"])
    return record


def main() -> None:
    folder, controller = pathlib.Path(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    records = {scenario.name: train(scenario, rank, controller) for scenario in SCENARIOS}
    (folder / f"rank{rank}.json").write_text(json.dumps(records), encoding="utf-8")
    end_process_group()


if __name__ == "__main__":
    main()
