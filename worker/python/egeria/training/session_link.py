"""A SessionLink decides when a session links to the controller, what goes over the link in a step, and when it starts
anew or ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.gradients.gradient_readings import GradientReadings
from egeria.model.inputs import GraphError, RootInputs
from egeria.tell_once import TellOnce
from egeria.time_ledger import TimeLedger
from egeria.training.controller_link import Link, start_link
from egeria.training.link_target import LinkTarget
from egeria.training.step_shares import StepShares

_logger = logging.getLogger("egeria")

# The link starts at the end of this step, when sizes that vary have had a chance to show, and is tried again at
# twice as many steps where the model's inputs have not been seen.
_FIRST_START = 2
_LAST_START = 64
# The link of a policy that freezes at once starts here, since it chooses by what freezing saves of a step: the first
# steps are slow.
_MEASURED_START = 4
# So many steps after the first try it starts without inputs that no rank has seen.
_UNSEEN_FOR = 8
# How often the ranks ask each other whether one of them needs a new recording of the model.
_RECORD_ANEW_EVERY = 256
_MAX_RECORDINGS = 4
# How often they ask each other whether the learning rates to come are known at last.
_PLAN_EVERY = 64


class SessionLink:
    """In the order of a step: before_forward(); at its end, while there is a link, agree() and look_ahead(), else
    start() where it is due; end_step(). Owned by the training thread.

    Attributes:
      link: None before it has started, and once it has failed.
      is_wanted: it is still to start.
      captured: the inputs of the step under way, or the attempt to copy them.
      recordings: of the model, after the first one.
      why_idle: why nothing was frozen, as far as is known when the session ends; empty: nobody knows.
      advice: what would serve this training better than freezing, as far as is known when the session ends; else empty.
    """

    def __init__(
        self, config: Config, ledger: TimeLedger, gradients: GradientReadings, shares: StepShares, tell: TellOnce
    ):
        self.link: Link | None = None
        self.is_wanted = config.address() is not None or config.brings_controller()
        self.captured = False
        self.recordings = 0
        self.why_idle = ""
        self.advice = ""
        self._config = config
        self._ledger = ledger
        self._gradients = gradients
        self._shares = shares
        self._tell = tell
        self._probing = True
        self._sampling: Any = None  # the request that the step under way answers
        self._inputs: list[RootInputs] = []  # the model's inputs, the newest last
        self._passes = 0  # in which the ranks have met since they last agreed
        self._passes_a_step = 1  # as many as there were in the newest step
        self.missed = 0  # steps that the ranks may have made since, unseen here
        self.resume(0)

    def resume(self, step: int) -> None:
        """The first try to start is soon after this step."""
        self._tries_from = step
        self._start_at = step + (_MEASURED_START if self._config.times_first_steps() else _FIRST_START)

    def is_overdue(self, ranks_meet: bool) -> bool:
        """A training pass is about to begin; `ranks_meet`: in which all ranks take part. Returns whether the ranks
        should have agreed before it, had this one seen a step: others may have, and then wait for it."""
        overdue = ranks_meet and self.link is not None and self._passes >= self._passes_a_step
        self._passes = ranks_meet + (0 if overdue else self._passes)
        self.missed += overdue
        return overdue

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a forward pass of training: keeps its inputs, where they are asked for or a start needs them."""
        if self.captured or not self._probing or (self._sampling is None and not self.is_wanted):
            return
        self.captured = True
        try:
            with self._ledger.spend("probes"):
                inputs = RootInputs(args, kwargs, self._config.probe_batch())
                self._inputs = [*self._inputs[-1:], inputs] if self.is_wanted else [inputs]
        except GraphError as error:
            self._cannot_probe(str(error))
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._cannot_probe("the model's inputs cannot be copied", error)

    def end_step(self) -> None:
        self.captured = False
        self._passes_a_step, self._passes = max(1, self._passes), 0
        self.missed = 0

    def is_due(self, step: int) -> bool:
        """Whether a start is to be tried after this step."""
        return self.is_wanted and step >= self._start_at

    def start(self, target: LinkTarget, group: dist.ProcessGroup | None) -> bool:
        """Analyses the model and starts the link. A collective.

        Returns:
          False where it is to be tried again later, since some ranks have not seen the model's inputs.
        """
        try:
            waits = target.state.step - self._tries_from < _UNSEEN_FOR
            self.link = start_link(target, group, self._inputs if self._probing else [], waits)
            if self.link is None:
                return self._postpone(target.state.step)
        except EgeriaError as error:
            if error.name == "NO_PASSES" and not self._probing:
                error = EgeriaError("NO_LINK", "the model's inputs cannot be copied")
            self._tell("this training is not watched", error)
            self.why_idle = f"this training is not watched: {error}"
        self.is_wanted = False
        self._inputs = []
        return True

    def agree(self, step: int) -> Any:
        """Sends what this step was asked for, and lets the ranks agree. Whatever fails here on one rank alone, it goes
        on agreeing with the others, which wait for it. A collective.

        Returns:
          The plan that all ranks apply now, or None.
        """
        link = self._linked()
        taken = self.captured and self._probing
        if self._sampling is not None and (taken or link.sharded):
            inputs = self._inputs[-1] if taken and self._inputs else None
            self._inputs = []
            with self._ledger.spend("probes"):
                self._try_to_probe(lambda: link.probe(self._sampling, step, inputs))
        self._gradients.offer(link.native, step)
        if self._probing:
            with self._ledger.spend("snapshots"):
                self._try_to_probe(lambda: link.answer_snapshot(step))
        return self.agree_alone(step)

    def agree_alone(self, step: int) -> Any:
        """The ranks agree, and nothing else. A collective; it gives what agree() does."""
        with self._ledger.spend("agreement"):
            return self._linked().native.commit(step)

    def look_ahead(self, step: int, knows_plan: Callable[[], bool]) -> None:
        """Finds out what the next step is asked for. Or the link begins anew: with a recording of the model with sizes
        that vary, or with the learning rates to come, once `knows_plan` says on all ranks that these have become known.
        A collective."""
        link = self._linked()
        if self.recordings < _MAX_RECORDINGS and (
            self._has_outgrown(link, step) or self._has_plan_at_last(link, step, knows_plan)
        ):
            self._restart(step)
            return
        self._sampling = link.native.sampling_for(step + 1) if self._probing or link.sharded else None
        self._gradients.begin(link.native.gradients_for(step + 1))

    def _has_outgrown(self, link: Link, step: int) -> bool:
        return step % _RECORD_ANEW_EVERY == 0 and not link.agree(not link.outgrown) and link.agree(self._probing)

    def _has_plan_at_last(self, link: Link, step: int, knows_plan: Callable[[], bool]) -> bool:
        """Alone a rank looks often, at steps that are ever farther apart, since the first epoch may be short."""
        since = step - self._tries_from
        due = step % _PLAN_EVERY == 0 or (link.is_alone and (since < _PLAN_EVERY or since & (since - 1) == 0))
        return due and not link.has_plan and link.agree(knows_plan())

    def drop(self) -> None:
        """After an error: there is no link any more."""
        link = self._end_link()
        self.is_wanted = False
        self.why_idle = self.why_idle or "this training is not watched to its end: a warning says why"
        if link is not None:
            try:
                link.native.stop(False)
            except Exception:  # pylint: disable=broad-exception-caught
                _logger.debug("egeria: the line to the controller did not end in order", exc_info=True)

    def note_blocked(self) -> None:
        """The session ends: asks the link why nothing froze."""
        if self.link is not None:
            counters = self.link.native.counters()
            unheard = "" if counters["connected"] else "no controller had taken this job by then"
            self.why_idle = counters["blocked"] or self.why_idle or unheard
            self.advice = counters["advice"]
        elif self.is_wanted:
            self.why_idle = "it ended before the controller was asked"

    def stop_measuring(self) -> None:
        self._gradients.end()
        self._shares.close()

    def stop(self, finished: bool) -> None:
        """Ends the link in bounded time. `finished`: the training has ended normally."""
        if self.link is not None:
            self.link.native.stop(finished)

    def _linked(self) -> Link:
        assert self.link is not None
        return self.link

    def _end_link(self) -> Link | None:
        link, self.link = self.link, None
        self._sampling = None
        self.stop_measuring()
        return link

    def _restart(self, step: int) -> None:
        self._linked().native.stop(False)
        self._end_link()
        self.recordings += 1
        self.is_wanted = True
        self.resume(step)

    def _postpone(self, step: int) -> bool:
        tried = step - self._tries_from
        if tried > _LAST_START * _FIRST_START:
            self.is_wanted = False
            self.why_idle = (
                "some ranks do not see the model's forward pass, so this training is not watched; attach the model "
                "that is called in the training loop"
            )
            self._tell(self.why_idle)
            return True
        self._start_at = step + tried
        return False

    def _try_to_probe(self, action: Callable[[], None]) -> None:
        """A failure ends the probes of this rank."""
        try:
            action()
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._cannot_probe("a probe failed", error)

    def _cannot_probe(self, what: str, error: Exception | None = None) -> None:
        self._probing = False
        self._inputs = []
        if self._config.reads_plasticity():
            self._tell(f"{what}; this process takes no readings", error)
        else:
            _logger.debug("egeria: %s: %s", what, error)
