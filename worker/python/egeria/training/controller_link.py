"""This file links a model to the controller: it analyses the model, lets the ranks agree, and registers the job."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from egeria import _native
from egeria.errors import EgeriaError
from egeria.freeze.rank_agreement import all_agree, attempt, gather
from egeria.freeze.replicas import is_sharded
from egeria.model.inputs import GraphError, RootInputs, ShapeMismatch
from egeria.model.isolation import device_of
from egeria.model.modules import embedding_prefix
from egeria.reference.probing import LocalReference
from egeria.training.link_target import LinkTarget
from egeria.training.model_analysis import Analysis, analyse, analyse_unseen, varying

_logger = logging.getLogger("egeria")

# Between the generation of a restart by torchelastic and the next there is room for restarts of a link alone.
_GENERATIONS_PER_RESTART = 100
_MAX_RECORDINGS = 20
# A reading of plasticity compares samples.
_LEAST_SAMPLES = 2
# Samples of other sizes than the model was recorded with, before it is recorded anew.
_MAX_MISMATCHES = 4


def start_link(
    target: LinkTarget, group: dist.ProcessGroup | None, observed: Sequence[RootInputs], waits: bool
) -> Link | None:
    """Analyses the model and registers it with the controller. A collective of the ranks of `group`.

    Args:
      observed: inputs of the model in the last steps, the newest last.
      waits: for inputs, where no rank has seen any; else the link starts without, if it can.

    Returns:
      The link; None where some rank has not seen the model's inputs yet: to be tried again later.

    Raises:
      EgeriaError: [NO_LINK] on all ranks alike, if one of them could not be linked.
    """
    target.daemons.agree(group)
    own = [{"batch": seen.batch, "batched": seen.batched, "shapes": seen.shapes()} for seen in observed]
    found = gather(group, {"views": own, "waits": waits and (target.calls is None or target.config.reads_plasticity())})
    views = [rank["views"] for rank in found]
    if not all(views) and (any(rank["waits"] for rank in found) or any(views)):
        return None
    samples = min((view["batch"] for rank in views for view in rank), default=target.config.probe_batch())
    samples = min(samples, target.config.probe_batch())
    if all(views):
        dynamic = varying(views)
        analysis = attempt(group, lambda: analyse(target, observed[-1], samples, dynamic))
    else:
        analysis = attempt(group, lambda: analyse_unseen(target))
    found = gather(
        group,
        {
            "modules": [module.names() for module in analysis.modules],
            "errors": analysis.errors,
            "graphs": [analysis.fingerprint(index) for index in range(len(analysis.modules))],
            "losses": target.losses_reported,
            "plan": (target.total_steps, target.planned_rates),
            "shares": target.trained.shares.of(analysis.modules),
            "start": _start(target.recordings),
            "begins": (target.state.step, target.state.applied_plan, target.state.frozen_prefix),
        },
    )
    if any(other["modules"] != found[0]["modules"] for other in found):
        raise EgeriaError("NO_LINK", "the ranks found different layer modules; give `modules` to attach()")
    if len(begins := sorted({other["begins"] for other in found})) > 1:
        told = ", ".join(
            f"step {step} with plan {plan} and {prefix} frozen layer modules" for step, plan, prefix in begins
        )
        raise EgeriaError("NO_LINK", f"the ranks do not begin alike: at {told}; resume all of them from the same state")
    target.losses_reported = found[0]["losses"]  # the controller takes rank 0's
    target.total_steps, target.planned_rates = found[0]["plan"]
    # Measured, so that they differ a little.
    target.trained.shares.known = dict(zip((module.name for module in analysis.modules), found[0]["shares"]))
    errors = [_error_of(index, found) for index in range(len(analysis.modules))]
    return attempt(group, lambda: Link(target, analysis, errors, samples, group, found[0]["start"]))


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
        target: LinkTarget,
        analysis: Analysis,
        errors: Sequence[str | None],
        samples: int,
        group: dist.ProcessGroup | None,
        start: tuple[int, int],
    ):
        config = target.config
        self.modules = analysis.modules
        self.has_plan = bool(target.planned_rates)
        self.samples = samples
        self._group = group
        self._exported = analysis.exported
        self.sharded = is_sharded(target.trained.model)
        self._shares = target.trained.shares.known
        self._errors = list(errors)
        reads = config.reads_plasticity()
        local = config.reference != "controller" and reads and analysis.calls is not None and samples >= _LEAST_SAMPLES
        self._local = [error is not None and local for error in errors]
        self._reference: LocalReference | None = None
        if any(self._local):
            self._reference = LocalReference(target.trained.model, analysis.modules, analysis.calls or [])
        self._mismatches = 0
        self._told: set[str] = set()
        if reads:
            self._tell_local()
        self.native = _native.RankLink(
            self._registration(target, start),
            config.address(),
            group.group_name if group is not None else None,
            str(device_of(target.trained.model)),
            [],
            _metrics_address(config.metrics),
            target.daemons.are_own,
        )

    def _registration(self, target: LinkTarget, start: tuple[int, int]) -> dict[str, Any]:
        config, state = target.config, target.state
        modules = [self._describe(index) for index in range(len(self.modules))]
        shares = [module["step_share"] for module in modules]
        changes = [(switch.step, switch.frozen_prefix) for switch in state.switches]
        total_steps = target.total_steps or 0
        name = config.training_job or os.environ.get("EGERIA_TRAINING_JOB") or type(target.trained.model).__name__
        return {
            "job_id": target.job_id,
            "secret": target.job_secret,
            "generation": start[0],
            "start_id": start[1],
            "rank": self.rank,
            "world_size": dist.get_world_size(self._group) if self._group is not None else 1,
            "training_job": name,
            "modules": modules,
            "policy_json": config.policy_json(max(self.samples, _LEAST_SAMPLES)),
            "total_steps": total_steps,
            "planned_learning_rates": target.planned_rates,
            "observe": config.observe,
            "budget": config.budget or 0.0,
            "saved_before": _native.saved_before(state.step, changes, len(shares), shares, total_steps),
            "mean_rate_before": target.mean_rate,
            "embedding_prefix": embedding_prefix(self.modules),
            "losses_reported": target.losses_reported,
            "step": state.step,
            "frozen_prefix": state.frozen_prefix,
            "applied_plan": state.applied_plan,
        }

    def probe(self, request: Any, step: int, inputs: RootInputs | None) -> None:
        """Answers a sampling request with the model's inputs in this step; None: this rank has none to give. It is a
        collective for a sharded model; otherwise only the asked rank computes."""
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
        self.native.offer_sample(request, step, list(zip(names, tensors)), _native.compared(values[0], request.metric))

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
        return self._mismatches > _MAX_MISMATCHES

    @property
    def is_alone(self) -> bool:
        return self._group is None

    def agree(self, value: bool) -> bool:
        return all_agree(self._group, value)

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
            level, what = logging.WARNING, "they have no readings of plasticity, and do not freeze by them"
            if any(self._local):
                level, what = logging.INFO, "this process runs their reference itself"
            _logger.log(level, "egeria: no graph of the layer modules %s: %s; %s", ", ".join(names), error, what)


def _start(recordings: int) -> tuple[int, int]:
    """The generation if one is given, else the id of this start, which the controller numbers; the other one is 0."""
    first = int(os.environ.get("EGERIA_GENERATION") or 0)
    if first <= 0:
        return 0, secrets.randbits(63) | 1
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
    return first + _GENERATIONS_PER_RESTART * restarts + min(recordings, _MAX_RECORDINGS), 0


def _metrics_address(address: str | None) -> str | None:
    """Each rank of a node serves its own port: the given one plus the local rank; a port of 0 is any free one."""
    if address is None:
        return None
    host, _, port = address.rpartition(":")
    return address if int(port) == 0 else f"{host}:{int(port) + int(os.environ.get('LOCAL_RANK') or 0)}"
