"""These structs say what is to be linked to the controller."""

from __future__ import annotations

import dataclasses
import uuid

from torch import nn

from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.freeze.switcher import Switcher
from egeria.model.modules import LayerModule, ModuleSpec, from_unit_names
from egeria.model.parameter_uses import Uses
from egeria.training.job_daemons import JobDaemons
from egeria.training.session_state import SessionState
from egeria.training.step_shares import StepShares


@dataclasses.dataclass
class TrainedModel:
    """The model, and what is known of its layer modules.

    Attributes:
      model: without its wrappers.
      spec: the user's `modules`.
      fixed: the layer modules are the user's or a checkpoint's, so that their order is not looked for.
      shares: which part of a step's time each layer module takes.
      parameters: ids of those that train, whatever the script does with them for a moment.
    """

    model: nn.Module
    spec: ModuleSpec
    fixed: bool
    shares: StepShares
    parameters: frozenset[int]

    def resume(self, state: SessionState, switcher: Switcher) -> None:
        """Takes a checkpoint's layer modules, which may have been found by watching a forward pass.

        Raises:
          EgeriaError: [CHECKPOINT_MISMATCH] the model or its partition is another one.
        """
        if state.modules:
            same = [units for _, units, _ in state.modules] == [list(module.unit_names) for module in switcher.modules]
            if self.spec is not None and not same:
                raise EgeriaError(
                    "CHECKPOINT_MISMATCH",
                    "the checkpoint has other layer modules than `modules` says; "
                    "give attach() what it was given when the checkpoint was written",
                )
            switcher.take(from_unit_names(self.model, state.modules))
            self.fixed = True
        if not state.frozen_prefix < len(switcher.modules):
            raise EgeriaError(
                "CHECKPOINT_MISMATCH",
                f"the checkpoint has {state.frozen_prefix} layer modules frozen, this model has "
                f"{len(switcher.modules)}; resume with the model and the `modules` that it was written with",
            )


def job_id_of(shared: str, number: int) -> str:
    """The first session of a process has the shared id; each further one is a job of its own. A text that is no UUID
    stays as it is; the controller refuses it."""
    try:
        return shared if number == 0 else str(uuid.uuid5(uuid.UUID(shared), str(number)))
    except ValueError:
        return shared


@dataclasses.dataclass
class LinkTarget:
    """The model, the job, and how far the training is.

    Attributes:
      modules: the layer modules; they may come out in another order, where the model's structure gave them.
      state: the training's.
      job_id: the same on all ranks.
      job_secret: likewise; shows the controller that a rank belongs to the job.
      total_steps: optimizer steps of the whole training; None: not known.
      planned_rates: learning rates at evenly spread steps of the whole training; empty: not known.
      mean_rate: mean of the learning rate over the steps so far; 0: not known.
      losses_reported: the script reports losses.
      rates_of_their_own: some optimizer makes its own learning rates.
      calls: the submodules in the order in which training calls them; None: not known.
      uses: of parameters, as a pass of training has shown them.
      no_shadow: why the model has no shadow; None where it has one.
      recordings: how often this process has recorded the model anew.
      daemons: the ones that the job brings.
    """

    config: Config
    trained: TrainedModel
    modules: list[LayerModule]
    state: SessionState
    job_id: str
    job_secret: str
    total_steps: int | None
    planned_rates: list[float]
    mean_rate: float
    losses_reported: bool
    rates_of_their_own: bool
    calls: list[nn.Module] | None
    uses: Uses
    no_shadow: str | None
    recordings: int
    daemons: JobDaemons
