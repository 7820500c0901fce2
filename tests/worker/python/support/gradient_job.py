"""Trains a model of gradient_models, alone or under torchrun, for tests of readings of gradients.

  gradient_job.py --out FOLDER [options]
Each rank writes FOLDER/rank<r>.json: final weights and random state, bit for bit, and the gradients that it knows.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import logging
import os
import pathlib
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gradient_models import MODULES, make_batch, make_model
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from support.ending import end_process_group
from support.sharded import whole


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--model", default="transformer", choices=MODULES)
    parser.add_argument(
        "--wrap", default="ddp", choices=["plain", "ddp", "later", "compile_ddp", "ddp_compile", "fsdp2", "manual"]
    )
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--sync-always", action="store_true", help="accumulate without no_sync()")
    parser.add_argument("--scale", action="store_true", help="with a GradScaler and autocast")
    parser.add_argument("--views", action="store_true", help="gradient_as_bucket_view")
    parser.add_argument("--static", action="store_true", help="static_graph")
    parser.add_argument("--comm-hook", default="", choices=["", "fp16", "powersgd"])
    parser.add_argument("--without", action="store_true", help="without a session")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--fixed-weights", action="store_true", help="a learning rate of zero")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--closure", action="store_true", help="passes in the closure of optimizer.step()")
    parser.add_argument("--optimizers", default="one", choices=["one", "first_steps_first", "first_steps_last"])
    parser.add_argument("--regularize", action="store_true", help="a loss that the model's output does not tell all of")
    return parser.parse_args()


def wrap(model: nn.Module, arguments: argparse.Namespace) -> nn.Module:
    how = arguments.wrap
    options = {"gradient_as_bucket_view": arguments.views, "static_graph": arguments.static}
    if how == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        return fully_shard(model)
    if how in ("plain", "manual") or not dist.is_initialized():
        return torch.compile(model, backend="aot_eager") if "compile" in how else model
    inner = torch.compile(model, backend="aot_eager") if how == "ddp_compile" else model
    ddp = DistributedDataParallel(inner, **options)
    if arguments.comm_hook == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif arguments.comm_hook == "powersgd":
        ddp.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    return torch.compile(ddp, backend="aot_eager") if how == "compile_ddp" else ddp


def egeria_address() -> str:
    return os.environ.get("EGERIA_CONTROLLER", "")


def digest(tensors: list[Tensor]) -> str:
    return hashlib.sha256(
        b"".join(bytes(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).tolist()) for tensor in tensors)
    ).hexdigest()


def note_offers() -> list[int]:
    """The steps of which readings will be offered to the line."""
    from egeria import _native

    steps: list[int] = []
    offer = _native.RankLink.offer_gradients

    def noting(link: Any, request: Any, step: int, *reading: Any) -> bool:
        taken = offer(link, request, step, *reading)
        steps.extend([step] if taken else [])
        return taken

    _native.RankLink.offer_gradients = noting
    return steps


def wait_until_sent(session: Any, readings: int, quiet: float = 30.0) -> None:
    """The end of a job does not wait for readings that are still queued; a test that counts them does. If there are
    fewer than expected, as where one is no number, until no more have come for a while."""
    sent, since = -1, time.monotonic()
    while sent < readings and time.monotonic() - since < quiet:
        counters = session.counters()
        now = counters.get("samples_sent", 0) + counters.get("samples_dropped", 0)
        if now != sent:
            sent, since = now, time.monotonic()
        time.sleep(0.02)


def main() -> None:
    arguments = parse_arguments()
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0
    world = dist.get_world_size() if distributed else 1
    network = make_model(arguments.model)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = arguments.dropout
    model = network if arguments.wrap == "later" else wrap(network, arguments)
    rate = 0.0 if arguments.fixed_weights else arguments.rate
    halves = [list(network.parameters())]
    if arguments.optimizers != "one":
        halves = [halves[0][: len(halves[0]) // 2], halves[0][len(halves[0]) // 2 :]]
    optimizers = [torch.optim.SGD(half, rate, momentum=0.9) for half in halves]
    optimizer = optimizers[0]
    others = optimizers[1:]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (2 * arguments.steps))
    session = None
    if not arguments.without:
        import egeria

        logging.basicConfig()
        logging.getLogger("egeria").setLevel(logging.INFO)
        config = egeria.Config.from_env(total_steps=arguments.steps)
        session = egeria.attach(model, optimizers, modules=MODULES[arguments.model], scheduler=scheduler, config=config)
    if arguments.wrap == "later":
        arguments.wrap = "ddp"
        model = wrap(network, arguments)
    scaler = torch.amp.GradScaler("cpu", enabled=arguments.scale, init_scale=256.0)
    offers = note_offers() if session is not None else []
    torch.manual_seed(1000 + rank)
    prefixes = []
    record: dict[str, list[list[float]]] = {"own": [], "mean": []}

    def passes(step: int) -> Tensor:
        for micro in range(arguments.accumulate):
            seed = (step * arguments.accumulate + micro) * world + rank
            inputs, labels = make_batch(arguments.model, arguments.batch_size, seed)
            waits = (
                micro < arguments.accumulate - 1
                and not arguments.sync_always
                and isinstance(model, DistributedDataParallel)
            )
            with model.no_sync() if waits else contextlib.nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled=arguments.scale):
                    loss = F.cross_entropy(model(inputs).float(), labels) / arguments.accumulate
                if arguments.regularize:
                    loss = loss + sum(parameter.square().sum() for parameter in network.parameters())
                scaler.scale(loss).backward()
        if arguments.wrap == "manual":
            record["own"].append([float(p.grad.square().sum()) for p in network.parameters()])
            for parameter in network.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        return loss

    for step in range(1, arguments.steps + 1):
        if arguments.closure:
            loss = optimizer.step(functools.partial(passes, step))
        else:
            loss = passes(step)
            for other in others if arguments.optimizers == "first_steps_last" else []:
                other.step()
            scaler.step(optimizer)
            for other in others if arguments.optimizers == "first_steps_first" else []:
                other.step()
        scaler.update()
        for each in optimizers:
            each.zero_grad()
        scheduler.step()
        if session is not None:
            session.step(loss)
        if session is not None and step == 2 and egeria_address():  # the line has just been started
            while not session.counters().get("connected"):
                time.sleep(0.01)
        prefixes.append(session.prefix if session is not None else 0)
    state = {name: whole(value) for name, value in network.state_dict().items()}
    result = {
        "prefixes": prefixes,
        "weights": digest(list(state.values())),
        "parameters": digest(
            [getattr(value, "to_local", lambda value=value: value)() for value in network.parameters()]
        ),
        "random": digest([torch.get_rng_state()]),
        "counters": session.counters() if session is not None else {},
        **record,
    }
    if session is not None:
        if egeria_address():
            # Ranks know of each other's readings two steps later.
            last = arguments.steps - (2 if world > 1 else 0)
            wait_until_sent(session, sum(step <= last for step in offers))
        session.close()
    (arguments.out / f"rank{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    if distributed:
        end_process_group()


if __name__ == "__main__":
    main()
