"""Each refusal of attach() goes away by what docs/reference/refusals.md says to do, and then layers freeze.

A case is called twice: as it is refused, and with the advice `followed`.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from layered_models import Layered
from torch import nn
from torch.ao.quantization import FakeQuantize, disable_observer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer, _apply_optimizer_in_backward
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import egeria
from egeria.training import session as session_module

PAGE = (pathlib.Path(__file__).parents[4] / "docs" / "reference" / "refusals.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def a_training_of_one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    for session in list(session_module._open.values()):
        session.close(finished=False)
    dist.destroy_process_group()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def train(model: nn.Module, optimizer: Any = None, **more: Any) -> None:
    """Attaches, trains, and expects that the first layer module has frozen."""
    optimizer = sgd(model) if optimizer is None else optimizer
    more.setdefault("config", egeria.Config(plans=[(2, 1)], controller="none"))
    session = egeria.attach(model, optimizer, **more)
    for _ in range(4):
        session.step(loss := model(torch.randn(4, 8)).square().mean())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert session.prefix == 1


def foreign(name: str, base: type) -> type:
    return type(name, (base,), {"__module__": "deepspeed.runtime.engine"})


def fsdp1(followed: bool) -> None:
    model = Layered()
    if not followed:
        train(FullyShardedDataParallel(model, device_id=torch.device("cpu")))
    for part in (model.stem, *model.blocks, model):
        fully_shard(part, mesh=init_device_mesh("cpu", (1,)))
    train(model)


def data_parallel(followed: bool | str) -> None:
    model = nn.DataParallel(Layered()) if followed is not True else DistributedDataParallel(Layered())
    if not followed:
        model.device_ids = [0, 1]  # as with two of them
    train(model)


def nested_ddp(followed: bool) -> None:
    train(DistributedDataParallel(nn.Sequential(Layered(), nn.Linear(4, 4))) if followed else nested())


def nested() -> nn.Module:
    return nn.Sequential(DistributedDataParallel(Layered()), nn.Linear(4, 4))


def foreign_wrapper(followed: bool) -> None:
    train(DistributedDataParallel(Layered()) if followed else foreign("Engine", nn.Sequential)(Layered()))


def foreign_optimizer(followed: bool) -> None:
    model = Layered()
    kind = torch.optim.SGD if followed else foreign("FusedSGD", torch.optim.SGD)
    train(model, kind(model.parameters(), 0.1))


def tensor_parallel(followed: bool) -> None:
    model = Layered()
    if not followed:
        parallelize_module(model, init_device_mesh("cpu", (1,)), {"blocks.0.up": ColwiseParallel()})
    train(DistributedDataParallel(model) if followed else model)


def ddp_mixed_precision(followed: bool) -> None:
    model = DistributedDataParallel(Layered())
    if not followed:
        model.mixed_precision = object()  # as on an accelerator, where it can be given
    with torch.autocast("cpu", torch.bfloat16):
        train(model)


def ddp_delayed_parameters(followed: bool) -> None:
    model = Layered()
    delayed = {"delay_all_reduce_named_params": [("stem.weight", model.stem.weight)]}
    options = {} if followed else {**delayed, "param_to_hook_all_reduce": model.head.weight}
    train(DistributedDataParallel(model, **options))


def ddp_python_reducer(followed: bool) -> None:
    before = torch._dynamo.config.optimize_ddp
    torch._dynamo.config.optimize_ddp = True if followed else "python_reducer"
    try:
        model = DistributedDataParallel(Layered())
    finally:
        torch._dynamo.config.optimize_ddp = before
    train(model)


def embedding_max_norm(followed: bool | str) -> None:
    model = Words(None if followed is True else 1.0)
    train(model, modules=["first", "second", ["table", "last"]] if followed == "last" else None)


class Words(nn.Module):
    def __init__(self, max_norm: float | None):
        super().__init__()
        self.table = nn.Embedding(9, 8, max_norm=max_norm)
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(self.first(self.table(x.sum(1).abs().long() % 9))))


def observer(followed: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), FakeQuantize(), nn.Linear(8, 8), nn.Linear(8, 8))
    if followed:
        model.apply(disable_observer)
    train(model)


def scripted_module(followed: bool) -> None:
    model = Layered()
    if not followed:
        model.blocks[1].up = torch.jit.script(model.blocks[1].up)
    train(model)


def cuda_graph(followed: bool) -> None:
    model = Layered()
    target = model.stem if followed else model

    def forward(x: torch.Tensor) -> torch.Tensor:
        return type(target).forward(target, x)

    forward.__module__ = "torch.cuda.graphs"  # as that of make_graphed_callables() is
    target.forward = forward
    train(model)


def lazy_parameter(followed: bool) -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 8), nn.Linear(8, 8))
    if followed:
        model(torch.randn(4, 8))
    train(model)


def nothing_trainable(followed: bool) -> None:
    model = Layered()
    model.requires_grad_(followed)
    train(model)


def bad_partition(followed: bool) -> None:
    model = Layered()
    rest = [*model.blocks, model.head]
    train(model, modules=[model.stem, *rest] if followed else rest)


def model_not_in_optimizer(followed: bool) -> None:
    model = Layered()
    train(model, sgd(model if followed else Layered()))


def optimizer_in_backward(followed: bool) -> None:
    model = Layered()
    if not followed:
        _apply_optimizer_in_backward(torch.optim.SGD, model.stem.parameters(), {"lr": 0.1})
    train(model)


def lbfgs(followed: bool) -> None:
    model = Layered()
    train(model, torch.optim.Adam(model.parameters()) if followed else torch.optim.LBFGS(model.parameters()))


def local_sgd(followed: bool) -> None:
    model = Layered()
    train(model, sgd(model) if followed else PostLocalSGDOptimizer(sgd(model), averager=None))


def zero_optimizer(followed: bool) -> None:
    model = Layered()
    train(model, sgd(model) if followed else ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1))


def bad_model(followed: bool) -> None:
    model = Layered()
    if not followed:
        egeria.attach(model.forward, sgd(model))
    train(model)


def bad_optimizer(followed: bool) -> None:
    model = Layered()
    train(model, sgd(model) if followed else list(model.parameters()))


def bad_config(followed: bool) -> None:
    train(Layered(), config=egeria.Config(plans=[(2, 1 if followed else 99)], controller="none"))


def checkpoint_mismatch(followed: bool) -> None:
    model = Layered()
    state = egeria.attach(model, sgd(model), config=egeria.Config(controller="none")).state_dict()
    other = Layered() if followed else nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    session = egeria.attach(other, sgd(other), config=egeria.Config(controller="none"))
    session.load_state_dict(state)


def load_too_late(followed: bool) -> None:
    model = Layered()
    optimizer = sgd(model)
    session = egeria.attach(model, optimizer, config=egeria.Config(controller="none"))
    if not followed:
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()
    session.load_state_dict(session.state_dict())


CASES: dict[str, Callable[[Any], None]] = {
    case.__name__.upper(): case
    for case in (
        *(fsdp1, data_parallel, nested_ddp, foreign_wrapper, tensor_parallel, scripted_module, cuda_graph),
        *(ddp_mixed_precision, ddp_delayed_parameters, ddp_python_reducer),
        *(nothing_trainable, bad_partition, embedding_max_norm, observer, lazy_parameter),
        *(model_not_in_optimizer, optimizer_in_backward, lbfgs, local_sgd),
        *(zero_optimizer, foreign_optimizer, bad_model, bad_optimizer, bad_config, checkpoint_mismatch, load_too_late),
    )
}
OTHER_WAYS = {"DATA_PARALLEL": "one device", "EMBEDDING_MAX_NORM": "last"}


@pytest.mark.parametrize("name", CASES)
def test_what_a_refusal_advises_helps(name: str):
    with pytest.raises(egeria.EgeriaError) as refused:
        CASES[name](False)
    assert refused.value.name == name and f"| `{name}` |" in PAGE
    CASES[name](True)
    if name in OTHER_WAYS:
        CASES[name](OTHER_WAYS[name])


def test_all_refusals_of_attach_are_tried():
    section = PAGE.split("## Refused by attach()")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(CASES)
