"""The ranks compare their settings before any of them calls a collective of Egeria's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from egeria import _native
from egeria._library import __version__
from egeria.config import Config
from egeria.errors import EgeriaError
from egeria.freeze.replicas import Replicas
from egeria.model.modules import LayerModule
from egeria.tell_once import TellOnce

# A rank that has attached has posted long before this: only one without Egeria keeps the others waiting.
_PATIENCE_SECONDS = 30.0

# Settings of which rank 0's hold for all ranks; in any other one a difference lets all of them train plainly.
_OF_RANK_0 = (
    "policy",
    "options",
    "observe",
    "total_steps",
    "training_job",
    "reference",
    "frozen_forward",
    "budget",
    "on_divergence",
    "batch_size",
)
# The setting that says whether a rank can freeze; one that is switched off has nothing to say about the rest.
_FOLLOWED = "controller"


class SettingsAgreement:
    """The settings of a training's ranks, compared once. Owned by the training thread.

    Each rank posts its settings as soon as there is a process group, also one whose session is switched off.
    is_reached() waits for the ranks that train the model, for a limited time. Then either all of them follow the same
    settings, or all of them train plainly.
    """

    def __init__(self, number: int, settings: Callable[[], dict[str, str]], tell: TellOnce):
        """`number` is the session's in this process, the same on all ranks; `settings` gives this rank's."""
        self._name = f"egeria/attach/{number}"
        self._settings = settings
        self._tell = tell
        self._exchange: Any = None
        self._reached: bool | None = None  # None: the ranks have not compared themselves

    def post(self) -> None:
        """Tells this rank's settings, once there is a process group. It waits for nobody.

        Raises:
          EgeriaError: [NO_STORE].
        """
        if self._exchange is None and dist.is_initialized() and dist.get_world_size() > 1:
            self._exchange = _native.SettingsExchange(dist.group.WORLD.group_name, self._name)
            self._exchange.post(self._settings())

    def is_reached(self, group: dist.ProcessGroup | None, config: Config) -> bool:
        """Whether the ranks of `group` may freeze; where not, which is the same on all of them, it is told why.

        The first call with a group compares their settings. It sets those of `config` of which rank 0's hold for all.
        It tells what differed, on rank 0 and on the rank that had something else. The controller's address holds for
        the ranks of rank 0's node.
        """
        if self._reached is None and group is not None:
            self._reached = False
            try:
                for difference in self._finish(group, config):
                    self._tell(f"[SETTINGS_DIFFER] {difference}; all ranks take what rank 0 has")
                self._reached = True
            except Exception as error:  # pylint: disable=broad-exception-caught  # never in the way
                self._tell(f"nothing freezes in this training, since its ranks are not set alike: {error}")
        return self._reached is not False

    def _finish(self, group: dist.ProcessGroup, config: Config) -> list[str]:
        """Raises EgeriaError on all ranks alike: [RANK_MISSING], [SETTINGS_DIFFER]; or [NO_STORE]."""
        self.post()
        ranks = dist.get_process_group_ranks(group)
        first, differences, address = self._exchange.finish(ranks, _PATIENCE_SECONDS)
        grave = [found for found in differences if found.setting not in (*_OF_RANK_0, _native.CONTROLLER_ADDRESS)]
        if apart := [found for found in grave if found.setting == _FOLLOWED] or grave:
            raise EgeriaError("SETTINGS_DIFFER", _listed([str(found) for found in apart]))
        for name in _OF_RANK_0:
            setattr(config, name, json.loads(first[name]))
        config.controller = address or config.controller
        concerned = dist.get_rank() == ranks[0]
        return [str(found) for found in differences if concerned or found.rank == dist.get_rank()]


def post_when_possible(agreement: SettingsAgreement, tell: TellOnce) -> None:
    """Posts for a session that is switched off: as soon as there is a process group, or after the first step."""

    def post(*_: Any) -> None:
        handle.remove()
        with tell.guard("other ranks cannot be told that Egeria is off on this one"):
            agreement.post()

    handle = register_optimizer_step_post_hook(post)  # on no optimizer, which may be copied
    if dist.is_initialized():
        post()


def settings_of(
    config: Config, replicas: Replicas, modules: Sequence[LayerModule], untrained: Container[int] = ()
) -> dict[str, str]:
    """Returns what must not differ between the ranks of a training, as texts by name. `untrained`: ids of parameters
    that no optimizer holds."""
    settings = {name: json.dumps(getattr(config, name), default=str, sort_keys=True) for name in _OF_RANK_0}
    if not config.enabled:
        followed = "nothing (enabled is off)"
    elif config.plans:
        followed = "plans " + ", ".join(f"{step}:{prefix}" for step, prefix in config.plans)
    else:
        followed = "a controller" if config.address() or config.brings_controller() else "no controller"
    held_by_none = [name for name, value in replicas.root.named_parameters() if id(value) in untrained]
    return {
        **settings,
        _FOLLOWED: followed,
        _native.CONTROLLER_ADDRESS: config.address() or "",
        "pin_frozen_modes": json.dumps(config.pin_frozen_modes),
        "versions": f"egeria {__version__}, torch {torch.__version__.partition('+')[0]}",
        "modules": _digest([module.names() for module in modules], f"{len(modules)} layer modules"),
        "model": _digest(
            [
                (name, tuple(parameter.shape), str(parameter.dtype))
                for name, parameter in replicas.root.named_parameters()
            ],
            type(replicas.root).__name__,
        ),
        "untrained": _digest(held_by_none, f"{len(held_by_none)} parameters in no optimizer"),
    }


def _digest(value: Any, shown: str) -> str:
    return f"{shown} ({hashlib.sha256(repr(value).encode()).hexdigest()[:12]})"


def _listed(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - 4} more" if len(texts) > 4 else ""
    return "; ".join(texts[:4]) + more
