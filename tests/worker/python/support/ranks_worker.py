"""One rank of the tests in test_replicas.py. Run by torchrun: ranks_worker.py REPORT SCENARIO [SCENARIO ...].

Rank 0 writes what was observed into the file REPORT, as JSON: scenario to facts. The tests judge the facts.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import gc
import json
import math
import os
import random
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from layered_models import (
    Layered,
    Unused,
    WithTable,
    freeze_by_hand,
    gradients,
    largest_relative_error,
    layer_modules,
    relative_error_of_all,
)
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import egeria
from egeria.freeze.freezer import Freezer
from egeria.freeze.packed_tensors import PackedTensors
from egeria.freeze.reducer_rebuild import Rebuilt
from egeria.freeze.replicas import Replicas
from support.ending import end_process_group
from support.sharded import whole

SAMPLES = 8  # a micro-batch, all ranks together


@dataclasses.dataclass
class Setup:
    """How a model is trained while its layers are switched at random."""

    model: Callable[..., Layered] = Layered
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # the model's
    ddp: dict[str, Any] = dataclasses.field(default_factory=dict)
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    set_to_none: bool = True
    accumulation: int = 1
    clip: float | None = None
    autocast: bool = False
    overflows: bool = False  # now and then, so that the scaler skips the step
    compiled: str | None = None  # "inside" or "outside" of DistributedDataParallel
    backend: str = "aot_eager"
    halves: bool = False  # batch statistics are a rank's own: the single process has to go by the ranks' batches
    sharded: str | None = None  # fully_shard() for each of the "modules", or for the "blocks" and for the rest
    mesh: tuple[int, int] | None = None  # (copies, shards) of a sharded model
    late: bool = False  # the model is wrapped after attach()
    hook: Callable[[DistributedDataParallel], Any] | None = None
    toggles: int = 100
    steps_after: int = 2  # a switch; the second one runs on buckets in a new order
    prefixes: int | None = None  # only so many different ones
    compared: bool = True


def spread_over_ranks(tensors: list[Tensor]) -> bool:
    """True if all ranks have these very bits."""
    mine = torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors])
    all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_of_them, mine)
    return all(torch.equal(mine, other) for other in all_of_them)


def memory() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def live_tensors() -> int:
    """The fewest of some looks: threads of collectives may hold theirs for a moment."""
    found = []
    for _ in range(5):
        gc.collect()
        found.append(sum(issubclass(type(thing), Tensor) for thing in gc.get_objects()))
        time.sleep(0.05)
    return min(found)


def logged_options(ddp: DistributedDataParallel | None) -> dict[str, Any]:
    """The options that the reducer in force says of itself."""
    logged = ddp._get_ddp_logging_data() if ddp is not None else {}
    names = ("static_graph", "find_unused_parameters", "gradient_as_bucket_view", "bucket_cap_bytes")
    return {name: int(logged.get(name) or 0) for name in names}


class Training:
    """A data-parallel training loop with switches in the optimizer's post hook, as a session makes them."""

    def __init__(self, setup: Setup):
        self.setup = setup
        torch.manual_seed(0)
        self.model = setup.model(**setup.options)
        self.twin = copy.deepcopy(self.model)
        self.twin.reentrant = None
        self.modules = layer_modules(self.model)
        late = Replicas(self.model) if setup.late else None
        self.wrapped, self.ddp = self._wrap()
        self.replicas = late or Replicas(self.wrapped)
        if late:
            self.model.register_forward_pre_hook(lambda *_: None if late.discover() else None)
        self.replicas.allow_recompiles(len(self.modules))
        self.hook_state = setup.hook(self.ddp) if setup.hook else None
        self.optimizer = setup.optimizer(self.model.parameters(), lr=1e-2)
        self.scaler = torch.amp.GradScaler("cpu", enabled=setup.autocast, init_scale=256.0, growth_interval=20)
        self.freezer = Freezer(self.modules, [self.optimizer])
        self.optimizer.register_step_post_hook(self._after_step)
        self.next_prefix: int | None = None
        self.data = torch.Generator().manual_seed(5)
        self.reducers: list[weakref.ref] = []
        self.attempts = self.steps = self.skipped = 0
        self.error = self.error_of_all = 0.0
        self.claims_order = False  # a new reducer, to have its buckets in the order of a backward pass

    def _wrap(self) -> tuple[nn.Module, DistributedDataParallel | None]:
        setup, model = self.setup, self.model
        if setup.sharded:
            mesh = init_device_mesh(
                "cpu",
                setup.mesh or (dist.get_world_size(),),
                mesh_dim_names=("copies", "shards") if setup.mesh else None,
            )
            for module in self.modules:
                if setup.sharded == "modules" or module.name.startswith("blocks"):
                    fully_shard(module.units[0], mesh=mesh)
            return fully_shard(model, mesh=mesh), None
        inner = torch.compile(model, backend=setup.backend) if setup.compiled == "inside" else model
        ddp = DistributedDataParallel(inner, **{"bucket_cap_mb": 0.008, **setup.ddp})
        return (torch.compile(ddp, backend=setup.backend) if setup.compiled == "outside" else ddp), ddp

    def _after_step(self, *_: Any) -> None:
        self.steps += 1
        if self.next_prefix is None:
            return
        self.replicas.pack_buffers(self.modules[: self.next_prefix]).share()
        self.freezer.apply(self.next_prefix)
        self.replicas.rebuild().keep()
        if self.ddp is not None:
            self.reducers.append(weakref.ref(self.ddp.reducer))
            self.claims_order |= self.ddp._has_rebuilt_buckets
        self.next_prefix = None

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        count = self.setup.accumulation
        return [
            (torch.randn(SAMPLES, 8, generator=self.data), torch.randint(4, (SAMPLES,), generator=self.data))
            for _ in range(count)
        ]

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.setup.autocast):
            loss = nn.functional.cross_entropy(model(inputs).float(), targets)
        return loss / self.setup.accumulation

    @contextlib.contextmanager
    def without_sync(self, on: bool) -> Iterator[None]:
        if self.ddp is None:
            self.model.set_requires_gradient_sync(not on)
            yield
        else:
            with self.ddp.no_sync() if on else contextlib.nullcontext():
                yield

    def step(self, switch_to: int | None = None) -> None:
        """One optimizer step; the switch, if any, comes at its end."""
        setup = self.setup
        batches = self.batches()
        wanted = self.reference(batches) if setup.compared and switch_to is None else None
        self.attempts += 1
        overflow = setup.overflows and self.attempts % 10 == 0
        self.optimizer.zero_grad(set_to_none=setup.set_to_none)
        share = SAMPLES // dist.get_world_size()
        mine = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
        for index, (inputs, targets) in enumerate(batches):
            with self.without_sync(index < len(batches) - 1):
                loss = self.loss(self.wrapped, inputs[mine], targets[mine])
                self.scaler.scale(loss * math.inf if overflow else loss).backward()
        self.scaler.unscale_(self.optimizer)
        if wanted is not None and not overflow:
            got = gradients(self.model)
            self.error = max(self.error, largest_relative_error(got, wanted))
            self.error_of_all = max(self.error_of_all, relative_error_of_all(got, wanted))
        if setup.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), setup.clip)
        self.next_prefix = switch_to
        before = self.steps
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.skipped += self.steps == before
        if overflow:  # the switch waits for a step that is one
            self.step(switch_to)

    def reference(self, batches: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Gradients of the full batch on one process, by a model that is frozen by hand."""
        self.twin.load_state_dict({name: whole(value) for name, value in self.model.state_dict().items()})
        freeze_by_hand(layer_modules(self.twin), self.freezer.prefix)
        self.twin.zero_grad()
        for inputs, targets in batches:
            if self.setup.halves:
                parts = dist.get_world_size()
                for x, y in zip(inputs.chunk(parts), targets.chunk(parts)):
                    (self.loss(self.twin, x, y) / parts).backward()
            else:
                self.loss(self.twin, inputs, targets).backward()
        return gradients(self.twin)

    def identical(self) -> bool:
        frozen = self.modules[: self.freezer.prefix]
        by_hash = self.replicas.identical_on_all_ranks(frozen)
        parameters = [whole(parameter) for parameter in self.model.parameters()]
        return by_hash and spread_over_ranks(parameters + [b for module in frozen for _, b in module.buffers()])

    def frozen_tensors(self) -> list[Tensor]:
        modules = self.modules[: self.freezer.prefix]
        return [
            (t.to_local() if hasattr(t, "to_local") else t).detach().clone()
            for module in modules
            for _, t in (*module.parameters(), *module.buffers())
        ]

    def at_rest(self) -> tuple[int, int]:
        """(tensors, bytes) of the process with nothing frozen and no gradients."""
        self.step(switch_to=0)
        self.step()
        self.optimizer.zero_grad()
        return live_tensors(), memory()


def toggle(setup: Setup) -> dict[str, Any]:
    """Switches at random, and looks at the ranks after each switch and the steps that follow it."""
    training = Training(setup)
    rng = random.Random(1)
    choices = list(range(len(training.modules)))
    if setup.prefixes is not None:
        choices = rng.sample(choices, setup.prefixes)
    for number in range(2):  # optimizer state and buckets come into being
        training.step()
    facts: dict[str, Any] = {"toggles": 0, "identical": 0, "constant": 0}
    tensors = memory_then = 0
    for number in range(setup.toggles):
        if number == setup.toggles // 2:  # compiled code is there by then
            tensors, memory_then = training.at_rest()
        training.step(switch_to=rng.choice(choices))
        frozen = training.frozen_tensors()
        for _ in range(setup.steps_after):
            training.step()
        facts["toggles"] += 1
        facts["identical"] += training.identical()
        facts["constant"] += all(torch.equal(a, b) for a, b in zip(frozen, training.frozen_tensors()))
        del frozen
    tensors_now, memory_now = training.at_rest()
    facts |= {
        "error": training.error,
        "error_of_all": training.error_of_all,
        "steps": training.steps,
        "skipped": training.skipped,
        "kind": training.replicas.kind,
        "more_tensors": tensors_now - tensors,
        "more_bytes": memory_now - memory_then,
        "reducers_alive": sum(reducer() is not None for reducer in training.reducers),
        "reducers_made": len(training.reducers),
        "claims_order": training.claims_order,
        "logged": logged_options(training.ddp),
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
    }
    return facts


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {}


def scenario(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    SCENARIOS[function.__name__] = function
    return function


def register(name: str, **options: Any) -> None:
    SCENARIOS[name] = lambda: toggle(Setup(**options))


register("ddp")
register("wrapped_late", late=True, toggles=30)
register("batch_norm", options={"norm": nn.BatchNorm1d}, halves=True, toggles=30)
register(
    "accumulation_and_clipping",
    accumulation=3,
    clip=0.5,
    set_to_none=False,
    optimizer=lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, weight_decay=1e-3),
)
register("bf16_and_scaler", autocast=True, overflows=True)
register("static_graph", ddp={"static_graph": True})
register("find_unused", model=Unused, ddp={"find_unused_parameters": True})
register("bucket_view", ddp={"gradient_as_bucket_view": True}, set_to_none=False)
register("reentrant_checkpoints", options={"reentrant": True})
register("checkpoints", options={"reentrant": False})
register("static_graph_with_reentrant_checkpoints", options={"reentrant": True}, ddp={"static_graph": True}, toggles=30)
register(
    "all_at_once",
    options={"reentrant": False},
    accumulation=3,
    clip=0.5,
    autocast=True,
    set_to_none=False,
    ddp={"gradient_as_bucket_view": True},
    toggles=30,
)
register("sparse", model=WithTable, optimizer=lambda p, lr: torch.optim.SGD(p, lr), toggles=30)
# Compiled code is cut where buckets end, so that a block fills one.
register("compile_inside", compiled="inside", options={"blocks": 3, "width": 256}, ddp={"bucket_cap_mb": 1})
register("compile_outside", compiled="outside", options={"blocks": 3, "width": 256}, ddp={"bucket_cap_mb": 1})
register(
    "inductor_outside",
    compiled="outside",
    backend="inductor",
    options={"blocks": 1, "width": 256},
    ddp={"bucket_cap_mb": 1},
    toggles=10,
    prefixes=2,
)
register("fsdp2", sharded="modules", steps_after=1, options={"blocks": 2})
register("fsdp2_unit_across_cuts", sharded="blocks", accumulation=2, steps_after=1, toggles=30)
register(
    "many_toggles",
    toggles=400,
    steps_after=1,
    compared=False,
    options={"width": 128},
    ddp={"gradient_as_bucket_view": True},
)


def counting_hook(state, bucket):  # torch compares annotations, and does not understand deferred ones
    state["bytes"] += bucket.buffer().numel() * bucket.buffer().element_size()
    summed = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future()
    return summed.then(lambda future: future.value()[0])


def count_bytes(ddp: DistributedDataParallel) -> dict[str, int]:
    state = {"bytes": 0}
    ddp.register_comm_hook(state, counting_hook)
    return state


@scenario
def communication_hook() -> dict[str, Any]:
    """A hook of the user's is kept, and bytes fall exactly with the frozen share."""
    training = Training(Setup(hook=count_bytes))
    training.step()
    exact = []
    for prefix in (0, 3, 5, 2, 0):
        training.step(switch_to=prefix)
        before = training.hook_state["bytes"]
        training.step()
        exact.append(training.hook_state["bytes"] - before == training.replicas.gradient_bytes)
        active = sum(p.numel() * 4 for module in training.modules[prefix:] for _, p in module.parameters())
        exact.append(training.replicas.gradient_bytes == active)
    return {
        "exact": exact,
        "error": training.error,
        "hooks": len(training.ddp._comm_hooks),
        "logged": training.ddp._get_ddp_logging_data()["comm_hook"],
    }


@scenario
def builtin_hook() -> dict[str, Any]:
    """A hook that torch implements in C++ is nowhere but in the reducer."""
    kind = dist.BuiltinCommHookType.FP16_COMPRESS
    training = Training(Setup(hook=lambda ddp: ddp._register_builtin_comm_hook(kind)))
    for prefix in (0, 3, 1, 0):
        training.step(switch_to=prefix)
        training.step()
    return {"error": training.error, "logged": training.ddp._get_ddp_logging_data()["comm_hook"]}


@scenario
def power_sgd() -> dict[str, Any]:
    """PowerSGD keeps a memory per bucket; buckets change with every switch."""

    def register_hook(ddp: DistributedDataParallel) -> powerSGD_hook.PowerSGDState:
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return state

    # One bucket: gloo does not order what the hook's callbacks send for several.
    training = Training(Setup(hook=register_hook, ddp={"bucket_cap_mb": 25}, compared=False))
    identical, compressed = [], []
    for prefix in (0, 3, 5, 2, 0):
        training.step(switch_to=prefix)
        for _ in range(4):
            training.step()
        identical.append(training.identical())
        compressed.append(len(training.hook_state.p_memory_dict) > 0)
    training.freezer.apply(3)
    training.replicas.rebuild().undo()
    training.freezer.take_back(0)
    compressed.append(len(training.hook_state.p_memory_dict) > 0)
    training.step()
    identical.append(training.identical())
    return {"identical": identical, "compressed": compressed}


@scenario
def without_rebuild() -> dict[str, Any]:
    """Shows what the rebuild is for: an unfreeze without it."""
    training = Training(Setup(compared=False))
    training.step(switch_to=3)
    training.step()
    training.replicas.rebuild = lambda: Rebuilt()
    training.step(switch_to=0)
    training.step()
    training.step()
    return {"identical": training.identical()}


@scenario
def without_buffers_of_the_first_rank() -> dict[str, Any]:
    """Shows what pack_buffers() is for: running statistics freeze as each rank has them."""
    training = Training(Setup(options={"norm": nn.BatchNorm1d}, compared=False))
    training.replicas.pack_buffers = lambda modules: PackedTensors([], None)
    training.step()
    training.step(switch_to=3)
    frozen = training.modules[:3]
    return {
        "identical": training.replicas.identical_on_all_ranks(frozen),
        "parameters_identical": training.replicas.identical_on_all_ranks(),
    }


@scenario
def local_buffers() -> dict[str, Any]:
    """Ranks that keep their own running statistics still freeze the same ones."""
    training = Training(Setup(options={"norm": nn.BatchNorm1d}, ddp={"forward_sync_buffers": False}, compared=False))
    training.step()
    training.step(switch_to=3)
    training.step()
    active = [buffer for module in training.modules[3:] for _, buffer in module.buffers()]
    return {"frozen_identical": training.identical(), "active_identical": spread_over_ranks(active)}


@scenario
def wrapped_anew() -> dict[str, Any]:
    """The loop wraps the model again while layers are frozen, so that the new reducer does not know their gradients.
    One thaw comes before its first pass, and one after it."""
    training = Training(Setup())
    identical = []
    for steps in (0, 2):
        training.step(switch_to=3)
        training.step()
        training.wrapped, training.ddp = training._wrap()
        for _ in range(steps):
            training.step()
        training.freezer.apply(1 if steps == 0 else 0)
        training.replicas.rebuild().keep()
        for _ in range(3):
            training.step()
        identical.append(training.identical())
    return {"identical": identical, "error": training.error}


@scenario
def moved_on_one_rank() -> dict[str, Any]:
    """On rank 1 alone the optimizer moves what is frozen, once."""
    torch.manual_seed(0)
    model = Layered()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    session = egeria.attach(ddp, optimizer, config=egeria.Config(plans=[(4, 3), (17, 2)]))
    moves = dist.get_rank() == 1

    def move(*_: Any) -> None:
        if moves and session.state_dict()["step"] == 6:
            model.stem.weight.data.zero_()

    optimizer.register_step_pre_hook(move)
    prefixes = []
    for _ in range(20):
        optimizer.zero_grad()
        ddp(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        prefixes.append(session.prefix)
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, (prefixes, [switch.ranks_identical for switch in session.switches]))
    session.close(finished=False)
    return {"alike": seen[0] == seen[1], "prefixes": prefixes, "identical": seen[0][1]}


@scenario
def odd_types() -> dict[str, Any]:
    """Buffers of types that gloo does not send are compared, and made those of rank 0."""
    own = 1 + dist.get_rank()
    facts = {}
    for name, buffer in {
        "int16": torch.full((2, 3), own, dtype=torch.int16),
        "uint16": torch.full((3,), own, dtype=torch.uint16),
        "fp8": torch.full((2, 2), float(own)).to(torch.float8_e4m3fn),
        "int4": torch.full((3, 2), own, dtype=torch.uint8).t().view(torch.int4),
        "scalar": torch.tensor(own, dtype=torch.uint64),
        "complex": torch.full((2,), complex(own, 1)),
        "transposed": torch.full((3, 2), float(own)).t(),
    }.items():
        model = Layered()
        model.stem.register_buffer("table", buffer)
        replicas = Replicas(DistributedDataParallel(model, broadcast_buffers=False, init_sync=False))
        frozen = layer_modules(model)[:1]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.5)
        before = replicas.identical_on_all_ranks(frozen)
        own_way = replicas.identical_on_all_ranks(frozen, own_buffers=dist.get_rank() == 1)
        replicas.pack_buffers(frozen).share()
        facts[name] = [before, own_way, replicas.identical_on_all_ranks(frozen)]
    return facts


@scenario
def switched_before_the_first_step() -> dict[str, Any]:
    """A checkpoint of a frozen phase is loaded after the model was wrapped by somebody else."""
    training = Training(Setup(late=True))
    assert training.replicas.kind == "plain"
    training.freezer.apply(3)
    training.replicas.rebuild().keep()
    for _ in range(3):
        training.step()
    training.step(switch_to=1)
    training.step()
    return {"identical": training.identical(), "error": training.error, "kind": training.replicas.kind}


@scenario
def averaged_by_hand() -> dict[str, Any]:
    """A plain model whose loop averages the gradients that there are."""
    torch.manual_seed(0)
    model = Layered()
    replicas, modules = Replicas(model), layer_modules(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    freezer = Freezer(modules, [optimizer])
    data = torch.Generator().manual_seed(dist.get_rank())
    identical = []
    for prefix in (0, 2, 5, 1, 0):
        freezer.apply(prefix)
        replicas.rebuild().keep()
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=data)).square().mean().backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        optimizer.step()
        identical.append(replicas.identical_on_all_ranks())
    with torch.no_grad():
        model.head.bias.add_(dist.get_rank())
    return {
        "identical": identical,
        "kind": replicas.kind,
        "group_size": dist.get_world_size(replicas.process_group),
        "noticed": not replicas.identical_on_all_ranks(),
    }


@scenario
def copies_of_shards() -> dict[str, Any]:
    """FSDP2 with replicas: each rank has all shards of its copy."""
    training = Training(Setup(sharded="modules", mesh=(2, 1), options={"norm": nn.BatchNorm1d}, halves=True))
    identical = []
    for prefix in (0, 2, 5, 1, 0):
        training.step(switch_to=prefix)
        identical.append(training.identical())
        training.step()
    with torch.no_grad():
        training.model.head.bias.to_local().add_(dist.get_rank())
    return {"identical": identical, "error": training.error, "noticed": not training.replicas.identical_on_all_ranks()}


@scenario
def frozen_apart() -> dict[str, Any]:
    """Shards differ by nature, what is frozen must not."""
    training = Training(Setup(sharded="modules", compared=False))
    before = training.replicas.identical_on_all_ranks()
    training.freezer.apply(1 + dist.get_rank())
    return {"before": before, "after": training.replicas.identical_on_all_ranks()}


@scenario
def a_subgroup_trains() -> dict[str, Any]:
    """Two models, each trained by a group of its own ranks."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    torch.manual_seed(dist.get_rank())
    model = Layered(norm=nn.BatchNorm1d)
    ddp = DistributedDataParallel(model, process_group=groups[dist.get_rank()])
    replicas, modules = Replicas(ddp), layer_modules(model)
    freezer = Freezer(modules, [])
    weight = model.stem.weight.detach().clone()
    replicas.pack_buffers(modules[:2]).share()
    freezer.apply(2)
    replicas.rebuild().keep()
    ddp(torch.randn(4, 8)).sum().backward()
    return {
        "alone": replicas.process_group is None,
        "identical": replicas.identical_on_all_ranks(),
        "untouched": torch.equal(weight, model.stem.weight) and model.stem.weight.grad is None,
    }


def main() -> int:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    report: dict[str, Any] = {}
    failed = False
    for name in sys.argv[2:]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        try:
            report[name] = SCENARIOS[name]()
        except Exception:  # the other rank may wait for us now: no further scenario
            traceback.print_exc()
            report[name] = {"failed": traceback.format_exc()}
            failed = True
        if dist.get_rank() == 0:
            with open(sys.argv[1], "w", encoding="utf-8") as file:
                json.dump(report, file)
        if failed:
            return 1
    end_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
