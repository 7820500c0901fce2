"""A Cut is the border behind a frozen prefix: which submodules are skipped, and which tensors cross it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from egeria.cache.dataflow import tensors_in
from egeria.cache.forward_patches import ForwardPatches
from egeria.cache.model_call import Call
from egeria.cache.other_forms import Forms
from egeria.cache.refused import Refused
from egeria.cache.stand_in_outputs import Output
from egeria.model.shadow import NoShadow, Shadow


class _Reached(BaseException):
    """Ends a pass when all that crosses the cut is there. It is no Exception: a model that catches those must not see
    an error in it."""


@dataclasses.dataclass
class Cut:
    """Describes a frozen prefix in calls of one shape.

    Attributes:
      entries: the submodules through which the prefix is entered, in the order of their calls; none is inside
        another. They are what is skipped.
      names: the entries' names.
      outputs: what each entry returns.
      live: those among them whose outputs are used behind the cut.
      dense: stand-ins need memory of their own.
      decides: before or in the frozen layers, a yes or no about the batch is asked for (Call.conditions()).
      unread: the numbers of the call's arguments on whose content nothing depends that crosses the cut.
      forms: submodules are computed in these where what crosses the cut is computed to be kept; None: as they are.
      form: what forms.used() says then.
    """

    entries: list[nn.Module]
    names: list[str]
    outputs: list[Output]
    live: list[int]
    dense: bool = False
    decides: bool = False
    unread: frozenset[int] = frozenset()
    forms: Forms | None = None
    form: bytes = b""

    @property
    def live_entries(self) -> set[nn.Module]:
        return {self.entries[index] for index in self.live}

    @property
    def is_in_its_form(self) -> bool:
        """Whether the newest pass has computed submodules in the form for which the cut was proven."""
        return self.forms is None or self.forms.used() == self.form

    @property
    def tensors(self) -> list[Any]:
        """These TensorSpecs describe what crosses the cut."""
        return [spec for index in self.live for spec in self.outputs[index].tensors]

    def placed(self, crossing: Sequence[Tensor]) -> list[Tensor]:
        """Returns what crosses the cut on the devices and with the strides that it has there."""
        return [spec.placed(tensor) for spec, tensor in zip(self.tensors, crossing)]

    def skip(
        self,
        patches: ForwardPatches,
        crossing: Sequence[Tensor],
        allowed: Callable[[], bool] = lambda: True,
        shadow: Shadow | None = None,
    ) -> None:
        """Lets the entries, or those of the `shadow`, return stand-ins in the next forward pass, the live ones
        `crossing`; unless they are not `allowed` to, which is asked when the first one is called."""
        allowed = functools.cache(allowed)
        remaining = iter(crossing)
        for index, (entry, output) in enumerate(zip(self.entries, self.outputs)):
            if index in self.live:
                value = output.build([next(remaining) for _ in output.tensors])
            else:
                value = output.stand_in(self.dense)
            patches.replace(entry if shadow is None else shadow.of(entry), _once(value, allowed))

    def observe(
        self, patches: ForwardPatches, reached: Callable[[list[Tensor]], None], shadow: Shadow | None = None
    ) -> None:
        """Lets the next forward pass, or that of the `shadow`, give `reached` a copy of what crosses the cut, once all
        is there."""
        collected: dict[int, list[Tensor]] = {}

        def patch(index: int) -> Callable[..., Any]:
            def function(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
                value = original(*args, **kwargs)
                fresh = index not in collected
                collected[index] = [tensor.detach().clone() for tensor in tensors_in(value)]
                if fresh and len(collected) == len(self.live):
                    reached([tensor for i in self.live for tensor in collected[i]])
                return value

            return function

        for index in self.live:
            entry = self.entries[index]
            patches.replace(entry if shadow is None else shadow.of(entry), patch(index))

    def compute(
        self,
        shadow: Shadow,
        call: Call,
        check: Callable[[], None] | None = None,
        behind: tuple[Cut, Sequence[Tensor]] | None = None,
    ) -> list[Tensor]:
        """Computes what crosses the cut in this call, by a forward pass of a shadow, which is left as soon as it is
        known.

        Args:
          check: called at that moment.
          behind: a shallower cut, and what crosses it, which the pass may write to: it begins there.

        Raises:
          Refused: [NOT_CALLED] the forward pass went another way; [NO_SHADOW].
          Exception: what the model raises.
        """
        found: list[list[Tensor]] = []

        def reached(tensors: list[Tensor]) -> None:
            found.append(tensors)
            if check is not None:
                check()
            raise _Reached

        given = () if behind is None else behind[1]
        with ForwardPatches() as patches, side_pass(shadow, given) as twin:
            if behind is not None:
                behind[0].skip(patches, given, shadow=shadow)
            if self.forms is not None:
                self.forms.put_into(patches, shadow, self.live_entries)
            self.observe(patches, reached, shadow)
            try:
                call.run(twin.forward)
            except _Reached:
                pass
            finally:
                if self.forms is not None:
                    self.forms.leave()
        if not found:
            raise Refused(
                "NOT_CALLED",
                "a forward pass does not come through " + ", ".join(self.names[index] for index in self.live),
            )
        return found[0]


def shadow_of(model: nn.Module) -> Shadow:
    """A new shadow of the model, as it is now.

    Raises:
      Refused: [NO_SHADOW] it has none.
    """
    try:
        return Shadow(model)
    except NoShadow as error:
        raise Refused("NO_SHADOW", str(error)) from error


@contextlib.contextmanager
def side_pass(shadow: Shadow, given: Sequence[Tensor] = ()) -> Iterator[nn.Module]:
    """A context for a forward pass of a shadow as in training.

    Autocast keeps nothing of it: casts of weights made here would be used again in the training's own pass.

    Args:
      given: tensors that the pass may write to besides.

    Raises:
      Refused: [NO_SHADOW] the pass would reach beyond the shadow.
    """
    cached = torch.is_autocast_cache_enabled()
    try:
        with shadow.running(given) as model, torch.enable_grad(), saved_tensors_hooks(_as_it_is, _as_it_is):
            try:
                torch.set_autocast_cache_enabled(False)
                yield model
            finally:
                torch.set_autocast_cache_enabled(cached)
    except NoShadow as error:
        raise Refused("NO_SHADOW", str(error)) from error


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _once(value: Any, allowed: Callable[[], bool]) -> Callable[..., Any]:
    """Makes a function that returns `value` at its first call, if that is allowed. Called again it works as usual, and
    mostly on stand-ins, which shows."""
    values = [value]

    def function(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return values.pop() if values and allowed() else original(*args, **kwargs)

    return function
