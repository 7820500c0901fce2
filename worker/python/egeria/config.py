"""Config holds what a user can say about a session."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from egeria import _native
from egeria.errors import EgeriaError

# Every policy with its constants, as C++ declares them (common/policy/policy_config.cc).
_POLICIES: dict[str, dict[str, Any]] = {policy["name"]: policy for policy in json.loads(_native.policies())}


def _wanted(policy: str, constant: str, value: Any) -> str | None:
    """Says in words what the value of a policy's constant must be; returns None where this one fits."""
    return _native.check_policy_option(policy, constant, json.dumps(value, default=str))


_UNITS = {None: 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_CHOICES = {
    "policy": tuple(_POLICIES),
    "reference": ("auto", "controller", "local"),
    "cache_precision": ("exact", "fp16", "bf16", "int8"),
    "cache_compression": ("auto", "none", "lz4", "zstd"),
    "cache_use": ("auto", "always"),
    "frozen_forward": ("exact", "fused", "bf16"),
    "on_divergence": ("stop", "resync"),
}

_TRUE = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclasses.dataclass
class Config:
    """How a session is to behave. Everything has a default that works.

    Attributes:
      controller: The address of egeria-controller, "host:port" or "unix:/path". "none" trains without one, so that
        nothing is measured or frozen. None takes EGERIA_CONTROLLER, which `egeria-run` sets, or else the job brings its
        own. At a Unix socket this user, root or one of EGERIA_TRUSTED_USERS must listen.
      policy: What decides: "auto", "staged", "plasticity", "finetune", "gradnorm", "actnorm", "schedule", "snr" or
        "none" (docs/reference/policies.md).
      pretrained: True says that the model starts from trained weights and that samples come again as they were. The
        policy "auto" is then "finetune".
      options: The policy's constants, such as {"interval_steps": 50}. Missing ones take their defaults.
      observe: True makes the policy decide and report without changing the training.
      total_steps: The optimizer steps of the whole training, where they are known. They set how often readings are
        taken.
      training_job: A name for people and for the metrics. None takes the name of the model's class.
      plans: Switches (step, frozen prefix) that are made without a controller, the same on all ranks.
      reference: Who runs the reference model: "controller", "local" (the training process), or "auto", which leaves to
        the training process what the controller cannot run.
      metrics: The "host:port" at which each rank serves Prometheus metrics. Rank r of a node serves port + r. A rank
        whose port is taken trains without metrics.
      cache: The address of the node's egeria-cache, "unix:/path", or its folder, "/path", where the job starts or
        adopts one. "none" trains without a cache. None takes EGERIA_CACHE, or else the user's folder where the job
        brings its controller.
      cache_use: "auto" uses the cache as long as that saves time by measurement, "always" leaves the measurement out.
      cache_precision: How activations are kept: "exact", or rounded to "fp16", "bf16" or "int8". Rounding changes the
        training.
      cache_compression: The lossless compression of exact activations: "none", "lz4", "zstd", or "auto", which tries
        "zstd" once half of the quota is full and keeps it if that saves a fourth.
      cache_job_quota: The disk space that the cache gives this job, in bytes or as a text such as "8GiB". The cache's
        own quota_per_job holds where it is less, or where this is None.
      frozen_forward: How frozen layers run on a CPU where the cache does not serve: "exact", "fused" (their inference
        form in float32, which differs in the last bits) or "bf16". The latter two change the training.
      pin_frozen_modes: True holds layers that the script has frozen in evaluation mode, as Egeria does with those that
        it freezes. Their dropout is off, and their batch normalisation keeps its statistics.
      budget: The part of the training's time to save, between 0 and 1. No more freezes than that takes. It needs
        total_steps. None sets no bound.
      on_divergence: What happens where the ranks' parameters differ: "stop" raises [RANKS_DIFFER] on every rank at the
        same step, "resync" gives all ranks those of rank 0.
      batch_size: The samples of a reading, which is the policy's constant of this name (32 where neither is given).
      enabled: False makes a session that does nothing.
    """

    controller: str | None = None
    policy: str = "auto"
    pretrained: bool = False
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    observe: bool = False
    total_steps: int | None = None
    training_job: str | None = None
    plans: Sequence[tuple[int, int]] = ()
    reference: str = "auto"
    metrics: str | None = None
    cache: str | None = None
    cache_use: str = "auto"
    cache_precision: str = "exact"
    cache_compression: str = "auto"
    cache_job_quota: int | str | None = None
    frozen_forward: str = "exact"
    pin_frozen_modes: bool = False
    budget: float | None = None
    on_divergence: str = "stop"
    batch_size: int | None = None
    enabled: bool = True

    def __post_init__(self) -> None:
        if self.pretrained and self.policy == "auto":
            self.policy = "finetune"
        self.validate()

    @classmethod
    def from_env(cls, **overrides: Any) -> Config:
        """A Config whose fields come from the environment where `overrides` does not give them.

        EGERIA_TRAINING_JOB, EGERIA_METRICS, EGERIA_OBSERVE (1 or 0), EGERIA_ENABLED (1 or 0), EGERIA_POLICY,
        EGERIA_POLICY_OPTIONS (a JSON object), EGERIA_PRETRAINED (1 or 0), EGERIA_TOTAL_STEPS, EGERIA_REFERENCE,
        EGERIA_CACHE, EGERIA_CACHE_USE, EGERIA_CACHE_PRECISION, EGERIA_CACHE_COMPRESSION, EGERIA_CACHE_JOB_QUOTA
        (8GiB), EGERIA_FROZEN_FORWARD, EGERIA_PIN_FROZEN_MODES (1 or 0), EGERIA_BUDGET (0.2 or 20%),
        EGERIA_ON_DIVERGENCE; and, as without this, EGERIA_CONTROLLER where neither a controller nor plans are
        given.
        """
        values: dict[str, Any] = {}
        for field, convert in FROM_ENVIRONMENT.items():
            variable = f"EGERIA_{field.upper()}"
            if text := os.environ.get(variable):
                values[field.removeprefix("policy_")] = convert(variable, text)
        return cls(**{**values, **overrides})

    def address(self) -> str | None:
        """The controller's address; None where none is named."""
        address = self._named_controller()
        return None if address in ("", "none") or self.plans else address

    def brings_controller(self) -> bool:
        """Whether nobody names a controller, so that the job brings its own."""
        return self.enabled and not self.plans and not self._named_controller()

    def cache_address(self) -> str | None:
        """The cache's address; None where there is to be none."""
        if self.brings_cache():
            return _native.cache_address(self._named_cache() or _native.cache_folder())
        address = self._named_cache()
        return None if address in (None, "", "none") or not self.enabled or self.observe else address

    def brings_cache(self) -> bool:
        """Whether the job starts or adopts the cache of a folder."""
        named = self._named_cache()
        wanted = self.brings_controller() if named is None else named.startswith("/")
        return wanted and self.enabled and not self.observe

    def _named_controller(self) -> str:
        return os.environ.get("EGERIA_CONTROLLER", "") if self.controller is None else self.controller

    def _named_cache(self) -> str | None:
        return os.environ.get("EGERIA_CACHE") if self.cache is None else self.cache

    def cache_job_bytes(self) -> int:
        """cache_job_quota in bytes; 0 where the cache's own counts."""
        return 0 if self.cache_job_quota is None else _bytes(self.cache_job_quota)

    def cache_form(self) -> str:
        """How the cache is to keep activations, as _native.ActivationCache has it."""
        if self.cache_precision != "exact":
            return self.cache_precision
        return "exact" if self.cache_compression == "none" else self.cache_compression

    def check_plans(self, modules: int) -> None:
        """Raises EgeriaError [BAD_CONFIG] where `plans` freezes more than all layer modules but the last."""
        for step, prefix in self.plans:
            if prefix >= modules:
                raise _bad(
                    f"plans freezes {prefix} layer modules at step {step}, but the model has {modules} and the last "
                    f"never freezes; give at most {modules - 1}"
                )

    def probe_batch(self) -> int:
        """Samples of a reading."""
        return int(self.batch_size or self.options.get("batch_size") or 32)

    def reads_plasticity(self) -> bool:
        """Whether the policy wants readings of plasticity, for which there must be a reference model."""
        return _POLICIES[self.policy]["reads_plasticity"]

    def times_first_steps(self) -> bool:
        """Whether the policy freezes within the first steps, by what they took."""
        return _POLICIES[self.policy]["times_first_steps"]

    def policy_json(self, batch_size: int | None = None) -> str:
        """egeria.v1.PolicyConfig as JSON; `batch_size` replaces the number of samples of a reading."""
        constants = dict(self.options)
        if self.reads_plasticity():
            constants["batch_size"] = batch_size or self.probe_batch()
        return json.dumps({self.policy: constants})

    def validate(self) -> None:
        """Raises EgeriaError [BAD_CONFIG] for an unknown or contradictory value, saying what would fit."""
        for field, choices in _CHOICES.items():
            if getattr(self, field) not in choices:
                raise _bad(f"{field} is {getattr(self, field)!r}; it is one of {', '.join(map(repr, choices))}")
        if not isinstance(self.options, Mapping):
            raise _bad(f"options is a {type(self.options).__name__}; give a dict of the policy's constants")
        known = [constant["name"] for constant in _POLICIES[self.policy]["constants"]]
        for name, value in self.options.items():
            if name not in known:
                have = ", ".join(known) if known else "none"
                raise _bad(f"the policy '{self.policy}' has no constant {name!r}; it has: {have}")
            wanted = _wanted(self.policy, name, value)
            if wanted is not None:
                raise _bad(f"options[{name!r}] is {value!r}; it must be {wanted}")
        if self.policy == "schedule" and "entries" not in self.options:
            raise _bad("the policy 'schedule' needs options={'entries': [{'fraction': 0.5, 'frozen_prefix': 2}]}")
        if self.cache_precision != "exact" and self.cache_compression not in ("auto", "none"):
            raise _bad("cache_compression is for exact activations; leave it out with another cache_precision")
        self._validate_numbers()
        self._validate_plans()

    def _validate_numbers(self) -> None:
        wanted = _wanted("plasticity", "batch_size", self.batch_size)
        if self.batch_size is not None and wanted is not None:
            raise _bad(f"batch_size is {self.batch_size!r}; it must be {wanted}")
        if self.batch_size is not None and self.options.get("batch_size", self.batch_size) != self.batch_size:
            raise _bad("batch_size and options['batch_size'] differ; give one of them")
        steps = self.total_steps
        if steps is not None and not (isinstance(steps, int) and steps is not True and 1 <= steps <= 2**53):
            raise _bad(
                f"total_steps is {steps!r}; it must be an integer from 1 to {2**53:,}, or None where it is not known"
            )
        self.cache_job_bytes()
        if self.budget is not None and not (isinstance(self.budget, (int, float)) and 0 < self.budget < 1):
            raise _bad(f"budget is {self.budget!r}; it must be a part of the time, over 0 and under 1, or None")
        if self.metrics is not None and not self.metrics.rpartition(":")[2].isdigit():
            raise _bad(f"metrics is {self.metrics!r}; it must be 'host:port', such as '127.0.0.1:9400'")
        if self.cache_address() is not None and not self.cache_address().startswith("unix:/"):
            raise _bad(
                f"cache is {self.cache_address()!r}; it must be 'unix:/path', where egeria-cache listens, its folder, "
                "'/path', or 'none'"
            )

    def _validate_plans(self) -> None:
        last = 0
        for plan in self.plans:
            if (
                not isinstance(plan, (list, tuple))
                or len(plan) != 2
                or not all(isinstance(x, int) for x in plan)
                or plan[0] <= last
                or plan[1] < 0
            ):
                raise _bad(f"plans has {plan!r}; its entries are (step, frozen prefix), in the order of rising steps")
            last = plan[0]
        if self.plans and self.controller not in (None, "none"):
            raise _bad("plans are for runs without a controller; leave one of the two out")
        if self.plans and self.observe:
            raise _bad("plans switch at given steps, observe switches nothing; leave one of the two out")


def _bad(text: str) -> EgeriaError:
    return EgeriaError("BAD_CONFIG", text)


def _boolean(variable: str, text: str) -> bool:
    if text.lower() not in _TRUE:
        raise _bad(f"{variable} is {text!r}; it must be 1 or 0")
    return _TRUE[text.lower()]


def _whole(variable: str, text: str) -> int:
    if not text.isdigit():
        raise _bad(f"{variable} is {text!r}; it must be a number of steps")
    return int(text)


def _part(variable: str, text: str) -> float:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise _bad(f"{variable} is {text!r}; it must be a part, such as 0.2 or 20%") from None


def _bytes(size: Any) -> int:
    """The bytes that a number or a text such as "8GiB" says."""
    found = re.fullmatch(r"(\d+) ?([KMGT]iB)?", str(size)) if not isinstance(size, bool) else None
    bytes_ = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 2**20 <= bytes_ < 2**63:
        raise _bad(
            f"cache_job_quota is {size!r}; it must be a number of bytes or a text such as '8GiB', at least 1MiB, or "
            "None for the cache's own"
        )
    return bytes_


def _object(variable: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _bad(f"{variable} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _bad(f"{variable} must be a JSON object, such as '{{\"window\": 10}}'")
    return value


_TEXTS = ("training_job", "metrics", "policy", "reference", "frozen_forward", "on_divergence")
_CACHE_TEXTS = ("cache", "cache_use", "cache_precision", "cache_compression", "cache_job_quota")
# How from_env() reads the variable EGERIA_<FIELD> of each field.
FROM_ENVIRONMENT = {
    **dict.fromkeys(_TEXTS + _CACHE_TEXTS, lambda variable, text: text),
    "observe": _boolean,
    "enabled": _boolean,
    "pretrained": _boolean,
    "pin_frozen_modes": _boolean,
    "total_steps": _whole,
    "budget": _part,
    "policy_options": _object,
}
