"""attach() makes a Session, which is Egeria in a training loop."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import itertools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from egeria.cache.caching import Caching
from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.freeze.switcher import Switch, Switcher
from egeria.gradients.gradient_readings import GradientReadings
from egeria.model.learning_rates import LearningRates
from egeria.model.lr_schedules import planned_rates, unwrapped
from egeria.model.modules import LayerModule, ModuleSpec, from_unit_names, partition
from egeria.model.wrappers import unwrap, wrappers_of
from egeria.time_ledger import TimeLedger
from egeria.training.controller_link import Link, LinkTarget, job_id_of
from egeria.training.process_exit import wait_for_collectives
from egeria.training.session_hooks import (
    BeforeStepHook,
    ForwardHook,
    NetworkHook,
    NetworkOutputHook,
    OutputHook,
    StepHook,
)
from egeria.training.session_link import SessionLink
from egeria.training.session_state import STATE_VERSION, namespace_in, rate_sum_in, read_state, summary_line
from egeria.training.step_reports import Reports, total_steps_of
from egeria.training.step_shares import StepShares

_logger = logging.getLogger("egeria")

# The metrics learn of the ledger and the cache every so often.
_TOTALS_EVERY = 16

_numbers = itertools.count()  # of the sessions of this process
_open: dict[int, Session] = {}  # of this process, by number; a session lives until it is closed


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
      optimizer: the one whose step() ends a training step, first, where there are several.
      modules: how to cut the model into layer modules; see egeria.model.modules.partition(). None: by structure and
        size.
      scheduler: the learning-rate scheduler, which tells the rates to come; where it knows the number of steps, that
        too.
      total_steps: optimizer steps of the whole training, in place of what `config` says.
      config: None: from the environment (EGERIA_CONTROLLER and so on, as egeria-run sets them).
      network: the part of the model that is called with the batch, where that is not the model itself (a training
        framework's module around it); it has all parameters that train. Names of layer modules are relative to it.

    Raises:
      EgeriaError: what is not supported or contradictory, before the first step, with what to do instead.
    """
    config = Config.from_env() if config is None else config
    if total_steps is not None:
        config = dataclasses.replace(config, total_steps=total_steps)
    config.validate()
    if not isinstance(model, nn.Module):
        raise EgeriaError(
            "BAD_MODEL",
            f"attach() takes the model as a torch.nn.Module, not a "
            f"{type(model).__name__}; give it the module that is called in the training loop",
        )
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    if not optimizers or not all(isinstance(entry, Optimizer) for entry in optimizers):
        raise EgeriaError(
            "BAD_OPTIMIZER",
            "attach() takes a torch.optim.Optimizer, or a list of them; give it the one whose step() is called",
        )
    for session in list(_open.values()):
        if session._model is (unwrap(model) if network is None else network):  # attached anew, in a notebook say
            session.close(finished=False)
    return Session(model, optimizers, modules, scheduler, config, network)


class Session:
    """Ties a training to Egeria: from attach() until close(), the end of a `with` block, or of the process.

    Everything happens in the optimizer's step(): probes of the frontmost active layer module, snapshots, the
    agreement of the ranks, switches. The training waits here for other ranks only, as its gradients do. No error
    of Egeria's reaches the training: it is logged once, and the training goes on with what is frozen.

    Owned by the training thread. In a forked child it does nothing.

    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        spec: ModuleSpec,
        scheduler: Any,
        config: Config,
        network: nn.Module | None = None,
    ):
        self._config = config
        self._enabled = config.enabled
        self._pid = os.getpid()
        self._model = unwrap(model) if network is None else network
        self._network = network
        self._optimizers = [getattr(entry, "optimizer", entry) for entry in optimizers]
        self._spec = spec
        self._scheduler = scheduler
        self._scheduled: int | None = None  # what it had counted when the step before ended
        self._number = next(_numbers) if self._enabled else 0
        self._step = 0
        self._switches: list[Switch] = []
        self._ledger = TimeLedger()
        self._caching: Caching | None = None
        self._cache_spent = 0.0  # seconds that are in the ledger
        self._closed = False
        self._uneven = False  # the ranks do not take as many steps
        self._reports = Reports()
        self._rates = LearningRates(self._optimizers)
        self._applied_plan = 0
        self._bytes_reduced = 0
        self._told: set[str] = set()
        self._final: dict[str, Any] | None = None
        self._handles: list[Any] = []
        self._watched: set[int] = set()
        if not self._enabled:
            return
        self._fixed = spec is not None
        self._switcher = Switcher(model, self._optimizers, partition(self._model, spec), self._fail)
        self._shares = StepShares(model)
        self._gradients = GradientReadings(self._switcher, self._model, self._ledger, self._fail, self._without_cache)
        self._link = SessionLink(config, self._number, self._ledger, self._gradients, self._shares, self._fail)
        self._check_plans()
        self._switcher.allow_recompiles()
        cache = config.cache_address()
        if cache is not None:
            self._caching = Caching(
                cache,
                self._model,
                format=config.cache_format,
                quota_bytes=config.cache_job_bytes(),
                always=config.cache_use == "always",
                own_forward_only=network is not None,
                tell=self._fail,
            )
        hook = ForwardHook(self) if network is None else NetworkHook(self)
        watched = model if network is None else network
        self._watch(watched, hook, OutputHook(self) if network is None else NetworkOutputHook(self))
        for entry in self._optimizers:
            self._handles.append(entry.register_step_pre_hook(BeforeStepHook(self)))
        self._handles.append(self._optimizers[0].register_step_post_hook(StepHook(self)))
        _open[self._number] = self

    # For the user.

    def step(self, loss: Tensor | float | None = None) -> None:
        """Reports the loss of a step, before or after its optimizer.step(); of several in a step, the mean counts.

        Optional: without losses the bootstrapping stage lasts a fixed number of steps.
        """
        if not self._enabled or self._closed or os.getpid() != self._pid:
            return
        try:
            self._reports.add_loss(loss, self._link.link, self._switcher.prefix)
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._fail("a loss could not be reported", error)

    @property
    def modules(self) -> list[LayerModule]:
        """The layer modules, in forward order."""
        return self._switcher.modules if self._enabled else []

    @property
    def prefix(self) -> int:
        """Number of frozen layer modules, from the front. After close(): as it was then."""
        if not self._enabled:
            return 0
        return self._final["frozen_prefix"] if self._final is not None else self._switcher.prefix

    @property
    def switches(self) -> list[Switch]:
        """The changes of what is frozen so far, those before a resumed checkpoint included."""
        return list(self._switches)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold to resume: small, of plain types only, the same on all ranks."""
        if not self._enabled:
            return {"version": STATE_VERSION, "step": self._step, "frozen_prefix": 0, "applied_plan": 0, "switches": []}
        return {
            "version": STATE_VERSION,
            "step": self._step,
            "frozen_prefix": self.prefix,
            "applied_plan": self._applied_plan,
            "switches": [
                [entry.step, entry.frozen_prefix, int(entry.unfreeze), int(entry.ranks_identical)]
                for entry in self._switches
            ],
            "modules": [
                [module.name, list(module.unit_names), [name for name, _ in module.loose]] for module in self.modules
            ],
            "step_shares": dict(self._shares.known),
            "learning_rate_sum": self._rates.sum,
            "samples_repeat": None if self._caching is None else self._caching.repeats.known,
            "cache_namespace": self._cache_namespace(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up where state_dict() was taken, before the first step and on every rank; after the model's and
        the optimizer's own states. {"step": n} alone resumes a training that ran without Egeria.

        Raises:
          EgeriaError: [CHECKPOINT_MISMATCH] the state is of another model or partition, or is none at all;
            [LOAD_TOO_LATE] steps have been taken.
        """
        if not self._enabled or self._closed:
            return
        if self._reports.steps > 0 or self._link.captured:
            raise EgeriaError(
                "LOAD_TOO_LATE",
                "load_state_dict() comes after the first step; call it between attach() and the training loop",
            )
        if self.prefix > 0:
            raise EgeriaError(
                "LOAD_TOO_LATE", "a state with frozen layers has been loaded already; attach() anew first"
            )
        step, prefix, plan, switches = read_state(state)
        if state.get("modules"):
            self._adopt(state["modules"])
        if not prefix < len(self.modules):
            raise EgeriaError(
                "CHECKPOINT_MISMATCH",
                f"the checkpoint has {prefix} layer modules frozen, this "
                f"model has {len(self.modules)}; resume with the model and the `modules` that it "
                "was written with",
            )
        self._step = step
        self._applied_plan = plan
        self._switches = switches
        self._link.resume(step)
        self._rates.sum = rate_sum_in(state)
        self._shares.known = {str(name): float(share) for name, share in (state.get("step_shares") or {}).items()}
        if self._caching is not None and state.get("samples_repeat") is not None:
            self._caching.repeats.known = bool(state["samples_repeat"])
        self._switcher.cache_namespace = namespace_in(state)
        self._switcher.set(prefix)

    def summary(self) -> dict[str, Any]:
        """Numbers of the whole session.

        steps, modules, frozen_prefix, frozen_share (of the parameters, mean over this session's steps, 0..1), freezes,
        unfreezes, ranks, ranks_identical (after every switch), observe.

        Of this rank's time: saved_seconds, by freezing (None where it cannot be told); spent_seconds, Egeria's own, by
        what: "start", "probes", "gradients", "snapshots", "agreement", "switches", "recompiles", "cache", "hooks";
        time_saved_share, saved less spent as a share of what the same steps would have taken without Egeria;
        seconds_per_step by frozen prefix, without Egeria's own.

        cache: passes, passes_skipped, hits, misses, saved_seconds, spent_seconds, state and reason on this rank, or
        None without one."""
        return {
            "steps": self._step,
            "modules": len(self.modules),
            "frozen_prefix": self.prefix,
            "frozen_share": self._ledger.frozen_share,
            "freezes": sum(not entry.unfreeze for entry in self._switches),
            "unfreezes": sum(entry.unfreeze for entry in self._switches),
            "ranks": self._switcher.ranks if self._enabled else 1,
            "ranks_identical": all(entry.ranks_identical for entry in self._switches),
            "saved_seconds": self._ledger.saved_seconds(),
            "spent_seconds": self._ledger.spent_seconds(),
            "time_saved_share": self._ledger.net_share(),
            "seconds_per_step": self._ledger.seconds_per_step(),
            "observe": self._config.observe,
            "cache": self._caching.summary() if self._caching is not None else None,
        }

    def scalars(self) -> dict[str, float]:
        """Numbers of now, for a logger."""
        if not self._enabled:
            return {}
        share = self._final["frozen_share"] if self._final is not None else self._switcher.frozen_share
        scalars = {
            "egeria/frozen_prefix": float(self.prefix),
            "egeria/frozen_share": share,
            "egeria/freezes": float(sum(not entry.unfreeze for entry in self._switches)),
            "egeria/unfreezes": float(sum(entry.unfreeze for entry in self._switches)),
        }
        saved = self._ledger.saved_seconds()
        if saved is not None:
            scalars["egeria/saved_seconds"] = saved
            scalars["egeria/spent_seconds"] = sum(self._ledger.spent_seconds().values())
            scalars["egeria/net_saved_seconds"] = saved - scalars["egeria/spent_seconds"]
        if self._caching is not None:
            cache = self._caching.summary()
            scalars["egeria/cache_passes_skipped"] = float(cache["passes_skipped"])
            scalars["egeria/cache_saved_seconds"] = cache["saved_seconds"]
        return scalars

    def progress(self) -> str:
        """For a progress bar, such as tqdm's set_postfix_str(): "frozen 3/8, net 12.3 s saved"."""
        if not self._enabled:
            return ""
        net = self.scalars().get("egeria/net_saved_seconds")
        return f"frozen {self.prefix}/{len(self.modules)}" + (f", net {net:.1f} s saved" if net is not None else "")

    def counters(self) -> dict[str, Any]:
        """Totals of the line to the controller (samples sent and dropped, reconnects, ...); empty without one."""
        return self._link.link.native.counters() if self._enabled and self._link.link is not None else {}

    def cache_counters(self) -> dict[str, int]:
        """Totals of the cache of frozen activations: "hits" and "misses" in samples, "passes_skipped", misses by
        reason, and so on; empty without one."""
        return self._caching.counters() if self._enabled and self._caching is not None else {}

    def cache_estimates(self) -> dict[str, Any]:
        """What the cache of frozen activations costs and saves: "state" ("unknown", "trying", "on", "off", "refused",
        "unfrozen"), "reason", "saved_seconds" so far, "forward_seconds" and "fetch_seconds" of a pass where they are
        known; empty without one."""
        return self._caching.estimates() if self._enabled and self._caching is not None else {}

    def close(self, finished: bool = True) -> None:
        """Ends the session, in bounded time: tells the controller whether training has ended normally, makes
        everything active again, and prints the summary line on rank 0 if it has. Idempotent."""
        self._end(finished, forget=finished)

    def _end(self, finished: bool, forget: bool) -> None:
        """`forget`: what the cache has of this training is not needed any more."""
        if not self._enabled or self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        _open.pop(self._number, None)
        self._final = {"frozen_prefix": self._switcher.prefix, "frozen_share": self._switcher.frozen_share}
        for handle in self._handles:
            handle.remove()
        self._link.stop_measuring()
        self._try_to_end(lambda: self._reports.flush(self._link.link, self._switcher.prefix))
        if self._caching is not None:
            self._try_to_end(lambda: self._caching.close(forget))
        self._try_to_end(lambda: self._link.stop(finished))
        self._try_to_end(lambda: self._switcher.set(0))  # on all ranks, whatever fails on one
        if finished and self._rank() == 0 and self._step > 0:
            print(summary_line(self.summary()), flush=True)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(finished=kind is None)

    # Called by the hooks.

    def _on_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a training forward pass."""
        if self._gradients.aside:
            return
        self._ledger.begin_forward()
        try:
            with self._ledger.spend("hooks"):
                self._reports.forward()
                self._switcher.replicas.discover()
                self._switcher.hold()
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._fail("a forward pass could not be followed", error)
        if (caching := self._caching) is not None:
            self._try("whether samples come again cannot be told", lambda: caching.before_forward(args, kwargs))
        self._link.before_forward(args, kwargs)
        self._gradients.before_forward(args, kwargs)

    def _on_output(self, output: Any) -> None:
        """After a training forward pass."""
        self._shares.after_forward()
        self._gradients.after_forward(output)

    def _before_step(self) -> None:
        """Before an optimizer's step."""
        self._shares.before_step()
        self._gradients.before_step()

    def _on_step(self) -> None:
        """After the optimizer's step: the boundary between two training steps."""
        self._step += 1
        self._shares.end()
        prefix = self._switcher.prefix
        if self._caching is not None:
            self._caching.after_step()
            self._enter_cache_time(self._caching)
        self._ledger.end_step(prefix, self._switcher.frozen_share)
        with self._ledger.spend("hooks"):
            self._end_step(prefix)
        if (caching := self._caching) is not None:
            self._try(
                "frozen layers are not skipped",
                lambda: caching.follow(self.modules, self.prefix, self._cache_namespace()),
            )

    def _end_step(self, prefix: int) -> None:
        self._try_to_report(lambda: self._report_step(prefix))
        try:
            if self._is_uneven():
                pass
            elif (link := self._link.link) is not None:
                self._follow(link)
            elif self._link.is_due(self._step):
                with self._ledger.spend("start"):
                    self._start()
            elif self._config.plans:
                self._switch_by_plan()
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._fail("the session cannot go on", error)
            self._link.drop()
        self._link.end_step()
        self._scheduled = getattr(unwrapped(self._scheduler, "scheduler"), "last_epoch", None)
        if self._link.is_wanted and self._switcher.prefix == 0:  # it starts soon
            self._try_to_report(lambda: self._shares.begin(self.modules))

    # One step.

    def _follow(self, link: Link) -> None:
        plan = self._link.agree(self._step)
        if plan is not None:
            self._applied_plan = plan.plan_id
            self._switch(plan.frozen_prefix)
        self._try_to_report(lambda: self._report_boundary(link))
        self._link.look_ahead(self._step)

    def _is_uneven(self) -> bool:
        """In DistributedDataParallel.join() a rank without data takes no steps: the others would wait for it."""
        if not self._uneven and self._switcher.replicas.inside_join:
            self._uneven = True
            self._fail(
                "[UNEVEN_INPUTS] in DistributedDataParallel.join() some ranks take fewer steps than others, so "
                "nothing freezes or unfreezes from here on; give all of them as many batches, as "
                "DistributedSampler does",
                None,
            )
            self._link.drop()
        return self._uneven

    def _without_cache(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._caching is None else self._caching.aside()

    def _enter_cache_time(self, caching: Caching) -> None:
        spent = caching.spent_seconds
        self._ledger.add_spent("cache", spent - self._cache_spent)
        self._cache_spent = spent

    def _report_boundary(self, link: Link) -> None:
        self._bytes_reduced += self._switcher.gradient_bytes
        link.native.set_totals(self._switcher.frozen_share, self._bytes_reduced)
        if self._step % _TOTALS_EVERY == 0:
            link.native.set_account(self._ledger)
            if self._caching is not None:
                link.native.set_cache_totals(*self._caching.totals())
        self._reports.boundary(link, self._switcher.prefix)

    def _try(self, failure: str, action: Callable[[], None]) -> None:
        """`failure`: what to tell when it fails."""
        try:
            action()
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._fail(failure, error)

    def _try_to_report(self, action: Callable[[], None]) -> None:
        self._try("a step could not be reported", action)

    def _try_to_end(self, action: Callable[[], None]) -> None:
        self._try("the session did not end in order", action)

    def _switch_by_plan(self) -> None:
        prefix = dict(self._config.plans).get(self._step)
        if prefix is not None:
            self._switcher.share_group()
            self._switch(prefix)

    def _switch(self, prefix: int) -> None:
        with self._ledger.spend("switches"):
            switch = self._switcher.switch(prefix, self._step)
        if switch is None:
            return
        self._switches.append(switch)
        if self._link.link is not None:
            self._link.link.native.record_switch(switch.unfreeze, switch.ranks_identical)
        self._ledger.disturb()  # a compilation, perhaps

    # The link.

    def _start(self) -> None:
        """Analyses the model and starts the line to the controller. A collective."""
        group = self._switcher.share_group()
        self._switcher.allow_recompiles()
        if (
            self._rank() == 0
            and not self._reports.any_loss
            and self._config.policy in ("plasticity", "actnorm")
            and self._config.options.get("bootstrap", True)
        ):
            self._fail(
                "no loss is reported, so the bootstrapping stage lasts a fixed number of steps; call "
                "session.step(loss) after each optimizer.step()",
                None,
            )
        total_steps = self._total_steps()
        target = LinkTarget(
            self._model,
            self._spec,
            self._fixed,
            self.modules,
            self._config,
            self._switcher.job_id,
            total_steps,
            planned_rates(self._scheduler, total_steps, self._step, self._scheduled),
            self._rates.mean_over(self._step),
            self._shares,
            self._reports.any_loss,
            self._step,
            self._switcher.prefix,
            self._switches,
            self._applied_plan,
            self._link.recordings,
        )
        if not self._link.start(target, group):
            self._watch_wrappers()
        if (link := self._link.link) is not None:
            self._reorder(link)
            self._reports.correct_still(self._rates.zero_lr_prefix(self._rates.now(), self.modules))

    def _reorder(self, link: Link) -> None:
        """Takes the layer modules in the order in which the forward pass calls them."""
        if link.modules != self.modules and self.prefix == 0:
            self._switcher.take(link.modules)

    # Small things.

    def _cache_namespace(self) -> str:
        """Under which the cache keeps what is this training's, resumed or not: that of the checkpoint before, else the
        job's."""
        return self._switcher.cache_namespace or job_id_of(self._switcher.job_id, self._number)

    def _total_steps(self) -> int | None:
        return self._config.total_steps or total_steps_of(self._scheduler, self._step)

    def _end_with_process(self, finished: bool) -> None:
        """Steps that are still to do, as far as their number is known, may be done by a process that resumes: a handler
        of signals that writes a checkpoint may end this one as if all were well."""
        total = self._total_steps()
        self._end(finished, forget=finished and (total is None or self._step >= total))

    def _watch(self, module: nn.Module, hook: ForwardHook, output_hook: OutputHook) -> None:
        self._watched.add(id(module))
        self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        self._handles.append(module.register_forward_hook(output_hook))

    def _watch_wrappers(self) -> None:
        if self._network is not None:
            return
        for found in wrappers_of(self._model):
            if id(found) not in self._watched:
                self._watch(found, ForwardHook(self), OutputHook(self))

    def _adopt(self, modules: Any) -> None:
        """Takes a checkpoint's layer modules, which may have been found by watching a forward pass."""
        try:
            names = [
                (str(name), [str(unit) for unit in units], [str(entry) for entry in loose])
                for name, units, loose in modules
            ]
        except (TypeError, ValueError):
            raise EgeriaError(
                "CHECKPOINT_MISMATCH", "the state has no list of layer modules; load what state_dict() gave"
            ) from None
        same = [list(units) for _, units, _ in names] == [list(module.unit_names) for module in self.modules]
        if self._spec is not None and not same:
            raise EgeriaError(
                "CHECKPOINT_MISMATCH",
                "the checkpoint has other layer modules than `modules` says; "
                "give attach() what it was given when the checkpoint was written",
            )
        self._switcher.take(from_unit_names(self._model, names))
        self._fixed = True

    def _check_plans(self) -> None:
        for step, prefix in self._config.plans:
            if prefix >= len(self.modules):
                raise EgeriaError(
                    "BAD_CONFIG",
                    f"plans freezes {prefix} layer modules at step {step}, but the "
                    f"model has {len(self.modules)} and the last never freezes; give at most "
                    f"{len(self.modules) - 1}",
                )

    def _report_step(self, prefix: int) -> None:
        rates = self._rates.now()
        self._rates.end_step(rates)
        # Before the line starts, modules may be in another order than the model calls them.
        still = self._rates.zero_lr_prefix(rates, self.modules) if self._link.link is not None else 0
        self._reports.end_step(self._step, rates, still, self._link.link, prefix)

    def _rank(self) -> int:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank()
        return int(os.environ.get("RANK") or 0)

    def _fail(self, what: str, error: Exception | None) -> None:
        if what in self._told:
            return
        self._told.add(what)
        _logger.warning("egeria: %s%s", what, f": {error}" if error is not None else "")
        if error is not None:
            _logger.debug("egeria: %s", what, exc_info=error)


@atexit.register
def _close_all() -> None:
    """Ends what was never closed: in order, unless an exception ends the process."""
    finished = getattr(sys, "last_value", None) is None
    for session in list(_open.values()):
        session._end_with_process(finished)
    wait_for_collectives()
