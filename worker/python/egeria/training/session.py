"""attach() makes a Session, which is Egeria in a training loop."""

from __future__ import annotations

import atexit
import collections
import dataclasses
import itertools
import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.freeze.checks import check_optimizer
from egeria.freeze.replicas import Replicas
from egeria.freeze.switcher import Switch
from egeria.model.modules import LayerModule, ModuleSpec
from egeria.model.optimizers import stepping_optimizer
from egeria.model.wrappers import unwrap
from egeria.tell_once import TellOnce
from egeria.training import session_summary
from egeria.training.followed_training import FollowedTraining
from egeria.training.job_daemons import rank_of_job, wait_for_end
from egeria.training.process_exit import wait_for_collectives
from egeria.training.session_link import SessionLink
from egeria.training.session_state import SessionState
from egeria.training.settings_agreement import SettingsAgreement, post_when_possible, settings_of
from egeria.training.trial import Trial

_numbers = itertools.count()  # numbers for the sessions of this process
_open: dict[int, Session] = {}  # the sessions of this process, by id; each lives until it is closed


def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    modules: ModuleSpec = None,
    scheduler: Any = None,
    total_steps: int | None = None,
    config: Config | None = None,
    network: nn.Module | None = None,
) -> Session:
    """Lets Egeria watch and freeze the layers of `model` while `optimizer` trains it.

        session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=steps)
        for batch in loader:
            loss = ...; loss.backward(); optimizer.step(); optimizer.zero_grad()
            session.step(loss)

    Args:
      model: plain, DistributedDataParallel, torch.compile around or inside it, FSDP2; or plain and wrapped in
        DistributedDataParallel later. Every rank attaches, in the same order.
      optimizer: the one whose step() ends a training step, first, where there are several. A wrapper around one counts
        as the one inside.
      modules: how to cut the model into layer modules; see egeria.model.modules.partition(). None: by structure and
        size.
      scheduler: the learning-rate scheduler, which tells the rates to come; where it knows the number of steps, that
        too.
      total_steps: optimizer steps of the whole training, in place of what `config` says.
      config: None: from the environment (EGERIA_CONTROLLER and so on). Where no controller is named the job brings its
        own, which ends with it.
      network: the part of the model that is called with the batch, where that is not the model itself (a training
        framework's module around it); it has all parameters that train. Names of layer modules are relative to it.

    Raises:
      EgeriaError: what is not supported or contradictory, before the first step, with what to do instead.
    """
    config = dataclasses.replace(Config.from_env() if config is None else config)
    if total_steps is not None:
        config.total_steps = total_steps
    trial = Trial.of_environment()
    if trial is not None:
        config = trial.adapted(config)
    config.validate()
    if not isinstance(model, nn.Module):
        raise EgeriaError(
            "BAD_MODEL",
            f"attach() takes the model as a torch.nn.Module, not a "
            f"{type(model).__name__}; give it the module that is called in the training loop",
        )
    given = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    for entry in given:
        check_optimizer(entry)
    optimizers = [stepping_optimizer(entry) for entry in given]
    if not optimizers or not all(isinstance(entry, Optimizer) for entry in optimizers):
        raise EgeriaError(
            "BAD_OPTIMIZER",
            "attach() takes a torch.optim.Optimizer, or a list of them; give it the one whose step() is called",
        )
    for session in list(_open.values()):
        if session.follows(unwrap(model) if network is None else network):  # attached anew, in a notebook say
            session.close(finished=False)
    number = next(_numbers)
    if config.enabled:
        training = FollowedTraining(model, optimizers, modules, scheduler, config, network, number, trial)
        return Session(training, config)
    tell = TellOnce()
    post_when_possible(SettingsAgreement(number, lambda: settings_of(config, Replicas(model), []), tell), tell)
    return Session(None, config)


class Session:
    """Ties a training to Egeria: from attach() until close(), the end of a `with` block, or of the process.

    Everything happens in the optimizer's step(): probes of the frontmost active layer module, snapshots, the
    agreement of the ranks, switches. The training waits here for other ranks only, as its gradients do. No error
    of Egeria's reaches the training: it is logged once, and the training goes on with what is frozen.

    Owned by the training thread. In a forked child it does nothing.
    """

    def __init__(self, training: FollowedTraining | None, config: Config):
        """attach() makes it. `training` is None for a session that is switched off."""
        self._training = training
        self._config = config
        self._pid = os.getpid()
        self._closed = False
        if training is not None:
            _open[id(self)] = self
            _name_lines()

    def follows(self, model: nn.Module) -> bool:
        """Whether this session is attached to `model`, given without its wrappers."""
        return self._training is not None and self._training.model is model

    def step(self, loss: Tensor | float | None = None) -> None:
        """Reports the loss of a step, before or after its optimizer.step(). Several losses in a step are averaged.

        Losses are optional: without them the bootstrapping stage lasts a fixed number of steps.
        """
        if self._training is not None and not self._closed and os.getpid() == self._pid:
            self._training.add_loss(loss)

    @property
    def modules(self) -> list[LayerModule]:
        """The layer modules, in forward order."""
        return self._training.switcher.modules if self._training is not None else []

    @property
    def prefix(self) -> int:
        """Number of frozen layer modules, from the front. After close() it stays as it was then."""
        return self._training.frozen_prefix if self._training is not None else 0

    @property
    def switches(self) -> list[Switch]:
        """The changes of what is frozen so far, those before a resumed checkpoint included."""
        return list(self._training.switches) if self._training is not None else []

    @property
    def _step(self) -> int:
        """Steps of the training so far, those before a resumed checkpoint included."""
        return self._training.steps if self._training is not None else 0

    @property
    def _link(self) -> SessionLink | None:
        return self._training.link if self._training is not None else None

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint must hold to resume: small, of plain types only, the same on all ranks."""
        return (self._training.state() if self._training is not None else SessionState()).to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up where state_dict() was taken, before the first step and on every rank; after the model's and
        the optimizer's own states. {"step": n} alone resumes a training that ran without Egeria.

        Raises:
          EgeriaError: [CHECKPOINT_MISMATCH] the state is of another model or partition, or is none at all;
            [LOAD_TOO_LATE] steps have been taken.
        """
        if self._training is not None and not self._closed:
            self._training.resume(state)

    def summary(self) -> dict[str, Any]:
        """Numbers of the whole session.

        steps, modules, frozen_prefix, frozen_by_script (the first layer modules of which the script lets no parameter
        train), frozen_share (of the parameters that train, mean over this session's steps,
        0..1), freezes, unfreezes, switches_undone (because a rank could not make them), ranks, ranks_identical (after
        every switch), observe, own_controller (the job has
        brought it).

        This rank's time: saved_seconds, by freezing (None where it cannot be told); spent_seconds, Egeria's own, by
        what: "start", "probes", "gradients", "snapshots", "agreement", "switches", "recompiles", "cache", "hooks";
        time_saved_share, saved less spent as a share of what the same steps would have taken without Egeria;
        seconds_per_step by frozen prefix, without Egeria's own.

        cache: passes, passes_skipped, hits, misses, saved_seconds, spent_seconds, state and reason on this rank, or
        None without one.

        frozen_forward: form (as configured), parts that have one now, calls computed so, difference (the largest of an
        element on a real batch) of (the largest element), build_seconds, and reasons why parts have none; or None where
        frozen layers run as they are."""
        if self._training is None:
            return session_summary.numbers_of_nothing(self._config.observe)
        return session_summary.numbers_of(self._training)

    def scalars(self) -> dict[str, float]:
        """Numbers of now, for a logger."""
        return session_summary.scalars_of(self._training) if self._training is not None else {}

    def progress(self) -> str:
        """For a progress bar, such as tqdm's set_postfix_str(): "frozen 3/8, net 12.3 s saved", or "frozen 3/8, by the
        script". Layer modules without anything to train do not count, unless the script has frozen them."""
        return session_summary.progress_of(self._training) if self._training is not None else ""

    def counters(self) -> dict[str, Any]:
        """Totals of the line to the controller (samples sent and dropped, reconnects, ...); empty without one."""
        link = self._link.link if self._link is not None else None
        return link.native.counters() if link is not None else {}

    def cache_counters(self) -> dict[str, int]:
        """Totals of the cache of frozen activations: "hits" and "misses" in samples, "passes_skipped", misses by
        reason, and so on; empty without one."""
        caching = self._training.cache.caching if self._training is not None else None
        return caching.counters() if caching is not None else {}

    def cache_estimates(self) -> dict[str, Any]:
        """The cost and the saving of the cache of frozen activations: "state" ("unknown", "trying", "on", "off",
        "refused", "unfrozen"), "reason", "saved_seconds" so far, "forward_seconds" and "fetch_seconds" of a pass where
        they are known; empty without one."""
        caching = self._training.cache.caching if self._training is not None else None
        return caching.estimates() if caching is not None else {}

    def close(self, finished: bool = True) -> None:
        """Ends the session, in bounded time: tells the controller whether training has ended normally, makes
        everything active again, and prints the summary line on rank 0 if it has. Idempotent."""
        self._end(finished, forget=finished)

    def _end(self, finished: bool, forget: bool) -> None:
        """`forget`: the cache's entries of this training are not needed any more."""
        training = self._training
        if training is None or self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        _open.pop(id(self), None)
        training.end(finished, forget)
        if finished and rank_of_job() == 0 and self._step > 0:
            why, whose = session_summary.why_idle(training), training.tell.whose
            print(session_summary.summary_line(self.summary(), why, whose), flush=True)

    def _end_with_process(self, finished: bool) -> None:
        """Steps that are still to do, as far as their number is known, may be done by a process that resumes: a handler
        of signals that writes a checkpoint may end this one as if all were well."""
        self._end(finished, forget=finished and self._training is not None and not self._training.has_steps_to_come())

    def __copy__(self) -> Session:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        """The copy of a model that holds its session has one that does nothing."""
        return Session(None, self._config)

    def __reduce__(self) -> Any:
        """In a pickle an empty dictionary stands for it, so that torch.load() reads it as it reads plain models."""
        return collections.OrderedDict, ()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(finished=kind is None)


def _name_lines() -> None:
    """Where several models of the process train, what is said of each begins with the name of its class."""
    trainings = [session._training for session in _open.values() if session._training is not None]
    if len(trainings) > 1:
        names = [type(training.model).__name__ for training in trainings]
        for index, training in enumerate(trainings):
            which = f" {1 + names[:index].count(names[index])}" if names.count(names[index]) > 1 else ""
            training.tell.whose = training.tell.whose or f"{names[index]}{which}: "


@atexit.register
def _close_all() -> None:
    """Ends what was never closed: in order, unless an exception ends the process."""
    finished = getattr(sys, "last_value", None) is None
    for session in list(_open.values()):
        session._end_with_process(finished)
    wait_for_end()
    wait_for_collectives()
