"""These checks refuse, before the first step, what Egeria cannot do, and say what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from egeria.errors import EgeriaError
from egeria.freeze.replicas import Replicas, is_sharded
from egeria.model.lr_schedules import unwrapped
from egeria.model.modules import LayerModule
from egeria.model.wrappers import calls_module_itself

_USE_DDP = "use torch.nn.parallel.DistributedDataParallel or fully_shard() (FSDP2)"

# Packages whose wrappers and optimizers hold gradients or weights in buffers of their own.
_FOREIGN = {
    "deepspeed": "DeepSpeed",
    "fairscale": "FairScale",
    "apex": "Apex",
    "horovod": "Horovod",
    "colossalai": "Colossal-AI",
    "megatron": "Megatron",
    "bagua": "Bagua",
}


def check(
    model: nn.Module, optimizers: Sequence[Optimizer], modules: Sequence[LayerModule], replicas: Replicas
) -> None:
    """Refuses what freezing would break or break silently. `model` is as given to attach(), and so are `optimizers`.

    Raises:
      EgeriaError: by name of what is unsupported; the text says what to do.
    """
    check_wrappers(model, replicas)
    _check_modules(modules)
    check_cut(modules, replicas)
    for optimizer in optimizers:
        check_optimizer(optimizer)
    _check_ownership(optimizers, modules)


def check_wrappers(model: nn.Module, replicas: Replicas) -> None:
    """Refuses wrappers, before the model is cut into layer modules. Raises EgeriaError as check() does."""
    _check_wrappers(model, replicas)
    _check_ddp(replicas)


def check_cut(modules: Sequence[LayerModule], replicas: Replicas) -> None:
    """Refuses layers that cannot freeze where the cut puts them. Raises EgeriaError as check() does."""
    _check_layers(modules)
    _check_graphs(replicas.root, modules)


def _check_wrappers(model: nn.Module, replicas: Replicas) -> None:
    for layer in (model, replicas.root):
        package = _package(layer)
        if package in _FOREIGN:
            raise EgeriaError(
                "FOREIGN_WRAPPER",
                f"the model is wrapped by {_FOREIGN[package]}, which keeps "
                f"gradients or weights in buffers of its own; {_USE_DDP}",
            )
    for name, inner in model.named_modules():
        kinds = _names_of(type(inner))
        if "FullyShardedDataParallel" in kinds:
            raise EgeriaError(
                "FSDP1",
                f"{_named(name)} is wrapped by FullyShardedDataParallel, whose flat parameters mix layers; use "
                "fully_shard() (FSDP2), applied to each layer module and then to the model",
            )
        if "DataParallel" in kinds and not calls_module_itself(inner):
            raise EgeriaError(
                "DATA_PARALLEL",
                f"{_named(name)} is wrapped by DataParallel, whose copies do not freeze; use "
                "DistributedDataParallel with one process per device (torchrun), or one device",
            )
        if isinstance(inner, nn.parallel.DistributedDataParallel) and inner is not replicas.ddp:
            raise EgeriaError(
                "NESTED_DDP",
                f"'{name}' is a DistributedDataParallel inside the model; wrap the "
                "whole model in it, or attach to that part alone",
            )
        if isinstance(inner, torch.jit.ScriptModule):
            raise EgeriaError(
                "SCRIPTED_MODULE",
                f"{_named(name)} is a TorchScript module, whose mode and gradients are compiled in; train the Python "
                "module (with torch.compile, if it is to be fast)",
            )
    for name, parameter in replicas.root.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise EgeriaError(
                "LAZY_PARAMETER",
                f"the parameter '{name}' has no shape yet; run one batch through the model before attach()",
            )
        if hasattr(parameter, "device_mesh") and not _is_data_parallel(parameter, replicas):
            raise EgeriaError(
                "TENSOR_PARALLEL",
                f"the parameter '{name}' is split by parallelize_module(), so that each rank holds another part; train "
                "with data parallelism alone (DDP or FSDP2)",
            )


def _check_ddp(replicas: Replicas) -> None:
    ddp = replicas.ddp
    if ddp is None:
        return
    if getattr(ddp, "mixed_precision", None) is not None:
        raise EgeriaError(
            "DDP_MIXED_PRECISION",
            "DistributedDataParallel(mixed_precision=...) keeps second "
            "copies of the weights; leave it out and use torch.autocast",
        )
    if getattr(ddp, "_delay_all_reduce_params", None):
        raise EgeriaError(
            "DDP_DELAYED_PARAMETERS",
            "DistributedDataParallel(delay_all_reduce_named_params=...) "
            "gives gradients to frozen parameters; leave it out",
        )
    if getattr(ddp, "_use_python_reducer", False):
        raise EgeriaError(
            "DDP_PYTHON_REDUCER",
            "torch._dynamo.config.optimize_ddp = 'python_reducer' fixes "
            "the gradients that are averaged; set it to True before the model is wrapped",
        )


def _check_modules(modules: Sequence[LayerModule]) -> None:
    if not any(parameter.requires_grad for module in modules for _, parameter in module.parameters()):
        raise EgeriaError(
            "NOTHING_TRAINABLE",
            "no parameter requires a gradient; call requires_grad_(True) on the layers to train, before attach()",
        )
    if not any(parameter.requires_grad for _, parameter in modules[-1].parameters()):
        raise EgeriaError(
            "NOTHING_TRAINABLE",
            f"the last layer module '{modules[-1].name}' has no parameter that requires a gradient, so that nothing "
            "would train once the others are frozen; join it with the one before it with `modules`",
        )


def _check_layers(modules: Sequence[LayerModule]) -> None:
    """Layers that change their weights or buffers in a forward pass even in eval mode."""
    for module in modules[:-1]:
        for prefix, unit in zip(module.unit_names, module.units):
            for name, inner in unit.named_modules(prefix=prefix):
                kinds = _names_of(type(inner))
                if isinstance(inner, (nn.Embedding, nn.EmbeddingBag)) and inner.max_norm is not None:
                    raise EgeriaError(
                        "EMBEDDING_MAX_NORM",
                        f"'{name}' has max_norm, by which a forward pass changes weights, frozen or not; leave "
                        "max_norm out, or put the embedding into the last layer module with `modules`",
                    )
                if "FakeQuantizeBase" in kinds and bool(getattr(inner, "observer_enabled", True)):
                    raise EgeriaError(
                        "OBSERVER",
                        f"'{name}' observes ranges in every forward pass, frozen or "
                        "not; call model.apply(torch.ao.quantization.disable_observer) before "
                        "attach(), or prepare for quantization after this training",
                    )


def _check_graphs(model: nn.Module, modules: Sequence[LayerModule]) -> None:
    """Layers inside a module that make_graphed_callables() has captured: its graph trains them, whatever is frozen."""
    for name, outer in model.named_modules():
        forward = outer.__dict__.get("forward")
        if getattr(forward, "__module__", None) != "torch.cuda.graphs":
            continue
        inside = set(outer.modules()) - {outer}
        for module in modules[:-1]:
            if any(unit in inside for unit in module.units):
                raise EgeriaError(
                    "CUDA_GRAPH",
                    f"make_graphed_callables() has captured {repr(name) if name else 'the model'} with layer module "
                    f"'{module.name}' inside it, whose statistics the graph would move while it is frozen; capture "
                    "each layer module by itself",
                )


def check_optimizer(optimizer: object) -> None:
    """Refuses optimizers, and wrappers around them, that cannot be followed. Raises EgeriaError."""
    optimizer = unwrapped(optimizer, "optimizer")
    kinds = _names_of(type(optimizer))
    package = _package(optimizer)
    if "ZeroRedundancyOptimizer" in kinds:
        raise EgeriaError(
            "ZERO_OPTIMIZER",
            "ZeroRedundancyOptimizer shares parameters out among the ranks once and broadcasts all of them; use the "
            "optimizer itself, or fully_shard() (FSDP2) to save memory",
        )
    if package in _FOREIGN:
        raise EgeriaError(
            "FOREIGN_OPTIMIZER",
            f"the optimizer is {_FOREIGN[package]}'s {type(optimizer).__name__}, which keeps gradients or weights in "
            "buffers of its own; use one of torch.optim",
        )
    if "PostLocalSGDOptimizer" in kinds:
        raise EgeriaError(
            "LOCAL_SGD",
            "with PostLocalSGDOptimizer the ranks' weights differ between "
            "averagings, so that they cannot freeze the same; use the optimizer that it wraps",
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise EgeriaError(
            "LBFGS",
            "LBFGS moves parameters along past gradients, even if they have no gradient; use SGD, Adam or another "
            "optimizer that skips parameters without a gradient",
        )


def _check_ownership(optimizers: Sequence[Optimizer], modules: Sequence[LayerModule]) -> None:
    held = {id(parameter) for optimizer in optimizers for parameter in _parameters_of(optimizer)}
    wanted = [
        (name, parameter) for module in modules for name, parameter in module.parameters() if parameter.requires_grad
    ]
    for name, parameter in wanted:
        if hasattr(parameter, "_in_backward_optimizers"):
            raise EgeriaError(
                "OPTIMIZER_IN_BACKWARD",
                f"the parameter '{name}' is stepped inside the backward pass; step with optimizer.step() after it, "
                "which marks the end of a step for Egeria",
            )
    if wanted and all(id(parameter) not in held for _, parameter in wanted):
        raise EgeriaError(
            "MODEL_NOT_IN_OPTIMIZER",
            "the optimizer holds none of the model's parameters, or copies of them; make it after the model is in its "
            "final form (device, dtype, fully_shard) and from model.parameters(), and attach that very model",
        )


def _named(name: str) -> str:
    return f"'{name}'" if name else "the model"


def _parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_data_parallel(parameter: nn.Parameter, replicas: Replicas) -> bool:
    """True for a tensor that fully_shard() split: at most one mesh dimension shards, the others replicate."""
    shards = [placement for placement in parameter.placements if not placement.is_replicate()]
    return len(shards) <= 1 and is_sharded(replicas.root)


def _names_of(kind: type) -> set[str]:
    return {base.__name__ for base in kind.__mro__}


def _package(thing: object) -> str:
    """The package of _FOREIGN that the class of `thing` or a base of it comes from; "" for none."""
    packages = [base.__module__.partition(".")[0] for base in type(thing).__mro__]
    return next((package for package in packages if package in _FOREIGN), "")
