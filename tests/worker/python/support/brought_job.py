"""A training that names no controller, in the ways in which scripts train and end.

  brought_job.py MODE
It trains until two layer modules are frozen and prints what happened; `MODE` says what else it does.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS = 40


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)], nn.Linear(8, 2))


class Training:
    """A model with its session."""

    def __init__(self) -> None:
        import egeria  # not before a test has changed the environment

        self.model: nn.Module = stack()
        if dist.is_initialized():
            self.model = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        begin = time.monotonic()
        config = egeria.Config.from_env(policy="schedule", options={"entries": [{"fraction": 0.1, "frozen_prefix": 2}]})
        self.session = egeria.attach(self.model, self.optimizer, total_steps=STEPS, config=config)
        self.attach_seconds = time.monotonic() - begin

    def step(self, x: torch.Tensor | None = None) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 8) if x is None else x).square().mean().backward()
        self.optimizer.step()

    def freeze(self, patience: float = 60.0) -> None:
        """Trains for a moment beyond the freeze; all ranks as long."""
        for _ in range(STEPS):
            self.step()
        deadline = time.monotonic() + patience
        while self.session.prefix < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
            self.step()
        print("prefix", self.session.prefix, flush=True)


def daemons() -> int:
    """The processes that this one has started for Egeria."""
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return sum(b"--egeria-beside" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children)


def two_models() -> None:
    trainings = [Training(), Training()]
    for training in trainings:
        training.freeze()
    print("daemons", daemons())
    trainings[0].session.close()
    trainings[1].step()
    print("daemons", daemons())


def attaches_again() -> None:
    for again in range(3):
        training = Training()
        training.freeze()
        print("daemons", daemons())
        if again < 2:
            training.session.close()
            deadline = time.monotonic() + 10
            while daemons() and time.monotonic() < deadline:
                time.sleep(0.01)
            print("daemons", daemons())


def forks() -> None:
    training = Training()
    if (child := os.fork()) == 0:
        training.step()
        sys.exit(0)  # as a library's child may, with all handlers
    os.waitpid(child, 0)
    training.freeze()
    if (child := os.fork()) == 0:
        time.sleep(600)  # it outlives its parent
    print("child", child, flush=True)
    time.sleep(600)


def with_workers(start: str) -> None:
    training = Training()
    loader = DataLoader(TensorDataset(torch.randn(64, 8)), 4, num_workers=2, multiprocessing_context=start)
    for epoch in range(2):
        for (x,) in loader:
            training.step(x)
    training.freeze()
    print("daemons", daemons())


def with_ids() -> None:
    import egeria

    training = Training()
    training.freeze()
    print("before", training.session.cache_counters())
    data = egeria.data.wrap(DataLoader(TensorDataset(torch.randn(64, 8)), 4))
    deadline = time.monotonic() + 60
    while training.session.cache_counters().get("hits", 0) == 0 and time.monotonic() < deadline:
        for (x,) in data:
            training.step(x)
            time.sleep(0.005)
    print("hits", training.session.cache_counters()["hits"])


def a_rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    ranks()


def ranks() -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    training = Training()
    for _ in range(STEPS * 20):
        training.step()
        time.sleep(0.005)
    weights = b"".join(value.detach().numpy().tobytes() for value in training.model.parameters())
    digest = hashlib.sha256(weights).hexdigest()[:16]
    switches = [(switch.step, switch.frozen_prefix) for switch in training.session.switches]
    print(f"rank {dist.get_rank()} daemons {daemons()} switches {switches} weights {digest}\n", end="", flush=True)
    training.session.close()
    dist.destroy_process_group()


def main(mode: str) -> None:
    torch.set_num_threads(1)
    if mode == "exits":
        training = Training()
        training.freeze()
        print("attach", training.attach_seconds)
    elif mode == "raises":
        Training().freeze()
        raise KeyError("a mistake of the script")
    elif mode == "waits":
        Training().freeze()
        print("waits", flush=True)
        time.sleep(600)
    elif mode == "two models":
        two_models()
    elif mode == "attaches again":
        attaches_again()
    elif mode == "forks":
        forks()
    elif mode in ("workers fork", "workers spawn"):
        with_workers(mode.split()[1])
    elif mode == "has ids":
        with_ids()
    elif mode in ("ranks fork", "ranks spawn"):
        mp.start_processes(a_rank, (os.environ["TMPDIR"],), nprocs=2, start_method=mode.split()[1])
    elif mode == "ranks":
        ranks()
    else:
        Training().freeze(patience=3.0)


if __name__ == "__main__":
    main(sys.argv[1])
