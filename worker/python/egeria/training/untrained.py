"""No optimizer may hold some parameters that ask for a gradient: nothing trains them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from egeria import _native
from egeria.cache.pass_outcome import Pass, compare
from egeria.cache.prefix_cut import shadow_of, side_pass
from egeria.cache.refused import Refused
from egeria.cache.skip_checks import is_compiled
from egeria.freeze.gradient_watch import GradientWatch
from egeria.freeze.rank_agreement import all_agree, gather
from egeria.freeze.replicas import is_sharded
from egeria.freeze.switcher import Switcher
from egeria.freeze.wishes import has_gradient, set_gradient
from egeria.model.gradient_readers import makes_optimizers_later, reader_of_gradients, user_frame
from egeria.model.inputs import RootInputs
from egeria.model.live_objects import instances_of
from egeria.model.optimizers import TrainingOptimizers, parameters_of
from egeria.model.wrappers import wrappers_of
from egeria.tell_once import TellOnce

_DIFFERS = ("OUTPUT_DIFFERS", "GRADIENT_DIFFERS", "RANDOM")
# A rank finds that the gradients may be switched off, not yet, or not at all, or that the script trains by them itself.
_FREE, _LATER, _USED, _BY_HAND = range(4)
_STEPS_UNSEEN = 8
_MOST_RANKS = 2  # more add up a gradient in an order that depends on its place among all of them


class Untrained:
    """Parameters that ask for a gradient, and that no optimizer holds.

    They count as frozen by the script. Their gradients are switched off where nothing can tell, on all ranks at once:
    no code that may run reads them, nobody has read them in the first steps, and a pass without them gives the same to
    the bit. They are switched on again before the next pass once an optimizer gets them. Owned by the training thread.

    Attributes:
      ids: of all parameters that no optimizer holds which steps.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: TrainingOptimizers,
        switcher: Switcher,
        tell: TellOnce,
        trains_by_hand: Callable[[], None],
    ):
        """
        Args:
          model: without its wrappers.
          trains_by_hand: called once it is known, on all ranks, that the script changes weights by their gradients
            itself.
        """
        self.ids: frozenset[int] = frozenset()
        self._model = model
        self._optimizers = optimizers
        self._switcher = switcher
        self._tell = tell
        self._trains_by_hand = trains_by_hand
        self._held: list[tuple[int, int]] = []
        self._off: list[nn.Parameter] = []
        self._steps = 0  # since the optimizers hold what they do
        self._is_settled = False  # nothing is switched off until they hold something else
        self._watch: GradientWatch | None = None
        self._contents: Any = None
        self._obstacle: str | None = None  # empty: the pass under way has shown none; None: it has not come to that
        self._follow()

    def begin_pass(self) -> None:
        """A training forward pass is about to begin."""
        if self.ids:
            with self._tell.guard("parameters that no optimizer holds cannot be followed"):
                self._follow()
            if self._watch is not None:
                self._watch.begun = True

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A training forward pass of the whole model begins."""
        if self._is_due(self._steps + 1) and self._obstacle is None and self._wanted():
            self._obstacle = self._find_obstacle(args, kwargs) or ""

    def end_step(self, may_switch: Callable[[], bool]) -> None:
        """A step has ended. `may_switch` says whether the ranks are set alike. A collective at some steps."""
        self._follow()
        if not self.ids:
            return
        self._steps += 1
        if self._off:
            if self._switcher.group is None or self._steps % 64 == 0 or self._steps & (self._steps - 1) == 0:
                self._stop_if_read()
        elif self._is_due(self._steps) and (wanted := self._wanted()) and may_switch():
            self._decide(wanted)
        self._obstacle = None
        if self._watch is not None:
            self._watch.begun = False
            if self._steps == 1:
                self._contents = _native.ContentWatch([value.detach() for value in self._wanted()])

    def close(self) -> None:
        """Gradients are as the script asks."""
        self._is_settled = True
        self._wake(self._off)
        self._stop_watching()

    def _is_due(self, steps: int) -> bool:
        return not self._is_settled and not self._off and steps >= 2 and steps & (steps - 1) == 0

    def _wanted(self) -> list[nn.Parameter]:
        """Those that have a gradient now, which nothing takes."""
        return [value for value in self._model.parameters() if id(value) in self.ids and has_gradient(value)]

    def _follow(self) -> None:
        """Looks what the optimizers hold."""
        groups = [(id(optimizer), group) for optimizer in self._optimizers for group in optimizer.param_groups]
        held = [(optimizer, len(group["params"])) for optimizer, group in groups]
        if held == self._held:
            return
        self._held = held
        taken = parameters_of(self._optimizers)
        self.ids = frozenset(map(id, self._model.parameters())) - taken
        self._steps, self._is_settled, self._obstacle = 0, False, None
        self._take(taken)
        if not self._off:
            self._begin_watching(self._wanted())

    def _take(self, ids: set[int]) -> None:
        """An optimizer has these. The script does so on all ranks before the same pass."""
        with self._tell.guard("parameters that an optimizer has got do not train"):
            if self._watch is not None:
                self._watch.forget(ids)
            self._wake([value for value in self._off if id(value) in ids])

    def _wake(self, parameters: Sequence[nn.Parameter]) -> None:
        if parameters:
            woken = set(map(id, parameters))
            self._off = [value for value in self._off if id(value) not in woken]
            self._switcher.show(parameters)

    def _begin_watching(self, wanted: Sequence[nn.Parameter]) -> None:
        self._stop_watching()
        if wanted:
            self._watch = GradientWatch(wanted, self._optimizers, self._take)

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = self._contents = None

    # The ranks decide together.

    def _decide(self, wanted: Sequence[nn.Parameter]) -> None:
        try:
            mine = self._judge(wanted)
        except Exception as error:  # pylint: disable=broad-exception-caught  # the other ranks wait for this one
            mine = _USED, f"whether something reads them cannot be told ({type(error).__name__})"
        found = gather(self._switcher.share_group(), mine)
        verdict, why = max(found, key=lambda entry: entry[0])
        names = {id(value): name for name, value in self._model.named_parameters()}
        what = f"'{names[id(wanted[0])]}'" + (f" and {len(wanted) - 1} more parameters" if len(wanted) > 1 else "")
        if verdict == _FREE and self._switcher.hide(wanted):
            self._off = list(wanted)
            self._watch.counts_absent = True
            self._tell.note(
                f"{what} ask for gradients and are in no optimizer: they count as frozen by the script, and their "
                "gradients, which nothing reads, are not computed"
            )
            return
        if verdict == _LATER:
            return
        self._is_settled = True
        self._stop_watching()
        if verdict == _BY_HAND:
            self.ids = frozenset()
            self._tell(
                f"[PARAMETER_WITHOUT_OPTIMIZER] {what} are in no optimizer, and the script moves them itself ({why}), "
                "so nothing freezes in this training; let an optimizer of torch.optim hold them"
            )
            self._trains_by_hand()
        elif verdict == _USED:
            self._tell(
                f"[PARAMETER_WITHOUT_OPTIMIZER] {what} ask for gradients and are in no optimizer, so they count as "
                f"frozen by the script. Their gradients are still computed, and the cache does not serve them, since "
                f"{why}. Call requires_grad_(False) on them if nothing needs these gradients"
            )

    def _judge(self, wanted: Sequence[nn.Parameter]) -> tuple[int, str]:
        if (watch := self._watch) is None:  # the script has made them ask for gradients since the last look
            self._begin_watching(wanted)
            return _LATER, ""
        if watch.reader is not None:
            moved = self._contents is not None and (self._contents.touched() or not self._contents.unchanged())
            return (_BY_HAND if moved else _USED), f"{watch.reader} reads them"
        if self._obstacle is None:
            has_any = any(value.grad is not None for value in wanted)
            return (_USED if has_any and self._steps >= _STEPS_UNSEEN else _LATER), "the model is not called as a whole"
        if self._obstacle:
            return _USED, self._obstacle
        if not parameters_of(_all_optimizers()).isdisjoint(map(id, wanted)):
            return _LATER, ""
        is_clear = watch.are_cleared or watch.clears_first(user_frame(sys._getframe()))
        if not is_clear and makes_optimizers_later():
            return _USED, "an optimizer may get them later, with all that has gathered in them until then"
        return _FREE, ""

    def _stop_if_read(self) -> None:
        assert self._watch is not None
        if all_agree(self._switcher.group, self._watch.reader is None):
            return
        self._tell(
            f"[PARAMETER_WITHOUT_OPTIMIZER] {self._watch.reader or 'another rank'} has read gradients of parameters "
            "that are in no optimizer, which were switched off as nothing seemed to read them; they are computed from "
            "here on. Call requires_grad_(False) on these parameters, or read their gradients from the first step on"
        )
        self._is_settled = True
        self._wake(self._off)
        self._stop_watching()

    # One rank looks for itself.

    def _find_obstacle(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        group = self._switcher.replicas.process_group
        if is_sharded(self._model):
            return "the model is sharded"
        if group is not None and dist.get_world_size(group) > _MOST_RANKS:
            return f"over {_MOST_RANKS} ranks would add up the other gradients in another order"
        if any(map(is_compiled, (*self._model.modules(), *wrappers_of(self._model)))) or _has_compiled():
            return "compiled code would round otherwise"
        if self._is_hooked():
            return "a hook of the backward pass may see them"
        if (reader := reader_of_gradients(self._model)) is not None:
            return reader
        try:
            compare(self._pass(args, kwargs, off=False), self._pass(args, kwargs, off=True), self._model)
        except Refused as error:
            does = "gives something else" if error.name in _DIFFERS else "cannot be tried"
            return f"a pass without them {does} ({error.name})"
        except Exception as error:  # pylint: disable=broad-exception-caught  # whatever a model's code raises
            return f"a pass without them cannot be tried ({type(error).__name__})"
        return None

    def _is_hooked(self) -> bool:
        modules = list(self._model.modules())
        hooks = [
            *(module._backward_hooks for module in modules),
            *(module._backward_pre_hooks for module in modules),
            *(value._backward_hooks for value in self._wanted()),
            *(value._post_accumulate_grad_hooks for value in self._wanted()),
            nn.modules.module._global_backward_hooks,
            nn.modules.module._global_backward_pre_hooks,
        ]
        return any(hooks)

    def _pass(self, args: tuple[Any, ...], kwargs: dict[str, Any], off: bool) -> Pass:
        """A pass of a shadow, with the gradients of these switched off before it or only behind it."""
        inputs = RootInputs(args, kwargs, sys.maxsize)
        shadow = shadow_of(self._model)
        wanted = set(map(id, self._wanted()))
        named = dict(self._model.named_parameters(remove_duplicate=False))
        copies = [value for name, value in shadow.model.named_parameters() if id(named[name]) in wanted]
        with side_pass(shadow) as twin:
            for value in copies if off else ():
                set_gradient(value, False)
            output = inputs.call(twin)
        for value in copies:
            set_gradient(value, False)
        return Pass.after(shadow, output)


def _all_optimizers() -> list[Optimizer]:
    return [one for one in instances_of(Optimizer) if "param_groups" in vars(one)]


def _has_compiled() -> bool:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])
