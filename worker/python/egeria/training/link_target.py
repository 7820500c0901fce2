"""These structs say what is to be linked to the controller: the model, the job, and how far the training is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import nn

from egeria.config import Config
from egeria.freeze.switcher import Switch
from egeria.model.modules import LayerModule, ModuleSpec
from egeria.training.step_shares import StepShares


@dataclasses.dataclass
class TrainedModel:
    """The model, and what is known of its layer modules.

    Attributes:
      model: without its wrappers.
      spec: the user's `modules`.
      fixed: the layer modules are the user's or a checkpoint's, so that their order is not looked for.
      shares: which part of a step's time each layer module takes.
    """

    model: nn.Module
    spec: ModuleSpec
    fixed: bool
    shares: StepShares


@dataclasses.dataclass
class JobFacts:
    """The facts that the controller is told about the job.

    Attributes:
      job_id: the same on all ranks.
      total_steps: optimizer steps of the whole training; None: not known.
      planned_rates: learning rates at evenly spread steps of the whole training; empty: not known.
      losses_reported: the script reports losses.
      recordings: how often this process has recorded the model anew.
    """

    job_id: str
    total_steps: int | None
    planned_rates: list[float]
    losses_reported: bool
    recordings: int


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far the training is when it is linked.

    Attributes:
      step: optimizer steps done.
      frozen_prefix: layer modules 0..frozen_prefix-1 are frozen.
      applied_plan: the newest plan that has been applied.
      switches: all changes of what is frozen so far.
      mean_rate: mean of the learning rate over the steps before `step`; 0: not known.
    """

    step: int
    frozen_prefix: int
    applied_plan: int
    switches: Sequence[Switch]
    mean_rate: float


@dataclasses.dataclass
class LinkTarget:
    """All of it. `modules` may come out in another order, where the model's structure gave them."""

    config: Config
    trained: TrainedModel
    modules: list[LayerModule]
    job: JobFacts
    progress: Progress
