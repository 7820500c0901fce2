"""The runs of a task and seed: what is compared with what."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.harness import schedules
from bench.harness.errors import BenchError
from bench.harness.task import Task

# Without options of its own, `schedule` is this clock: (share of the steps, share of the layer modules).
CLOCK = ((0.80, 0.5), (0.85, 2 / 3), (0.90, 1.0))

# Options of a run that are not its policy's: which backends the controller's reference engine may use; when the cache
# is used, as Config.cache_use says it, or "none"; and what multiplies all learning rates.
_REFERENCE_BACKENDS = "reference_backends"
_CACHE = "cache"
PEAK = "peak"
LAYER_DECAY = "layer_decay"
_NOT_OF_POLICIES = (_REFERENCE_BACKENDS, _CACHE, PEAK, LAYER_DECAY)
_USUAL_DECAY = 0.9

# Stands for a run's share of the steps where egeria.reinvest() plans them, for a policy that follows a clock.
PLANNED = 0.0
_CLOCKS = ("auto", "staged", "schedule", "finetune")

# Controls take the time share of the policy that they stand against in steps of this size, so that two policies
# of about the same time share their controls.
_SHARE_STEP = 0.01

# Share of the steps before which a policy cannot act, less what it needs to look around. Policies that are not here
# may act from the first step on.
_FIRST_ACT = {"auto": 0.70, "staged": 0.70, "snr": 0.30}
# Where rates fall smoothly, `auto` may freeze modules that take time and learn next to nothing from here on.
_FIRST_EARLY_ACT = 0.35
# Trainings of so many steps and more may read gradients for that from a tenth of their steps on.
_LEAST_STEPS_OF_EARLY_READINGS = 2_000
_FIRST_EARLY_READING = 0.09


class Kind(str, enum.Enum):
    """The purpose of a run."""

    PLAIN = "plain"  # without Egeria
    POLICY = "policy"
    EARLY = "early"  # the negative control
    SHORT = "short"  # same-time control: the whole schedule in fewer steps
    DROP = "drop"  # same-time control of older records: fewer steps in the low-rate phase
    HORIZON = "horizon"  # same-time control: as `short`, at the peak rate that the sweep finds best for that length
    DROP_RAISED = "drop-raised"  # same-time control: fewer steps in the low-rate phase, at rates that make up for them
    DECAY = "decay"  # control of fine-tuning: layer-wise rate decay
    SWEEP = "sweep"  # the plain run at another peak rate


@dataclasses.dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
      label: unique among the runs of a task and seed.
      policy: its name for egeria.Config, where `kind` is POLICY.
      options: the policy's constants. In `schedule`, `module_share` may stand for `frozen_prefix`;
        "reference_backends", a list of names, is the controller's, and "cache" is "auto", "always" or "none". Two
        options are for runs without a policy, too: "peak" multiplies the learning rates, and "layer_decay" those of
        each layer module once for each one behind it.
      share: steps, as a share of the plain run's; PLANNED until the task is known.
      first_act: share of the steps before which the run is the plain one, which it may be started from.
    """

    label: str
    kind: Kind
    policy: str = "none"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    share: float = 1.0
    first_act: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"kind": self.kind.value, "options": dict(self.options)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Run:
        return cls(**{**fields, "kind": Kind(fields["kind"])})


PLAIN = Run("plain", Kind.PLAIN)
EARLY = Run("early", Kind.EARLY, first_act=Task.too_early[1])


def early_run(task: Task) -> Run:
    """The negative control of a task."""
    share, at = task.too_early
    if (share, at) == Task.too_early:
        return EARLY
    return dataclasses.replace(EARLY, options={"module_share": share, "at": at}, first_act=at)


def own_options(policy: str | None) -> dict[str, Any]:
    """The options of a policy's run for which none are given."""
    if policy != "schedule":
        return {}
    return {"entries": [{"fraction": at, "module_share": share} for at, share in CLOCK]}


def policy_run(label: str, policy: str, options: Mapping[str, Any], reinvest: float = 1.0) -> Run:
    """A run of a policy. `reinvest`: its number of steps over the plain run's, or PLANNED.

    Raises:
      BenchError: [NO_PLAN] PLANNED, and the policy follows no clock.
    """
    options = {**own_options(policy), **options}
    first = _FIRST_ACT.get(policy, 0.0)
    if policy in ("auto", "snr"):
        first = min(first, max(0.0, options.get("start", 1.0) - 0.1))
    elif policy == "staged" and options.get("area"):
        first = 0.0  # where in the steps that is depends on the schedule
    elif policy == "staged" and "begin" in options:
        first = min(first, max(0.0, options["begin"] - 0.1))
    elif policy == "schedule":
        first = max(0.0, min(entry["fraction"] for entry in options["entries"]) - 0.02)
    if reinvest == PLANNED:
        if policy not in _CLOCKS:
            raise BenchError(
                "NO_PLAN",
                f"{label} follows no clock, so that what it will save is not known; give a "
                "factor, such as --reinvest 1.06",
            )
        return Run(f"{label}+planned", Kind.POLICY, policy, dict(options), PLANNED)
    if reinvest != 1.0:
        return Run(f"{label}+{100 * (reinvest - 1):.4g}%", Kind.POLICY, policy, dict(options), reinvest)
    return Run(label, Kind.POLICY, policy, dict(options), first_act=first)


def for_task(run: Run, task: Task) -> Run:
    """The run as it may start in this task: what a policy may do how early depends on the schedule and its length."""
    if run.policy != "auto" or run.options.get("early_share", 1) <= 0 or not schedules.falls_smoothly(task.rate):
        return run
    reads = task.profile.steps >= _LEAST_STEPS_OF_EARLY_READINGS
    return dataclasses.replace(run, first_act=min(run.first_act, _FIRST_EARLY_READING if reads else _FIRST_EARLY_ACT))


def control_runs(time_ratio: float, best_peak: Callable[[float], float | None]) -> list[Run]:
    """The same-time controls of a run that took `time_ratio` of the plain run's time; none where it saved nothing,
    since the plain run is then its control. Where the task's own rate is best, `horizon` would be `short`, and is left
    out.

    Args:
      best_peak: what multiplies the task's rates best in this share of the steps; None: that is not known.
    """
    share = control_share(time_ratio)
    if share >= 1.0:
        return []
    found = [Run(f"{kind.value} {share:.2f}", kind, share=share) for kind in (Kind.SHORT, Kind.DROP_RAISED)]
    peak = best_peak(share)
    if peak not in (None, 1.0):
        found.append(Run(f"horizon {share:.2f}", Kind.HORIZON, options={PEAK: peak}, share=share))
    return found


def decay_run() -> Run:
    """Fine-tuning as it is common: learning rates get smaller from the head to the front, at full length."""
    return Run(f"decay {_USUAL_DECAY}", Kind.DECAY, options={LAYER_DECAY: _USUAL_DECAY})


def control_share(time_ratio: float) -> float:
    """The share of the steps that the controls of such a run take."""
    return max(_SHARE_STEP, round(round(time_ratio / _SHARE_STEP) * _SHARE_STEP, 6))


def controller_flags(run: Run) -> list[str]:
    """The options of a run that go to the command line of its controller."""
    backends = run.options.get(_REFERENCE_BACKENDS)
    return [] if backends is None else ["--reference-backends", ",".join(backends)]


def cache_use(run: Run) -> str | None:
    """When a run uses the cache, as egeria.Config takes it; None: it has none."""
    use = run.options.get(_CACHE, "auto")
    return use if run.kind is Kind.POLICY and use != "none" else None


def positions(run: Run, task: Task) -> list[float]:
    """The steps of the plain schedule that the run takes."""
    steps = task.profile.steps
    if run.kind in (Kind.DROP, Kind.DROP_RAISED):
        return schedules.dropped(steps, run.share, task.rate)
    return schedules.plain(steps) if run.share == 1.0 else schedules.resized(steps, run.share)


def rates(run: Run, task: Task) -> list[float]:
    """The learning rate at each step of the run, as a factor of the task's own peak."""
    steps = task.profile.steps
    if run.kind is Kind.DROP_RAISED:
        return schedules.raised(steps, run.share, task.rate)
    peak = run.options.get(PEAK, 1.0)
    return [peak * task.rate(position / steps) for position in positions(run, task)]


def frozen_prefix(module_share: float, modules: int) -> int:
    """How many of the layer modules are that share of them; the last never freezes."""
    return max(1, min(modules - 1, round(module_share * modules)))


def resolved_options(run: Run, modules: int) -> dict[str, Any]:
    """The options as egeria.Config takes them, for a model with so many layer modules."""
    options = {name: value for name, value in run.options.items() if name not in _NOT_OF_POLICIES}
    if run.policy == "schedule":
        options["entries"] = [
            {"fraction": entry["fraction"], "frozen_prefix": frozen_prefix(entry["module_share"], modules)}
            if "module_share" in entry
            else dict(entry)
            for entry in options["entries"]
        ]
    return options


def parse_variants(texts: Sequence[str]) -> list[tuple[str, str, dict[str, Any]]]:
    """(label, policy, options) of each "LABEL=POLICY:JSON"."""
    found = []
    for text in texts:
        label, equals, rest = text.partition("=")
        policy, _, constants = rest.partition(":")
        try:
            options = json.loads(constants or "{}")
        except ValueError:
            options = None
        if not (label and equals and policy and isinstance(options, dict)):
            raise BenchError(
                "BAD_VARIANT",
                f"--variant {text!r} is not LABEL=POLICY:JSON; write it like 'wide=plasticity:{{\"window\": 20}}'",
            )
        found.append((label, policy, options))
    return found
