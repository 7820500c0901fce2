"""This file examines what Egeria would make of a model.

Shows how the model is cut into layer modules, where each one's reference model would run, what a step costs with
frozen layers on this machine, and what attach() would refuse. Works on a copy; trains nothing, sends nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from egeria import _native
from egeria.doctor.report import CONTROLLER, UNKNOWN, WORKER, BackendReport, Loading, ModuleReport, Report, Saving
from egeria.doctor.step_costs import calls_in, measure, step_seconds
from egeria.errors import EgeriaError
from egeria.freeze.checks import check, check_wrappers
from egeria.freeze.replicas import Replicas
from egeria.model.inputs import GraphError, RootInputs
from egeria.model.modules import LayerModule, ModuleSpec, embedding_prefix, from_unit_names, partition
from egeria.model.wrappers import unwrap
from egeria.reference.graph import ExportedModel, export_model
from egeria.reference.probing import record_calls

LossFunction = Callable[[nn.Module, Any], Tensor]

_LOADED_BATCHES = 8


def examine(
    model: nn.Module,
    batch: Any = None,
    loss_fn: LossFunction | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    loader: Iterable[Any] | None = None,
    *,
    modules: ModuleSpec = None,
    rounds: int = 7,
    samples: int = 32,
) -> Report:
    """Reports on a model; also reachable as egeria.doctor(...).

    Args:
      model: plain or wrapped. It is copied; the original is not touched.
      batch: an example batch of the size used in training, where the model is: a tensor, called as model(batch); a
        sequence, model(*batch); a mapping, model(**batch). Without it nothing is exported or measured.
      loss_fn: (model, batch) -> scalar loss, where the call or the loss is another one; `batch` may then be anything.
        Default: what the model returns as `loss`, else the mean square of its outputs.
      optimizer: that of the training. Without it, it is not checked.
      loader: of the training's batches. Some are loaded, to see how long that takes, and how many samples there are.
      modules: as for attach().
      rounds: of the measurement, which takes each frozen prefix once a round.
      samples: of a reading (Config.batch_size).

    Raises:
      EgeriaError: [BAD_BATCH] the model fails on the batch.
    """
    root = unwrap(model)
    total = sum(parameter.numel() for parameter in root.parameters())
    findings = _Findings()
    try:
        check_wrappers(model, Replicas(model))
        findings.modules = partition(root, modules)
        if batch is None:
            findings.notes.append("no example batch: what exports and what a step costs is not known")
        else:
            random_state = torch.get_rng_state()
            try:
                _try_out(root, batch, loss_fn, loader, modules, rounds, samples, findings)
            finally:
                torch.set_rng_state(random_state)
        findings.refusal = _refusal(model, optimizer, findings)
    except EgeriaError as error:
        if error.name == "BAD_BATCH":
            raise
        findings.refusal = str(error)
    return Report(
        type(root).__name__,
        total,
        _describe(findings, total),
        findings.savings,
        findings.refusal,
        tuple(findings.notes),
        embedding_prefix(findings.modules),
        findings.loading,
    )


@dataclasses.dataclass
class _Findings:
    modules: list[LayerModule] = dataclasses.field(default_factory=list)
    reasons: list[str | None] | None = None  # for each layer module why it has no graph; None: not known
    backends: dict[int, tuple[BackendReport, ...]] = dataclasses.field(default_factory=dict)  # by layer module
    savings: tuple[Saving, ...] = ()
    loading: Loading | None = None
    refusal: str | None = None
    notes: list[str] = dataclasses.field(default_factory=list)


def _try_out(
    root: nn.Module,
    batch: Any,
    loss_fn: LossFunction | None,
    loader: Iterable[Any] | None,
    spec: ModuleSpec,
    rounds: int,
    samples: int,
    findings: _Findings,
) -> None:
    """Exports and measures a copy of the model."""
    try:
        twin = copy.deepcopy(root).train()
    except Exception as error:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
        findings.notes.append(
            f"the model cannot be copied ({type(error).__name__}: {error}): what exports and "
            "what a step costs is not known"
        )
        return
    loss_of = _loss_of(twin, batch, loss_fn)
    modules = _same_modules(findings.modules, twin)
    try:
        inputs = _inputs_of(twin, loss_of, samples)
    except GraphError as error:
        findings.notes.append(f"no reading can be taken: {error}")
    else:
        try:
            calls = record_calls(twin, inputs)
        except Exception as error:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
            reason = f"in evaluation mode the model raises {type(error).__name__}: {error}"
            findings.reasons = [reason] * len(modules)
        else:
            if spec is None:  # then the order of the calls counts
                modules = partition(twin, None, calls)
                findings.modules = _same_modules(modules, root)
            _export(twin, modules, inputs, findings)
    findings.savings = measure(twin, modules, loss_of, rounds)
    if loader is not None:
        findings.loading = _loading(twin, loader, loss_of)
    findings.notes.append(
        "times are of this machine and one process; gradients that frozen layers do not send between ranks save more"
    )


def _same_modules(modules: Sequence[LayerModule], model: nn.Module) -> list[LayerModule]:
    """The layer modules of a copy."""
    return from_unit_names(model, [module.names() for module in modules])


def _refusal(model: nn.Module, optimizer: Optimizer | Sequence[Optimizer] | None, findings: _Findings) -> str | None:
    """The error that attach() would raise, or None."""
    if optimizer is None:
        findings.notes.append("no optimizer: whether it holds all parameters is not checked")
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizers: list[Optimizer] = [torch.optim.SGD(trained or [torch.zeros(1)], lr=0.0)]
    else:
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    try:
        check(model, optimizers, findings.modules, Replicas(model))
    except EgeriaError as error:
        return str(error)
    return None


def _describe(findings: _Findings, total: int) -> tuple[ModuleReport, ...]:
    reports = []
    for index, module in enumerate(findings.modules):
        reason = findings.reasons[index] if findings.reasons else None
        place = UNKNOWN if findings.reasons is None else WORKER if reason else CONTROLLER
        count = module.parameter_count()
        share = count / max(1, total)
        backends = findings.backends.get(index, ())
        reports.append(ModuleReport(module.name, module.unit_names, count, share, place, reason, backends))
    return tuple(reports)


# Running the model.


def _loss_of(model: nn.Module, batch: Any, loss_fn: LossFunction | None) -> Callable[[], Tensor]:
    """The loss as a function of nothing. Raises EgeriaError [BAD_BATCH] where it cannot be computed."""

    def compute() -> Tensor:
        if loss_fn is not None:
            return loss_fn(model, batch)
        if isinstance(batch, Tensor):
            output = model(batch)
        elif isinstance(batch, Mapping):
            output = model(**batch)
        else:
            output = model(*batch)
        return _default_loss(output)

    try:
        loss = compute()
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise TypeError("the loss must be a tensor with one number that has a gradient")
        loss.backward()
    except Exception as error:  # whatever a model's code raises
        raise EgeriaError(
            "BAD_BATCH",
            f"the model fails on the example batch: {type(error).__name__}: {error}; "
            "give a batch as in training, on the model's device, and a loss_fn(model, batch) if the "
            "model is called in another way than model(batch), model(*batch) or model(**batch)",
        ) from error
    return compute


def _default_loss(output: Any) -> Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    leaves = torch.utils._pytree.tree_leaves(output)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not tensors:
        raise TypeError("the model returns no floating-point tensor; give a loss_fn(model, batch)")
    return torch.stack([tensor.float().pow(2).mean() for tensor in tensors]).sum()


def _inputs_of(model: nn.Module, loss_of: Callable[[], Tensor], samples: int) -> RootInputs:
    """The inputs that the model is called with while the loss is computed.

    Raises GraphError, with the reason, where no reading can be taken of it."""
    caught = calls_in(model, loss_of)
    if not caught:
        raise GraphError(
            "the loss function does not call the model itself; attach() needs the module that the training loop calls"
        )
    inputs = RootInputs(*caught[-1], samples)
    if inputs.samples < 2:
        raise GraphError("the example batch has one sample, and a reading compares at least two")
    return inputs


def _export(model: nn.Module, modules: Sequence[LayerModule], inputs: RootInputs, findings: _Findings) -> None:
    """For each layer module why the controller cannot run its reference, or what that would cost."""
    try:
        exported = export_model(model, modules, inputs)
    except GraphError as error:
        findings.reasons = [str(error)] * len(modules)
        return
    found = [exported.module(index) for index in range(len(modules))]
    findings.reasons = [module.error or _native.check_graph(module.graph_json) for module in found]
    for index, reason in enumerate(findings.reasons):
        if reason is None:
            findings.backends[index] = _backends(exported, index, exported.inputs_of(index, inputs))


def _backends(exported: ExportedModel, index: int, inputs: Sequence[Tensor]) -> tuple[BackendReport, ...]:
    """Measures the reference engine's backends on a sample of a layer module; the fastest first."""
    weights = [(name, value.detach().cpu()) for name, value in exported.weights(index).items()]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the controller's evaluator
    try:
        costs = _native.reference_costs(
            exported.module(index).graph_json, weights, [value.detach().cpu().contiguous() for value in inputs]
        )
    finally:
        torch.set_num_threads(threads)
    baseline = costs[-1][1]
    able = sorted((cost for cost in costs if not cost[3]), key=lambda cost: cost[1])
    return (
        *(BackendReport(name, seconds / baseline, noise) for name, seconds, noise, _ in able),
        *(BackendReport(name, None, None, refusal) for name, _, _, refusal in costs if refusal),
    )


def _loading(root: nn.Module, loader: Iterable[Any], loss_of: Callable[[], Tensor]) -> Loading:
    """Loads a few batches, and makes as many steps."""
    samples = getattr(loader, "dataset", None)
    count = len(samples) if hasattr(samples, "__len__") else None
    iterator, loads, steps = iter(loader), [], []
    for _ in range(_LOADED_BATCHES):
        begin = time.perf_counter()
        if next(iterator, None) is None:
            break
        loads.append(time.perf_counter() - begin)
        steps.append(step_seconds(loss_of, list(root.parameters())))
    for parameter in root.parameters():
        parameter.grad = None
    if not loads:
        raise EgeriaError("BAD_BATCH", "the loader gives no batch; give the one of the training, or none")
    return Loading(statistics.median(loads) / statistics.median(steps), count)
