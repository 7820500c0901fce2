"""From a model and a batch to a line to the controller: analysis, agreement of the ranks, registration."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist
from torch import nn

from egeria import _native
from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.graph import ExportedModel, GraphError, RootInputs, ShapeMismatch, export_model
from egeria.isolation import device_of
from egeria.modules import LayerModule, ModuleSpec, embedding_prefix, has_parameters, partition
from egeria.probing import LocalReference, compared, record_calls
from egeria.replicas import is_fully_sharded
from egeria.states import Switch, saved_before
from egeria.step_shares import StepShares

_logger = logging.getLogger("egeria")
T = TypeVar("T")

# Between the generation of a restart by torchelastic and the next there is room for restarts of a link alone.
_GENERATIONS_PER_RESTART = 100
_MOST_RESTARTS = 20
# Samples of other sizes than the model was recorded with, before it is recorded anew.
_MOST_MISMATCHES = 4


@dataclasses.dataclass
class Subject:
    """What is to be linked. `modules` may come out in another order, where the model's structure gave them."""

    model: nn.Module  # unwrapped
    spec: ModuleSpec
    fixed: bool  # the layer modules are the user's, or a checkpoint's
    modules: list[LayerModule]
    config: Config
    job_id: str  # the same on all ranks
    total_steps: int | None
    planned_rates: list[float]
    mean_rate_before: float  # of the learning rate, over the steps before `step`; 0: unknown
    shares: StepShares
    losses_reported: bool
    step: int
    frozen_prefix: int
    switches: Sequence[Switch]
    applied_plan: int
    restarts: int


@dataclasses.dataclass
class _Analysis:
    modules: list[LayerModule]
    calls: list[nn.Module] | None
    exported: ExportedModel | None
    errors: list[str | None]  # why a layer module has no graph


def start_link(
    subject: Subject, group: dist.ProcessGroup | None, observed: Sequence[RootInputs], session: int
) -> Link | None:
    """Analyses the model and registers it with the controller. A collective of the ranks of `group`.

    Args:
      observed: inputs of the model in the last steps, the newest last.
      session: number of the session in this process.

    Returns:
      The link; None where some rank has not seen the model's inputs yet: to be tried again later.

    Raises:
      EgeriaError: [NO_LINK] on all ranks alike, if one of them could not be linked.
    """
    views = _gather(group, [_view_of(inputs) for inputs in observed])
    if not all(views):
        return None
    samples = min(view["batch"] for rank in views for view in rank)
    samples = min(samples, subject.config.probe_batch())
    dynamic = _varying(views)
    analysis = _attempt(group, lambda: _analyse(subject, observed[-1], samples, dynamic))
    found = _gather(
        group,
        {
            "modules": [
                (module.name, module.unit_names, [name for name, _ in module.loose]) for module in analysis.modules
            ],
            "errors": analysis.errors,
            "graphs": [_fingerprint(analysis.exported, index) for index in range(len(analysis.modules))],
            "losses": subject.losses_reported,
            "shares": subject.shares.of(analysis.modules),
            "generation": _generation(),
            "begins": (subject.step, subject.applied_plan, subject.frozen_prefix),
        },
    )
    if any(other["modules"] != found[0]["modules"] for other in found):
        raise EgeriaError("NO_LINK", "the ranks found different layer modules; give `modules` to attach()")
    if len(begins := sorted({other["begins"] for other in found})) > 1:
        told = ", ".join(
            f"step {step} with plan {plan} and {prefix} frozen layer modules" for step, plan, prefix in begins
        )
        raise EgeriaError("NO_LINK", f"the ranks do not begin alike: at {told}; resume all of them from the same state")
    subject.losses_reported = found[0]["losses"]  # the controller takes rank 0's
    # Measured, so that they differ a little.
    subject.shares.known = dict(zip((module.name for module in analysis.modules), found[0]["shares"]))
    errors = [_error_of(index, found) for index in range(len(analysis.modules))]
    link = _attempt(group, lambda: Link(subject, analysis, errors, samples, group, found[0]["generation"], session))
    return link


def _error_of(index: int, found: Sequence[dict[str, Any]]) -> str | None:
    """Why a layer module has no graph on some rank, or not the same one on all."""
    for rank in found:
        if rank["errors"][index]:
            return rank["errors"][index]
    same = len({rank["graphs"][index] for rank in found}) == 1
    return None if same else "the ranks recorded it differently"


class Link:
    """A rank's line to the controller, and what it takes to answer it. Owned by the training thread."""

    def __init__(
        self,
        subject: Subject,
        analysis: _Analysis,
        errors: Sequence[str | None],
        samples: int,
        group: dist.ProcessGroup | None,
        generation: int,
        session: int,
    ):
        config = subject.config
        self.modules = analysis.modules
        self.samples = samples
        self._group = group
        self._exported = analysis.exported
        self._model = subject.model
        self.sharded = _is_sharded(subject.model)
        self._shares = subject.shares.known
        self._errors = list(errors)
        reads = config.reads_plasticity()
        self._local = [error is not None and config.reference != "controller" and reads for error in errors]
        self._reference: LocalReference | None = None
        if any(self._local) and analysis.calls is not None:
            self._reference = LocalReference(subject.model, analysis.modules, analysis.calls)
        self._mismatches = 0
        self._told: set[str] = set()
        if reads:
            self._tell_local()
        rank = dist.get_rank(group) if group is not None else 0
        world = dist.get_world_size(group) if group is not None else 1
        modules = [self._describe(index) for index in range(len(self.modules))]
        shares = [module["step_share"] for module in modules]
        job = {
            "job_id": job_id_of(subject.job_id, session),
            "generation": generation + min(subject.restarts, _MOST_RESTARTS),
            "rank": rank,
            "world_size": world,
            "training_job": config.training_job
            or os.environ.get("EGERIA_TRAINING_JOB")
            or type(subject.model).__name__,
            "modules": modules,
            "policy_json": config.policy_json(samples),
            "total_steps": subject.total_steps or 0,
            "planned_learning_rates": subject.planned_rates,
            "observe": config.observe,
            "budget": config.budget or 0.0,
            "saved_before": saved_before(subject.step, subject.switches, shares, subject.total_steps),
            "mean_rate_before": subject.mean_rate_before,
            "embedding_prefix": embedding_prefix(self.modules),
            "losses_reported": subject.losses_reported,
            "step": subject.step,
            "frozen_prefix": subject.frozen_prefix,
            "applied_plan": subject.applied_plan,
        }
        self.native = _native.RankLink(
            job,
            config.address(),
            group.group_name if group is not None else None,
            str(device_of(subject.model)),
            [],
            _metrics_address(config.metrics),
        )

    def probe(self, request: Any, step: int, inputs: RootInputs | None) -> None:
        """Answers a sampling request. Of a sharded model a collective; else only the asked rank computes.

        Args:
          inputs: of the model in this step; None: this rank has none to give.
        """
        if not (request.asked or self.sharded):
            return
        able = inputs is not None and request.batch_size == self.samples and inputs.samples >= self.samples
        if self.sharded:  # weights are gathered from all ranks, or from none
            able = self.agree(able and self._reference is not None and self._reference.has(request.module))
        if inputs is None or not able:
            self._drop(
                request,
                ""
                if inputs is None or inputs.samples >= self.samples
                else f"a batch of {inputs.samples} samples gives no reading: {request.batch_size} are asked for",
            )
            return
        inputs = inputs.narrowed(self.samples)
        try:
            if self._local[request.module]:
                self._read(request, step, inputs)
            else:
                self._sample(request, step, inputs)
        except ShapeMismatch as mismatch:
            self._mismatches += 1
            self._drop(request, f"a sample is skipped: {mismatch}")
        except GraphError as error:
            self._drop(request, f"layer module '{self.modules[request.module].name}' cannot be probed: {error}")

    def _sample(self, request: Any, step: int, inputs: RootInputs) -> None:
        exported = self._exported
        wanted = range(request.first_module, request.module + 1)
        if exported is None or any(exported.module(index).error for index in wanted):
            self._drop(request, "")
            return
        tensors = exported.inputs_of(request.first_module, inputs)
        values = tensors
        for index in wanted:
            values = [exported.run(index, values)]
        names = exported.module(request.first_module).input_names
        self.native.offer_sample(request, step, list(zip(names, tensors)), compared(values[0], request.metric))

    def _read(self, request: Any, step: int, inputs: RootInputs) -> None:
        if self._reference is None or not self._reference.has(request.module):
            self._drop(request, "")
            return
        self.native.offer_reading(request, step, self._reference.reading(request.module, inputs, request.metric))

    def _drop(self, request: Any, reason: str) -> None:
        if request.asked:
            self.native.record_dropped_sample()
        if reason and reason not in self._told and len(self._told) < 8:
            self._told.add(reason)
            _logger.info("egeria: %s", reason)

    def answer_snapshot(self, step: int) -> None:
        """Answers a snapshot request, if there is one at this step."""
        request = self.native.snapshot_wanted(step)
        if request is None:
            return
        for index in range(request.first_module, request.module + 1):
            if self._local[index] and self._reference is not None:
                if request.asked or self.sharded:
                    self._reference.take(index)
                    self.native.offer_snapshot(request, index, step, [])
            elif request.asked and self._exported is not None and self._exported.module(index).error is None:
                self.native.offer_snapshot(request, index, step, list(self._exported.weights(index).items()))

    @property
    def outgrown(self) -> bool:
        """Whether the sizes of inputs vary in a way that the recording does not allow."""
        return self._mismatches > _MOST_MISMATCHES

    def agree(self, value: bool) -> bool:
        """True where every rank says so. A collective."""
        return (
            bool(
                _native.identical_on_all_ranks(
                    0 if value else 1 + self.rank, self._group.group_name if self._group is not None else None
                )
            )
            and value
        )

    @property
    def rank(self) -> int:
        return dist.get_rank(self._group) if self._group is not None else 0

    def _describe(self, index: int) -> dict[str, Any]:
        module = self.modules[index]
        error = self._errors[index]
        has_graph = error is None and self._exported is not None
        return {
            "name": module.name,
            "parameter_count": module.parameter_count(),
            "parameter_bytes": module.parameter_bytes(),
            "graph_json": self._exported.module(index).graph_json if has_graph else None,
            "graph_error": error,
            "local_reference": self._local[index],
            "step_share": self._shares.get(module.name, 0.0),
        }

    def _tell_local(self) -> None:
        reasons: dict[str, list[str]] = {}
        for module, error in zip(self.modules[:-1], self._errors):
            if error is not None:
                reasons.setdefault(error, []).append(module.name)
        for error, names in reasons.items():
            what = (
                "this process runs their reference itself"
                if any(self._local)
                else "they will not freeze (reference='controller')"
            )
            _logger.info("egeria: no graph of the layer modules %s: %s; %s", ", ".join(names), error, what)


def _analyse(subject: Subject, inputs: RootInputs, samples: int, dynamic: Sequence[tuple[int, int]]) -> _Analysis:
    if samples < 2:
        raise GraphError("a batch has one sample; a reading compares at least two")
    inputs = inputs.narrowed(samples)
    modules = subject.modules
    try:
        calls = record_calls(subject.model, inputs)
    except Exception as error:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
        _logger.debug("egeria: the model does not run in evaluation mode", exc_info=True)
        reason = f"in evaluation mode the model raises {type(error).__name__}: {str(error)[:200]}"
        return _Analysis(modules, None, None, [reason] * len(modules))
    if subject.fixed:
        _check_order(modules, calls)
    else:
        modules = partition(subject.model, subject.spec, calls)
    reason = None
    if not subject.config.reads_plasticity():
        reason = "the policy reads no plasticity"  # and what a recording takes can be saved
    elif subject.config.reference == "local":
        reason = "reference is 'local'"
    elif _is_sharded(subject.model):
        reason = "its parameters are sharded"
    exported = None
    if reason is None:
        try:
            exported = export_model(subject.model, modules, inputs, dynamic)
        except GraphError as error:
            reason = str(error)
    if exported is None:
        return _Analysis(modules, calls, None, [reason] * len(modules))
    modules = exported.modules
    errors = []
    for index in range(len(modules)):
        module = exported.module(index)
        errors.append(module.error or _native.check_graph(module.graph_json))
    return _Analysis(modules, calls, exported, errors)


def _check_order(modules: Sequence[LayerModule], calls: Sequence[nn.Module]) -> None:
    """Raises EgeriaError [BAD_PARTITION] unless the layers of each layer module are called before those of the
    next."""
    position: dict[int, int] = {}
    for index, call in enumerate(calls):
        position.setdefault(id(call), index)
    before, last = "", -1
    for module in modules:
        begins = [
            min(found)
            for unit in module.units
            if has_parameters(unit)
            and (found := [position[id(inner)] for inner in unit.modules() if id(inner) in position])
        ]
        if begins and min(begins) < last:
            raise EgeriaError(
                "BAD_PARTITION",
                f"a layer of '{module.name}' runs before one of '{before}'; list "
                "`modules` in forward order, each with consecutive layers",
            )
        if begins:
            before, last = module.name, max(begins)


def _is_sharded(model: nn.Module) -> bool:
    return any(is_fully_sharded(module) for module in model.modules())


def _view_of(inputs: RootInputs) -> dict[str, Any]:
    return {"batch": inputs.batch, "batched": inputs.batched, "shapes": inputs.shapes()}


def _varying(views: Sequence[Sequence[dict[str, Any]]]) -> list[tuple[int, int]]:
    """(tensor, dimension) of the sizes, other than the batch, that differ between steps or ranks."""
    all_views = [view for rank in views for view in rank]
    shapes = [view["shapes"] for view in all_views]
    if len({tuple(len(shape) for shape in other) for other in shapes}) > 1:
        return []  # called in several ways; those that are unlike the recorded one are passed over
    return [
        (tensor, dimension)
        for tensor, shape in enumerate(shapes[0])
        for dimension in range(len(shape))
        if len({other[tensor][dimension] for other in shapes}) > 1
        and not (dimension == 0 and all(view["batched"][tensor] for view in all_views))
    ]


def _fingerprint(exported: ExportedModel | None, index: int) -> str:
    text = exported.module(index).graph_json if exported is not None else None
    return hashlib.sha256((text or "").encode()).hexdigest()


def job_id_of(shared: str, session: int) -> str:
    """The first session of a process has the job's id; each further one is a job of its own. What is no UUID stays as
    it is, to be refused by whom it is told."""
    try:
        return shared if session == 0 else str(uuid.uuid5(uuid.UUID(shared), str(session)))
    except ValueError:
        return shared


def _generation() -> int:
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
    return int(os.environ.get("EGERIA_GENERATION") or 0) + _GENERATIONS_PER_RESTART * restarts


def _metrics_address(address: str | None) -> str | None:
    """Each rank of a node serves its own port: the given one plus the local rank; a port of 0 is any free one."""
    if address is None:
        return None
    host, _, port = address.rpartition(":")
    return address if int(port) == 0 else f"{host}:{int(port) + int(os.environ.get('LOCAL_RANK') or 0)}"


# Agreement.


def _gather(group: dist.ProcessGroup | None, value: T) -> list[T]:
    """Every rank's value, by rank."""
    if group is None:
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def _attempt(group: dist.ProcessGroup | None, action: Callable[[], T]) -> T:
    """Does `action` on every rank, and fails on all of them if it fails on one.

    Raises:
      EgeriaError: [NO_LINK], or the error's own name where it was one of ours.
    """
    result: T | None = None
    failure: tuple[str, str] | None = None
    try:
        result = action()
    except EgeriaError as error:
        failure = error.name, str(error).removeprefix(f"[{error.name}] ")
    except GraphError as error:
        failure = "NO_LINK", str(error)
    except Exception as error:  # pylint: disable=broad-exception-caught  # the other ranks wait for this one
        _logger.debug("egeria: could not be linked", exc_info=True)
        failure = "NO_LINK", f"{type(error).__name__}: {error}"
    failures = [entry for entry in _gather(group, failure) if entry is not None]
    if failures:
        raise EgeriaError(*failures[0])
    return result
