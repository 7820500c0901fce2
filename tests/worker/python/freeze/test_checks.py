"""Whatever cannot be frozen is refused at attach, with what to do instead."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from layered_models import Layered, layer_modules
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import egeria
from egeria.errors import EgeriaError
from egeria.freeze.checks import check
from egeria.freeze.freezer import Freezer
from egeria.freeze.replicas import Replicas


@pytest.fixture
def process_group():
    """A training of one rank, which needs no network."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def refused(model, optimizers, modules) -> EgeriaError:
    if isinstance(optimizers, torch.optim.Optimizer):
        optimizers = [optimizers]
    with pytest.raises(EgeriaError) as caught:
        check(model, optimizers, modules, Replicas(model))
    return caught.value


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def expect(error: EgeriaError, name: str, *advice: str) -> None:
    assert error.name == name and str(error).startswith(f"[{name}] ")
    for text in advice:
        assert text in str(error)


def foreign(package: str, name: str, base: type) -> type:
    """A class that says to come from another package."""
    return type(name, (base,), {"__module__": f"{package}.runtime.engine"})


def test_what_is_supported_is_not_refused(process_group):
    model = Layered(norm=nn.BatchNorm1d)
    model.blocks[1].requires_grad_(False)  # stays as it is
    wrapped = torch.compile(DistributedDataParallel(model, static_graph=True), backend="eager")
    check(wrapped, [torch.optim.AdamW(model.parameters())], layer_modules(model), Replicas(wrapped))
    head = [p for p in model.head.parameters()]
    rest = [p for p in model.parameters() if not any(p is other for other in head)]
    check(model, [torch.optim.SGD(rest, 0.1), torch.optim.SGD(head, 0.1)], layer_modules(model), Replicas(model))


def test_fsdp1_is_refused(process_group):
    model = Layered()
    modules = layer_modules(model)
    model.blocks[0] = FullyShardedDataParallel(model.blocks[0], device_id=torch.device("cpu"))
    expect(refused(model, sgd(model), modules), "FSDP1", "'blocks.0'", "use fully_shard() (FSDP2)")


def test_a_wrapper_is_refused_before_the_model_is_cut(process_group):
    model = FullyShardedDataParallel(Layered(), device_id=torch.device("cpu"))
    with pytest.raises(EgeriaError, match=r"\[FSDP1\] the model is wrapped"):
        egeria.attach(model, sgd(model), config=egeria.Config(controller="none"))


def test_zero_is_refused(process_group):
    model = Layered()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    expect(refused(model, optimizer, layer_modules(model)), "ZERO_OPTIMIZER", "use the optimizer itself")


def test_local_sgd_is_refused():
    model = Layered()
    optimizer = PostLocalSGDOptimizer(sgd(model), averager=None)
    expect(refused(model, optimizer, layer_modules(model)), "LOCAL_SGD", "use the optimizer that it wraps")


def test_lbfgs_is_refused():
    model = Layered()
    expect(
        refused(model, torch.optim.LBFGS(model.parameters()), layer_modules(model)),
        "LBFGS",
        "use SGD, Adam or another optimizer",
    )


def test_lbfgs_would_move_frozen_weights():
    torch.manual_seed(0)
    model = Layered(blocks=1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    freezer = Freezer(layer_modules(model), [optimizer])
    x = torch.randn(4, 8)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    freezer.apply(1)
    weight = model.stem.weight.detach().clone()
    optimizer.step(closure)
    assert not torch.equal(weight, model.stem.weight)


@pytest.mark.parametrize("package", ["deepspeed", "apex", "horovod", "fairscale", "colossalai", "megatron", "bagua"])
def test_other_packages_wrappers_and_optimizers_are_refused(package):
    model = Layered()
    wrapped = foreign(package, "Engine", nn.Sequential)(model)
    expect(
        refused(wrapped, sgd(model), layer_modules(model)),
        "FOREIGN_WRAPPER",
        "DistributedDataParallel",
        "fully_shard()",
    )
    optimizer = foreign(package, "Optimizer", torch.optim.SGD)(model.parameters(), 0.1)
    expect(refused(model, optimizer, layer_modules(model)), "FOREIGN_OPTIMIZER", "use one of torch.optim")


def test_an_optimizer_is_looked_at_inside_its_wrapper():
    class Accelerated(torch.optim.Optimizer):
        def __init__(self, optimizer):  # pylint: disable=super-init-not-called
            self.optimizer = optimizer

        @property
        def param_groups(self):
            return self.optimizer.param_groups

    model = Layered()
    check(model, [Accelerated(sgd(model))], layer_modules(model), Replicas(model))
    inner = torch.optim.LBFGS(model.parameters())
    expect(refused(model, Accelerated(inner), layer_modules(model)), "LBFGS")


def test_data_parallel_is_refused_where_it_makes_copies():
    model = Layered()
    wrapped = nn.DataParallel(model)
    check(wrapped, [sgd(model)], layer_modules(model), Replicas(wrapped))
    wrapped.device_ids = [0, 1]
    expect(
        refused(wrapped, sgd(model), layer_modules(model)),
        "DATA_PARALLEL",
        "the model is wrapped",
        "use DistributedDataParallel",
        "torchrun",
    )


def test_a_ddp_inside_the_model_is_refused(process_group):
    model = Layered()
    modules = layer_modules(model)
    outer = nn.Sequential(DistributedDataParallel(model), nn.ReLU())
    expect(refused(outer, sgd(model), modules), "NESTED_DDP", "'0'", "wrap the whole model")


def test_a_scripted_layer_is_refused():
    model = Layered()
    modules = layer_modules(model)
    model.blocks[1].up = torch.jit.script(model.blocks[1].up)
    expect(refused(model, sgd(model), modules), "SCRIPTED_MODULE", "'blocks.1.up'", "train the Python module")


def test_tensor_parallelism_is_refused(process_group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = Layered()
    mesh = init_device_mesh("cpu", (1,))
    parallelize_module(model, mesh, {"blocks.0.up": ColwiseParallel()})
    expect(
        refused(model, sgd(model), layer_modules(model)),
        "TENSOR_PARALLEL",
        "'blocks.0.up.weight'",
        "train with data parallelism alone",
    )


def test_options_of_ddp_that_fix_its_gradients_are_refused(process_group):
    model = Layered()
    named = [("stem.weight", model.stem.weight)]
    delayed = DistributedDataParallel(
        model, delay_all_reduce_named_params=named, param_to_hook_all_reduce=model.head.weight
    )
    expect(refused(delayed, sgd(model), layer_modules(model)), "DDP_DELAYED_PARAMETERS", "leave it out")

    other = DistributedDataParallel(Layered())
    other.mixed_precision = object()  # as on an accelerator, where it can be given
    expect(refused(other, sgd(other), layer_modules(other.module)), "DDP_MIXED_PRECISION", "use torch.autocast")

    before = torch._dynamo.config.optimize_ddp
    torch._dynamo.config.optimize_ddp = "python_reducer"
    try:
        python = DistributedDataParallel(Layered())
    finally:
        torch._dynamo.config.optimize_ddp = before
    expect(refused(python, sgd(python), layer_modules(python.module)), "DDP_PYTHON_REDUCER", "set it to True")


def test_a_last_module_with_nothing_to_train_is_refused():
    model = Layered()
    model.head.requires_grad_(False)
    expect(
        refused(model, sgd(model), layer_modules(model)),
        "NOTHING_TRAINABLE",
        "'head'",
        "join it with the one before it",
    )


def test_a_parameter_without_a_shape_is_refused():
    model = Layered()
    model.blocks[0].up = nn.LazyLinear(32)
    expect(refused(model, sgd(model), layer_modules(model)), "LAZY_PARAMETER", "'blocks.0.up.weight'", "run one batch")


def test_an_embedding_that_renormalizes_itself_is_refused_unless_it_never_freezes():
    model = Layered()
    model.blocks[0].table = nn.Embedding(4, 4, max_norm=1.0)
    model.blocks[0].table.requires_grad_(False)
    expect(
        refused(model, sgd(model), layer_modules(model)),
        "EMBEDDING_MAX_NORM",
        "'blocks.0.table'",
        "leave max_norm out",
        "last layer module",
    )
    other = Layered()
    other.head.table = nn.Embedding(4, 4, max_norm=1.0)
    check(other, [sgd(other)], layer_modules(other), Replicas(other))


def test_a_layer_that_observes_ranges_is_refused_until_its_observer_is_off():
    from torch.ao.quantization import FakeQuantize, disable_observer

    model = Layered()
    model.blocks[0].fake = FakeQuantize()
    expect(
        refused(model, sgd(model), layer_modules(model)),
        "OBSERVER",
        "'blocks.0.fake'",
        "model.apply(torch.ao.quantization.disable_observer)",
    )
    model.apply(disable_observer)
    check(model, [sgd(model)], layer_modules(model), Replicas(model))


def test_an_optimizer_of_another_model_is_refused():
    model = Layered()
    optimizer = sgd(copy.deepcopy(model))
    expect(
        refused(model, optimizer, layer_modules(model)),
        "MODEL_NOT_IN_OPTIMIZER",
        "from model.parameters()",
        "attach that very model",
    )
    expect(refused(model, [], layer_modules(model)), "MODEL_NOT_IN_OPTIMIZER")


def test_an_optimizer_built_from_a_filter_is_taken():
    model = Layered()
    model.stem.requires_grad_(False)
    optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), 0.1)
    for asks in (False, True):  # without an optimizer it trains neither way
        model.stem.requires_grad_(asks)
        check(model, [optimizer], layer_modules(model), Replicas(model))


def test_layers_inside_a_module_that_a_cuda_graph_holds_are_refused():
    model = Layered()

    def forward(x: torch.Tensor) -> torch.Tensor:
        return type(model).forward(model, x)

    forward.__module__ = "torch.cuda.graphs"  # as that of make_graphed_callables() is
    model.forward = forward
    expect(
        refused(model, sgd(model), layer_modules(model)),
        "CUDA_GRAPH",
        "the model with layer module 'stem' inside",
        "capture each layer module by itself",
    )
    del model.forward
    model.stem.forward = forward
    check(model, [sgd(model)], layer_modules(model), Replicas(model))


def test_an_optimizer_inside_the_backward_pass_is_refused():
    from torch.distributed.optim import _apply_optimizer_in_backward

    model = Layered()
    _apply_optimizer_in_backward(torch.optim.SGD, model.stem.parameters(), {"lr": 0.1})
    expect(
        refused(model, sgd(model), layer_modules(model)),
        "OPTIMIZER_IN_BACKWARD",
        "'stem.weight'",
        "step with optimizer.step()",
    )


def test_a_rebuild_with_nothing_to_train_says_what_to_do(process_group):
    model = Layered()
    replicas = Replicas(DistributedDataParallel(model))
    model.requires_grad_(False)
    with pytest.raises(EgeriaError, match=r"^\[NOTHING_TRAINABLE\] .* `modules`"):
        replicas.rebuild()


def test_an_error_survives_a_pickle():
    error = pickle.loads(pickle.dumps(EgeriaError("BAD_PARTITION", "what; what to do")))
    assert error.name == "BAD_PARTITION" and str(error) == "[BAD_PARTITION] what; what to do"
