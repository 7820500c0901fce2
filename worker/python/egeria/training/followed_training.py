"""A FollowedTraining is the training as a session follows it, from one optimizer step to the next."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from egeria import _native
from egeria.cache.caching import Caching
from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.freeze.checks import check_wrappers
from egeria.freeze.replicas import Replicas, is_sharded
from egeria.freeze.switcher import Switch, Switcher
from egeria.gradients.gradient_readings import GradientReadings
from egeria.model.call_order import CallOrder
from egeria.model.learning_rates import LearningRates
from egeria.model.modules import ModuleSpec, partition
from egeria.model.optimizers import TrainingOptimizers
from egeria.model.schedule_clock import ScheduleClock
from egeria.model.shadow import FirstPass
from egeria.model.wrappers import unwrap
from egeria.tell_once import TellOnce
from egeria.time_ledger import TimeLedger
from egeria.training import advice
from egeria.training.controller_link import Link
from egeria.training.divergence import Divergence
from egeria.training.graph_capture import GraphCapture, outside_captures
from egeria.training.job_daemons import JobDaemons, rank_of_job
from egeria.training.link_target import LinkTarget, TrainedModel, job_id_of
from egeria.training.part_follower import PartFollower
from egeria.training.script_freezes import ScriptFreezes
from egeria.training.session_cache import SessionCache
from egeria.training.session_forward import SessionForward
from egeria.training.session_hooks import PassFollower
from egeria.training.session_link import SessionLink
from egeria.training.session_state import SessionState
from egeria.training.settings_agreement import SettingsAgreement, settings_of
from egeria.training.step_follower import StepFollower
from egeria.training.step_reports import Reports
from egeria.training.step_shares import StepShares
from egeria.training.trial import Trial
from egeria.training.untrained import Untrained
from egeria.training.watchdog import Watchdog


class FollowedTraining:
    """Watches each step of a training, and freezes what is to be frozen between two of them.

    A PassFollower calls on_pass(), on_forward() and on_output(), and a StepFollower before_step() and on_step().
    Everything that takes time or waits for other ranks happens in on_step(). No error of Egeria's reaches the training
    but [RANKS_DIFFER]: it is told once, and the training goes on with what is frozen. Owned by the training thread.

    Attributes:
      model: without its wrappers.
      step: optimizer steps done, those before a resumed checkpoint included.
      switches: the changes of what is frozen so far, those before a resumed checkpoint included.
      cache: of frozen activations.
      forward: frozen layers in inference form.
      capture: of a CUDA graph of the user's.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        spec: ModuleSpec,
        scheduler: Any,
        config: Config,
        network: nn.Module | None,
        number: int,
        trial: Trial | None = None,
    ):
        """Hooks the training. `network` is as for attach(); `number` is the session's in this process; a `trial` ends
        the training."""
        self.config = config
        self.model = unwrap(model) if network is None else network
        self.step = 0
        self.switches: list[Switch] = []
        self.tell = TellOnce()
        self.ledger = TimeLedger()
        self._network = network
        self._optimizers = TrainingOptimizers(self.model, optimizers)
        self._schedule = ScheduleClock(scheduler)
        self._number = number
        self._applied_plan = 0
        self._bytes_reduced = 0
        self._uneven = False  # the ranks do not take as many steps
        self._lost = False  # steps are not seen any more, so that nothing freezes
        self.capture = GraphCapture(self.tell)
        self._thaws = False  # all layers do when the next pass begins
        # The three properties below, as they were when the session ended.
        self._ended_with: tuple[int, float, int] | None = None
        self._trial = trial
        self._reports = Reports(trial)
        self._rates = LearningRates(self._optimizers)
        check_wrappers(model, Replicas(model))
        trained = self._optimizers.trained()
        self.switcher = Switcher(model, self._optimizers, partition(self.model, spec, trained=trained), self.tell)
        self._untrained = Untrained(self.model, self._optimizers, self.switcher, self.tell, self._freeze_no_more)
        self._script = ScriptFreezes(self.model, self.switcher, self._untrained, config.pin_frozen_modes)
        self._divergence = Divergence(self.switcher, config, self.tell, self._skip_nothing)
        shares = StepShares(model, self._own_seconds)
        self._trained = TrainedModel(self.model, spec, spec is not None, shares, trained)
        self._gradients = GradientReadings(self.switcher, self.ledger, self.tell)
        self.link = SessionLink(config, self.ledger, self._gradients, self._trained.shares, self.tell)
        config.check_plans(len(self.switcher.modules))
        self._agreement = SettingsAgreement(
            number,
            lambda: settings_of(config, self.switcher.replicas, self.switcher.modules, self._untrained.ids),
            self.tell,
        )
        for text in advice.of_start():
            self.tell(text)
        with self.tell.guard("the ranks cannot compare their settings"):
            self._agreement.post()
            self.switcher.settle_job_id(number)
        self.switcher.allow_recompiles()
        self._first_pass = FirstPass(self.model, model)
        self._call_order = CallOrder(self.model, model)
        self.daemons = JobDaemons(config)
        uses_pass = lambda: self.cache.caching is not None and self.cache.caching.uses_pass  # noqa: E731
        self.forward = SessionForward(config, self.model, uses_pass, self.ledger, self.tell)
        options = network is not None, self.tell.note, self.tell, self._first_pass, self._steps_left, self.forward
        caching = Caching.of(config, self.model, self._cache_namespace, *options)
        self.cache = SessionCache(config, caching, self.daemons, self.ledger, self.tell)
        last = lambda: [parameter for _, parameter in self.switcher.modules[-1].parameters()]  # noqa: E731
        self._parts = PartFollower(self.model, last, self.on_part)
        calls = self.before_step, self.on_step, self._lose_track
        self._steps = StepFollower(self._optimizers, Watchdog(last), self.switcher.keeper, self.tell, *calls)
        calls = self.on_pass, self.on_forward, self.on_output, self.on_other_pass
        self._passes = PassFollower(self.model, network is not None, self.switcher.replicas.adopt, *calls)
        self._passes.follow(model if network is None else network)
        self._passes.follow_begins(model)
        self.cache.follow()  # the script may have frozen layers already

    def _may_freeze(self) -> bool:
        """Whether the ranks are set alike. The first call waits for them, for a limited time."""
        if self._agreement.is_reached(self.switcher.replicas.process_group, self.config):
            return True
        self._freeze_no_more()
        return False

    def _freeze_no_more(self) -> None:
        self.link.drop()
        self.config.plans = ()

    @property
    def frozen_prefix(self) -> int:
        """Number of frozen layer modules, from the front; after end(), as it was then."""
        return self._ended_with[0] if self._ended_with is not None else self.switcher.prefix

    @property
    def frozen_share(self) -> float:
        """Share of the parameters that is frozen, 0..1; after end(), as it was then."""
        return self._ended_with[1] if self._ended_with is not None else self.switcher.frozen_share

    @property
    def frozen_by_script(self) -> int:
        """Number of the first layer modules that the script has frozen by itself; after end(), as it was then."""
        return self._ended_with[2] if self._ended_with is not None else self._script.prefix

    @property
    def steps(self) -> int:
        """Optimizer steps done, with one that ends when the next pass begins."""
        return self.step + self._steps.under_way

    @outside_captures
    def add_loss(self, loss: Any) -> None:
        """The user's script reports a loss of the step under way or of the one before."""
        with self.tell.guard("a loss could not be reported"):
            if loss is not None:
                self._steps.add_loss()
            self._reports.add_loss(loss, self.link.link, self.switcher.prefix)

    # A checkpoint.

    def state(self) -> SessionState:
        return SessionState(
            self.steps,
            self.frozen_prefix,
            self._applied_plan,
            self.switches,
            [module.names() for module in self.switcher.modules],
            self._trained.shares.known,
            self._rates.sum,
            self.cache.samples_repeat,
            self._cache_namespace(),
        )

    def resume(self, saved: dict[str, Any]) -> None:
        """Takes up where `saved` was taken; see Session.load_state_dict()."""
        if self._reports.steps > 0 or self.link.captured:
            raise EgeriaError(
                "LOAD_TOO_LATE",
                "load_state_dict() comes after the first step; call it between attach() and the training loop",
            )
        if self.switcher.prefix > 0:
            raise EgeriaError(
                "LOAD_TOO_LATE", "a state with frozen layers has been loaded already; attach() anew first"
            )
        state = SessionState.from_dict(saved)
        self._trained.resume(state, self.switcher)
        self.step = state.step
        self._applied_plan = state.applied_plan
        self.switches = state.switches
        self.link.resume(state.step)
        self._rates = LearningRates(self._optimizers, state.learning_rate_sum)
        self._trained.shares.known = state.step_shares
        self.cache.resume(state.samples_repeat)
        self.switcher.cache_namespace = state.cache_namespace
        if state.frozen_prefix > 0 and self._may_freeze():
            self.switcher.set(state.frozen_prefix)

    # The hooks call these.

    @outside_captures
    def on_pass(self) -> None:
        """A training forward pass is about to begin, in no wrapper yet: what is frozen may still change."""
        self._steps.begin_pass()
        self._untrained.begin_pass()
        if self.link.is_overdue(self.switcher.replicas.ranks_meet):
            self._go_on(lambda: (self._thaw_if_moved(self.link.missed), self._agree(self.link.agree_alone)))
        if self._thaws:
            self._thaws = False
            with self.tell.guard("frozen layers stay frozen"):
                self._switch(0)
        self._divergence.stop_if_due()

    @outside_captures
    def on_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A training forward pass begins."""
        self.ledger.begin_forward()
        with self.tell.guard("a forward pass could not be followed"), self.ledger.spend("hooks"):
            self._reports.forward()
            self.switcher.replicas.discover()
            self._passes.follow_begins(self.switcher.replicas.ddp)
            self.switcher.hold()
        self.cache.before_forward(args, kwargs)
        self.link.before_forward(args, kwargs)
        self._gradients.before_forward(args, kwargs)
        with self.tell.guard("a pass beside the training could not be made"), self.ledger.spend("start"):
            # The cache makes the first pass where it needs one. Under FSDP2 there is no shadow.
            if not self._first_pass.done and self._reads() and not is_sharded(self.model):
                self._first_pass.before_forward(args, kwargs)
            self._untrained.before_forward(args, kwargs)
            if self.link.is_wanted or (self.config.plans and self._reports.steps == 0):
                self._call_order.begin(self.switcher.modules)

    def _reads(self) -> bool:
        return self.link.is_wanted and self.config.reads_plasticity()

    @outside_captures
    def on_other_pass(self) -> None:
        """A forward pass begins that is not training's."""
        with self.tell.guard("the modes of frozen layers cannot be set"):
            self.switcher.begin_other_pass()

    @outside_captures
    def on_part(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A training forward pass begins, by a call of a layer with these arguments."""
        self._steps.begin_pass()
        self._untrained.begin_pass()
        self.ledger.begin_forward()
        with self.tell.guard("a forward pass could not be followed"), self.ledger.spend("hooks"):
            self._reports.forward()
            self.switcher.hold()
        self._gradients.before_forward(args, kwargs)

    @outside_captures
    def on_output(self, args: tuple[Any, ...], output: Any) -> None:
        """A training forward pass has ended."""
        self._call_order.end(output)
        self._first_pass.after_forward(output)
        self.switcher.end_pass()
        self._trained.shares.after_forward()

    @outside_captures
    def before_step(self) -> None:
        """An optimizer's step begins, behind the passes in its closure."""
        self._trained.shares.before_step()
        self._gradients.before_step()

    @outside_captures
    def on_step(self) -> None:
        """The optimizer has stepped: this is the boundary between two training steps."""
        self.step += 1
        self._trained.shares.end()
        prefix = self.switcher.prefix
        self.cache.end_step()
        self.ledger.end_step(prefix, self.switcher.frozen_share)
        with self.ledger.spend("hooks"):
            self._end_step(prefix)
        self._divergence.stop_if_due()
        if self._trial is not None:
            self._trial.end_step(self.step, rank_of_job(), len(self.switcher.modules), self.switches)
        self.forward.end_step()
        self._script.look()
        self.cache.follow()

    def _end_step(self, prefix: int) -> None:
        with self._reporting():
            self._report_step(prefix)
        with self.tell.guard("wrappers around the model could not be looked for"):
            self._passes.find_new_wrappers(self._parts.sees)
            self._follow_parts()
        self._go_on(self._follow_controller_or_plan)
        if not self._uneven:  # whatever has failed on this rank, the others wait for it there
            with self.tell.guard("the ranks could not be compared"):
                if self._divergence.is_due(self.step):
                    with self.ledger.spend("switches"):
                        self._divergence.compare(self.step)
        self.link.end_step()
        self._passes.follow_compiled()
        self._call_order.stop()
        if self.link.is_wanted and self._parts.sees:
            self._call_order.begin(self.switcher.modules)
        if self.link.is_wanted and self.switcher.prefix == 0:  # it starts soon
            with self._reporting():
                self._trained.shares.begin(self.switcher.modules)

    def _own_seconds(self) -> float:
        """Returns what Egeria has taken of the training thread's time so far."""
        return sum(self.ledger.spent_seconds().values()) + self.cache.seconds_of_step()

    def _follow_parts(self) -> None:
        """Nobody may have called the model as a whole in the step that has ended."""
        if not self._passes.is_passed_by:
            self._parts.close()
            return
        if self._parts.sees:
            self._call_order.end_of_parts()
            self.switcher.end_pass()
            if self.cache.caching is not None and self._script.prefix + self.switcher.prefix > 0:
                self.tell.note(
                    "the cache serves no frozen layers, since the model is called by its parts, or by a method: call "
                    "model(batch), or wrap what does not train in egeria.cached()"
                )
        self._parts.end_step()
        self._parts.follow()

    def _go_on(self, action: Callable[[], None]) -> None:
        """Where `action` fails, nothing is followed any more."""
        in_order = False
        with self.tell.guard("the session cannot go on"):
            action()
            in_order = True
        if not in_order:
            self.link.drop()

    def _reporting(self) -> contextlib.AbstractContextManager[None]:
        return self.tell.guard("a step could not be reported")

    def _report_step(self, prefix: int) -> None:
        rates = self._rates.now()
        self._rates.end_step(rates)
        self._schedule.end_step(self.step)
        # Before the link starts, modules may be in another order than the model calls them.
        zero_lr = self._rates.zero_lr_prefix(rates, self.switcher.modules) if self.link.link is not None else 0
        self._reports.end_step(self.step, rates, zero_lr, self.link.link, prefix)

    def _lose_track(self, at_pass: bool) -> None:
        """The weights move, but no steps are seen; `at_pass`: that is found out before the same training pass on all
        ranks. A collective then, where layers are frozen."""
        if self._lost:
            return
        consequence = "nothing is frozen until one is"
        if self.switcher.prefix > 0 and (at_pass or self.switcher.group is None):
            consequence = "frozen layers train again, and nothing freezes from here on"
            self._lost = True
            self._switch(0)
            self.link.drop()
        self.tell(
            f"[NO_STEPS] the weights of the model move, but no optimizer is seen to step: {consequence}; step with an "
            "optimizer of torch.optim, or one that is derived from those, whose step() is not compiled"
        )

    def _follow_controller_or_plan(self) -> None:
        self._agreement.post()  # where the process group is younger than the session
        if self.capture.seen:
            self.link.drop()
        if self.capture.seen or self._lost or self._is_uneven():
            return
        self._thaw_if_moved()
        self._untrained.end_step(lambda: self._may_freeze() and not self.config.observe)
        if (link := self.link.link) is not None:
            self._follow(link)
        elif self.link.is_due(self.step):
            with self.ledger.spend("start"):
                if self._may_freeze():
                    self._start_link()
        elif (prefix := dict(self.config.plans).get(self.step)) is not None and self._may_freeze():
            self.switcher.place(self._call_order.uses)
            self._switch(prefix)

    def _is_uneven(self) -> bool:
        """In DistributedDataParallel.join() a rank without data takes no steps: the others would wait for it."""
        if not self._uneven and self.switcher.replicas.inside_join:
            self._uneven = True
            self.tell(
                "[UNEVEN_INPUTS] in DistributedDataParallel.join() some ranks take fewer steps than others, so nothing "
                "freezes or unfreezes from here on; give all of them as many batches, as DistributedSampler does"
            )
            self.link.drop()
        return self._uneven

    def _agree(self, agree: Callable[[int], Any]) -> None:
        """Applies what the ranks agree on. Where they find that one of them has missed a step, all learn of it between
        the same two passes, and thaw when the second begins. A collective."""
        try:
            plan = agree(self.step)
        except EgeriaError as error:
            self._lost = self._thaws = error.name == "STEPS_DIFFER"
            raise
        if plan is not None:
            self._applied_plan = plan.plan_id
            self._switch(plan.frozen_prefix)

    def _follow(self, link: Link) -> None:
        self._agree(self.link.agree)
        with self._reporting():
            self._report_boundary(link)
        self.link.look_ahead(self.step, self._knows_plan)

    def _report_boundary(self, link: Link) -> None:
        self._bytes_reduced += self.switcher.gradient_bytes
        link.native.set_totals(self.switcher.frozen_share, self._bytes_reduced)
        link.native.set_frozen_by_script(self._script.prefix)
        if self.step % _native.TOTALS_EVERY == 0:
            link.native.set_account(self.ledger)
            self.cache.report(link.native)
        self._reports.boundary(link, self.switcher.prefix)

    def _switch(self, prefix: int) -> None:
        undone = self.switcher.undone
        with self.ledger.spend("switches"):
            switch = self.switcher.switch(prefix, self.step)
        if self.switcher.undone > undone and self.link.link is not None:
            self.link.link.native.record_undone_switch()
        if switch is not None:
            self._note(switch)

    def _thaw_if_moved(self, missed: int = 0) -> None:
        """After 1, 2, 4, ... steps of a frozen phase, then at every 64th, the ranks ask each other, also one that has
        `missed` steps. A collective."""
        since = self.step + missed - self.switcher.switched_at
        is_due = since % 64 == 0 or since & (since - 1) == 0
        if self.switcher.prefix == 0 or not (is_due or self.switcher.share_group() is None):
            return
        with self.ledger.spend("agreement"):
            switch = self.switcher.thaw_if_moved(self.step)
        if switch is not None:
            self._note(switch)

    def _note(self, switch: Switch) -> None:
        self.switches.append(switch)
        if switch.unfreeze and (orphans := self._optimizers.orphans()) is not None:
            self.tell(orphans)
        if self.link.link is not None:
            self.link.link.native.record_switch(switch.unfreeze, bool(switch.ranks_identical))
        self._divergence.follow(switch)
        self.cache.note_switch(self._seconds_left())
        self.ledger.disturb()  # a compilation, perhaps

    def _steps_left(self) -> int | None:
        """The number of steps to come, where it is known."""
        total = self.total_steps()
        return None if total is None else max(0, total - self.step)

    def _seconds_left(self) -> float:
        """The time of the steps to come, as far as it is known."""
        left, means = self._steps_left(), self.ledger.seconds_per_step()
        return left * max(means.values()) if left is not None and means else math.inf

    def _skip_nothing(self) -> None:
        self.cache.skip_nothing()

    def _start_link(self) -> None:
        """Analyses the model and starts the link to the controller. A collective."""
        group = self.switcher.share_group()
        self.switcher.allow_recompiles()
        self.ledger.count_compilations()
        total_steps = self.total_steps()
        target = LinkTarget(
            self.config,
            self._trained,
            self.switcher.modules,
            self.state(),
            job_id=self._job_id(),
            job_secret=self.switcher.job_secret,
            total_steps=total_steps,
            planned_rates=self._schedule.planned_rates(total_steps),
            mean_rate=self._rates.mean_over(self.step),
            losses_reported=self._reports.any_loss,
            rates_of_their_own=self._rates.of_their_own,
            calls=self._call_order.calls,
            uses=self._call_order.uses,
            no_shadow=self._first_pass.reason,
            recordings=self.link.recordings,
            daemons=self.daemons,
        )
        for text in advice.of_link(target, self._schedule) if rank_of_job() == 0 else ():
            self.tell(text)
        if not self.link.start(target, group):
            self._passes.follow_wrappers()
        if (link := self.link.link) is None:
            return
        if link.modules != self.switcher.modules and self.switcher.prefix == 0:
            self.switcher.take(link.modules)  # in the order in which the forward pass calls them
        self._reports.correct_zero_lr_prefix(self._rates.zero_lr_prefix(self._rates.now(), self.switcher.modules))

    def _knows_plan(self) -> bool:
        """Whether it is known what the learning rates will be, for a policy that goes by them."""
        return self.config.policy in ("auto", "staged") and bool(self._schedule.planned_rates(self.total_steps()))

    def _cache_namespace(self) -> str:
        """The cache keeps this training's entries, resumed or not, under the checkpoint's name or else the job's id."""
        with self.tell.guard("the ranks have no job's id in common yet"):
            self.switcher.settle_job_id(self._number)
        return self.switcher.cache_namespace or self._job_id()

    def _job_id(self) -> str:
        return job_id_of(self.switcher.job_id, self._number)

    def total_steps(self) -> int | None:
        """Optimizer steps of the whole training, where they are known."""
        return self.config.total_steps or self._schedule.total_steps()

    # The end.

    def has_steps_to_come(self) -> bool:
        """Whether steps are still to do; False where their number is not known."""
        total = self.total_steps()
        return total is not None and self.steps < total

    def end(self, finished: bool, forget: bool) -> None:
        """Tells the controller, in bounded time, whether training has `finished` normally, and makes everything active
        again. `forget`: the cache's entries of this training are not needed any more."""
        self._ended_with = self.switcher.prefix, self.switcher.frozen_share, self._script.prefix
        self.link.note_blocked()
        self._steps.close()
        self._passes.close()
        self._parts.close()
        self.link.stop_measuring()
        self._call_order.stop()
        with self._ending():
            self._reports.flush(self.link.link, self.switcher.prefix)
        with self._ending():
            self.cache.close(forget)
        with self._ending():
            self.forward.close()
        with self._ending():
            self.link.stop(finished)
        with self._ending():
            self.daemons.close()
        with self._ending():
            self._script.close()
            self._untrained.close()
            self.switcher.set(0)  # on all ranks, whatever fails on one

    def _ending(self) -> contextlib.AbstractContextManager[None]:
        return self.tell.guard("the session did not end in order")
