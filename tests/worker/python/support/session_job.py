"""A training script for the tests of sessions, alone or under torchrun; with or without Egeria.

  session_job.py --out FOLDER [options]
Each rank writes FOLDER/rank<r>.json: its losses, bit for bit, and what the session says of itself.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import os
import pathlib
import random
import signal
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from support.ending import end_process_group
from support.sharded import whole

CLASSES = 4


class Convolutions(nn.Module):
    """BatchNorm and dropout, a skip connection, an activation that several layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.ReLU(inplace=True)
        self.drop = nn.Dropout2d(0.1)
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)) for _ in range(3)
        )
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared(self.stem(x))
        for block in self.blocks:
            x = self.shared(x + self.drop(block(x)))
        return self.head(x.mean(dim=(2, 3)))


class Branches(Convolutions):
    """Python control flow on data: it cannot be recorded."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared(self.stem(x))
        for block in self.blocks:
            x = self.shared(x + block(x)) if float(x.detach().mean()) > -1 else block(x)
        return self.head(x.mean(dim=(2, 3)))


class Encoder(nn.Module):
    """nn.TransformerEncoder, whose evaluation mode has a fused path of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x.squeeze(1)))[:, 0])


class Noisy(Convolutions):
    """Draws from Python's and numpy's generators in every forward pass, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        self.scale.mul_(1 + 1e-3 * random.random() * float(np.random.rand()))
        return super().forward(x * self.scale + 0.01 * torch.randn_like(x) * (self.passes % 3))


class Tied(nn.Module):
    """Its first and its last matrix are one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(3))
        self.last, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.squeeze(1))
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.head(self.last(x).mean(1))


MODELS = {kind.__name__.lower(): kind for kind in (Convolutions, Branches, Encoder, Noisy, Tied)}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--egeria", default="none", choices=["none", "observe", "act", "plans"])
    parser.add_argument("--plans", default="", help="STEP:PREFIX,...")
    parser.add_argument("--reference", default="auto")
    parser.add_argument("--model", default="convolutions", choices=MODELS)
    parser.add_argument(
        "--wrap",
        default="ddp",
        choices=["plain", "ddp", "later", "compile_ddp", "ddp_compile", "later_compile", "fsdp2"],
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--until",
        choices=["switch", "unfreeze", "samples"],
        help="on two ranks: go on past --steps "
        "until there was one, or samples and a snapshot were sent, for three minutes at most",
    )
    parser.add_argument("--pace", type=float, default=0, help="seconds that a step takes at least")
    parser.add_argument(
        "--drop-rate-after",
        type=int,
        default=0,
        help="a tenth of the learning rate from so many steps after the first switch on",
    )
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--uneven", type=int, default=0, help="rank 1 takes so many steps less, in DDP's join()")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="autocast with a GradScaler")
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adamw"])
    parser.add_argument("--interval", type=int, default=2)
    parser.add_argument("--silent", action="store_true", help="no losses are reported")
    parser.add_argument("--early", action="store_true", help="losses are reported before the optimizer steps")
    parser.add_argument("--silent-rank", type=int, default=-1, help="this rank reports no losses")
    parser.add_argument("--break", dest="broken", default="", help="MODULE:CLASS.METHOD that fails on rank 1")
    parser.add_argument("--unseen", type=int, default=0, help="no step is seen from so many on after the first switch")
    parser.add_argument("--unseen-on", type=int, default=-1, help="on this rank only")
    parser.add_argument("--come-apart", type=int, default=0, help="the step before which rank 1 changes a weight")
    parser.add_argument("--save-at", type=int, default=0)
    parser.add_argument("--load", type=pathlib.Path)
    parser.add_argument("--other-plan", type=int, default=0, help="that rank 1 says after --load to have applied")
    parser.add_argument("--other", default="", help="NAME=VALUE in the environment of rank 1 alone")
    parser.add_argument("--other-config", type=json.loads, default={}, help="fields of rank 1's Config, as JSON")
    parser.add_argument("--other-modules", nargs="*", help="of rank 1's attach()")
    parser.add_argument("--absent", action="store_true", help="rank 1 trains without Egeria")
    parser.add_argument("--pause-at", type=int, default=0, help="say so in OUT/paused, go on when OUT/go is there")
    parser.add_argument("--end", default="", help="raise, interrupt, or forget to close")
    return parser.parse_args()


def wrap(network: nn.Module, how: str) -> nn.Module:
    if "compile" in how:
        import torch._dynamo

        torch._dynamo.config.suppress_errors = False
    match how:
        case "ddp" | "later":
            return DistributedDataParallel(network)
        case "compile_ddp" | "later_compile":
            return torch.compile(DistributedDataParallel(network), backend="aot_eager")
        case "ddp_compile":
            return DistributedDataParallel(torch.compile(network, backend="aot_eager"))
        case "fsdp2":
            from torch.distributed.fsdp import fully_shard

            for name, child in network.named_children():
                for unit in child if name == "blocks" else [child]:
                    if any(True for _ in unit.parameters()):
                        fully_shard(unit)
            return fully_shard(network)
    return network


def attach(arguments: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler, rank: int):
    import egeria

    name, _, value = arguments.other.partition("=")
    if name and rank == 1:
        os.environ[name] = value
    plans = [tuple(map(int, entry.split(":"))) for entry in arguments.plans.split(",") if entry]
    config = egeria.Config.from_env(
        observe=arguments.egeria == "observe",
        plans=plans if arguments.egeria == "plans" else (),
        batch_size=8,
        reference=arguments.reference,
        training_job="session-job",
        policy="plasticity",
        options={"interval_steps": arguments.interval, "window": 3, "tolerance": 1.0, "bootstrap": arguments.silent},
    )
    modules = None
    if rank == 1:
        config = dataclasses.replace(config, **arguments.other_config)
        modules = arguments.other_modules
    return egeria.attach(model, optimizer, scheduler=scheduler, config=config, modules=modules)


def break_method(where: str) -> None:
    """Lets a method of ours fail from its third call on."""
    module, _, path = where.partition(":")
    owner, _, name = path.partition(".")
    kind = getattr(importlib.import_module(module), owner)
    original, calls = getattr(kind, name), itertools.count(1)

    @functools.wraps(original)  # torch's own is known by its parameters
    def fail(*arguments, **keywords):
        if next(calls) > 2:
            raise ZeroDivisionError("ours")
        return original(*arguments, **keywords)

    setattr(kind, name, fail)


def wait_here(arguments: argparse.Namespace, rank: int) -> None:
    (arguments.out / f"paused{rank}").touch()
    while not (arguments.out / "go").exists():
        time.sleep(0.02)


def goes_on(until: str, session, deadline: float) -> bool:
    """Whether on no rank this has happened, and there is time; the same on all ranks."""
    sent = [session.counters().get(name, 0) for name in ("samples_sent", "snapshots_sent")]
    happened = {
        "switch": bool(session.switches),
        "unfreeze": any(entry.unfreeze for entry in session.switches),
        "samples": min(sent) > 0,
    }[until]
    over = torch.tensor(float(happened or time.monotonic() > deadline))
    dist.all_reduce(over, dist.ReduceOp.MAX)
    return not over


def main() -> None:
    arguments = parse_arguments()
    torch._C._set_print_stack_traces_on_fatal_signal(True)  # a crash tells of all threads
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
    torch.manual_seed(0)
    network = MODELS[arguments.model]()
    torch.manual_seed(1000 + rank)
    random.seed(rank)
    np.random.seed(rank)
    later = arguments.wrap.startswith("later")
    model = network if later else wrap(network, arguments.wrap)
    kind = {
        "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-4),
        "adamw": lambda p: torch.optim.AdamW(p, 1e-3),
    }[arguments.optimizer]
    optimizer = kind(network.parameters())
    session = None

    def rate(step: int) -> float:
        switches = session.switches if session is not None and arguments.drop_rate_after else []
        return 0.1 if switches and step >= switches[0].step + arguments.drop_rate_after else 1.0

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    scaler = torch.amp.GradScaler("cpu", enabled=arguments.bf16, init_scale=256.0)
    if arguments.egeria != "none" and not (arguments.absent and rank == 1):
        session = attach(arguments, model, optimizer, scheduler, rank)
    if arguments.broken and rank == 1:
        break_method(arguments.broken)
    silent = arguments.silent or arguments.silent_rank == rank
    model = wrap(network, arguments.wrap) if later else model
    step = 0
    if arguments.load:
        saved = torch.load(arguments.load.with_name(f"{arguments.load.name}.{rank}"), weights_only=True)
        network.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        step = saved["step"]
        torch.set_rng_state(saved["random"])
        if session is not None:
            state = saved["egeria"] or {"step": step}
            if arguments.other_plan and rank == 1:
                state["applied_plan"] = arguments.other_plan
            session.load_state_dict(state)

    losses: list[str] = []
    prefixes: list[int] = []
    deadline = time.monotonic() + 180
    steps = arguments.steps - (arguments.uneven if rank == 1 else 0)
    joining = contextlib.ExitStack()
    if arguments.uneven:
        joining.enter_context(model.join())
    while step < steps or (arguments.until and goes_on(arguments.until, session, deadline)):
        step += 1
        if step == arguments.come_apart and rank == 1:
            network.head.weight.data.mul_(1.001)
        model.train()
        data = torch.Generator().manual_seed(step * 100 + rank)
        total = torch.zeros(())
        for micro in range(arguments.accumulate):
            images = torch.randn(arguments.batch_size, 1, 8, 8, generator=data)
            labels = (images.mean(dim=(1, 2, 3)) * 20).long().clamp(-2, 1) + 2
            waits = micro < arguments.accumulate - 1 and isinstance(model, DistributedDataParallel)
            with model.no_sync() if waits else contextlib.nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
                    loss = F.cross_entropy(model(images).float(), labels) / arguments.accumulate
                scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        if session is not None and arguments.early and not silent:
            session.step(total)
        switches = session.switches if arguments.unseen and arguments.unseen_on in (-1, rank) else []
        if switches and step >= switches[0].step + arguments.unseen:
            type(optimizer).step.__wrapped__(optimizer)  # without hooks, as an optimizer that is none of torch's
        else:
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
        if session is not None and not arguments.early and not silent:
            session.step(total)
        losses.append(float(total).hex())
        prefixes.append(session.prefix if session is not None else 0)
        time.sleep(arguments.pace)
        if step == arguments.pause_at:
            wait_here(arguments, rank)
        if step == arguments.save_at:
            torch.save(
                {
                    "model": network.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "step": step,
                    "random": torch.get_rng_state(),
                    "egeria": session.state_dict() if session is not None else None,
                },
                arguments.out / f"checkpoint.{rank}",
            )
        if step == arguments.steps - 1 and arguments.end == "raise":
            raise ValueError("the user's own")
        if step == arguments.steps - 1 and arguments.end == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
    joining.close()

    state = {name: whole(value).clone() for name, value in network.state_dict().items()}
    record = {
        "losses": losses,
        "prefixes": prefixes,
        "keys": sorted(network.state_dict()),
        "weights": {name: value.double().sum().item().hex() for name, value in state.items()},
        "passes": getattr(network, "passes", 0),
        "compiles": compiles(),
    }
    if session is not None:
        record["switches"] = [[s.step, s.frozen_prefix, s.unfreeze, s.ranks_identical] for s in session.switches]
        record["counters"] = session.counters()
        record["modules"] = [module.name for module in session.modules]
        record["summary"] = session.summary()
        if arguments.end != "forget":
            session.close()
    (arguments.out / f"rank{rank}.json").write_text(json.dumps(record), encoding="utf-8")
    if distributed:
        end_process_group()


def compiles() -> dict[str, int]:
    """Counts what dynamo has compiled, and how often it had to give up."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return {}
    counters = dynamo.utils.counters
    return {
        "frames": sum(counters["frames"].values()),
        "breaks": sum(counters["graph_break"].values()),
        "graphs": counters["stats"]["unique_graphs"],
    }


if __name__ == "__main__":
    main()
