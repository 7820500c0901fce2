"""This file measures what a step costs where layers are frozen: as they are, in inference form, and from the cache."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from egeria.cache.cut_proof import Proof, prove
from egeria.cache.forward_patches import ForwardPatches
from egeria.cache.frozen_part import PartSearch, resting
from egeria.cache.model_call import Call, UnusualCall
from egeria.cache.refused import Refused
from egeria.doctor.report import Saving
from egeria.freeze.freezer import Freezer
from egeria.frozen_forward.frozen_forward import FrozenForward
from egeria.model.inputs import GraphError, batch_of
from egeria.model.modules import LayerModule
from egeria.tell_once import TellOnce

_MOST_PREFIXES = 16  # that are measured; of more layer modules, as many evenly spaced ones
# Other ways than the usual one are measured in one of so many rounds.
_EVERY = 3
# A form is made at the second call of a part; a part that has none is divided, which takes as many calls again.
_CALLS_FOR_FORMS = 8


def measure(
    model: nn.Module, modules: Sequence[LayerModule], loss_of: Callable[[], Tensor], rounds: int
) -> tuple[Saving, ...]:
    """Times forward and backward with each frozen prefix, interleaved, so that all see the same disturbances.

    Where the script has frozen something itself, the first Saving is that of no prefix.

    Args:
      model: to be changed; `modules` are its own.
    """
    costs = _StepCosts(model, modules, loss_of)
    try:
        return costs.measure(rounds)
    finally:
        costs.close()


class _StepCosts:
    def __init__(self, model: nn.Module, modules: Sequence[LayerModule], loss_of: Callable[[], Tensor]):
        self._model = model
        self._loss_of = loss_of
        self._freezer = Freezer(modules, [])
        self._parameters = [parameter for module in modules for _, parameter in module.parameters()]
        self._prefixes = [0] * bool(resting(model)) + _chosen(len(modules))
        self._call: Call | None = None
        self._exact = True  # forms are not used

    def measure(self, rounds: int) -> tuple[Saving, ...]:
        """Measures the frozen layers as they are in each round, and the other ways in a third of the rounds."""
        self._call = self._catch_call()
        return tuple(self._measure_prefix(prefix, rounds) for prefix in self._prefixes)

    def _measure_prefix(self, prefix: int, rounds: int) -> Saving:
        self._freezer.apply(prefix)
        share, (proof, reason) = self._freezer.frozen_share, self._find_cut()
        ratios: dict[str, list[float]] = {"exact": [], "fused": [], "cached": []}
        with self._forms() as have_forms:
            for turn in range(rounds + 1):
                self._freezer.apply(0)
                base = self._step_seconds()
                self._freezer.apply(prefix)
                found = {"exact": self._step_seconds()}
                if turn % _EVERY == 0 and have_forms:
                    found["fused"] = self._step_seconds_with_forms()
                if turn % _EVERY == 0 and proof is not None:
                    found["cached"] = self._step_seconds_from_cache(proof)
                if turn:  # the first round warms up
                    for way, seconds in found.items():
                        ratios[way].append(seconds / base)
        exact = ratios["exact"]
        fused, cached = (statistics.median(ratios[way]) if ratios[way] else None for way in ("fused", "cached"))
        size = None if proof is None else sum(map(_sample_bytes, proof.crossing))
        return Saving(prefix, share, statistics.median(exact), min(exact), max(exact), fused, cached, size, reason)

    def close(self) -> None:
        self._freezer.apply(0)

    def _catch_call(self) -> Call | None:
        """How the loss calls the model; None where it does not, or in another way than the cache serves."""
        caught = calls_in(self._model, self._loss_of)
        try:
            return Call(*caught[-1], batch_of(*caught[-1])) if caught else None
        except (GraphError, UnusualCall):
            return None

    def _find_cut(self) -> tuple[Proof | None, str | None]:
        """Proves that what is frozen now may be skipped, from the deepest place on; or returns why not."""
        if self._call is None:
            return None, "the loss function does not call the model with a batch of samples"
        try:
            search = PartSearch(self._model, self._call, lambda text: None)
            part = search.deepest()
            while True:
                try:
                    return prove(self._model, part.frozen, self._call), None
                except Refused as error:
                    smaller = search.shallower(error)
                    if smaller is None:
                        raise
                    part = smaller
        except Refused as error:
            return None, str(error)

    @contextlib.contextmanager
    def _forms(self) -> Iterator[bool]:
        """Inside, frozen layers have forms, which self._exact switches off. Gives whether there are any."""
        forward = FrozenForward(self._model, "fused", lambda: self._exact, contextlib.nullcontext, TellOnce())
        try:
            forward.follow(resting(self._model))
            self._exact = False
            for _ in range(_CALLS_FOR_FORMS):
                self._loss_of()
                forward.end_step()
            self._exact = True
            yield forward.summary()["parts"] > 0
        finally:
            self._exact = True
            forward.close()

    def _step_seconds_with_forms(self) -> float:
        self._exact = False
        try:
            return self._step_seconds()
        finally:
            self._exact = True

    def _step_seconds_from_cache(self, proof: Proof) -> float:
        """The step as it is where all samples are there, without the time that it takes to get them."""
        with ForwardPatches() as patches:
            proof.cut.skip(patches, [tensor.clone() for tensor in proof.crossing])
            return self._step_seconds()

    def _step_seconds(self) -> float:
        return step_seconds(self._loss_of, self._parameters)


def calls_in(model: nn.Module, loss_of: Callable[[], Tensor]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Returns what the model is called with while the loss is computed, once for each call."""
    caught: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def catch(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        caught.append((args, kwargs))

    hook = model.register_forward_pre_hook(catch, with_kwargs=True)
    try:
        loss_of()
    finally:
        hook.remove()
    return caught


def step_seconds(loss_of: Callable[[], Tensor], parameters: Sequence[nn.Parameter]) -> float:
    """Makes a forward and a backward pass, and returns what they took."""
    for parameter in parameters:
        parameter.grad = None
    _synchronize()
    start = time.perf_counter()
    loss_of().backward()
    _synchronize()
    return time.perf_counter() - start


def _chosen(modules: int) -> list[int]:
    """The prefixes that are measured."""
    if modules - 1 <= _MOST_PREFIXES:
        return list(range(1, modules))
    return sorted({round(i * (modules - 1) / _MOST_PREFIXES) for i in range(1, _MOST_PREFIXES + 1)})


def _sample_bytes(tensor: Tensor) -> int:
    """The bytes of a row."""
    return math.prod(tensor.shape[1:]) * tensor.element_size()


def _synchronize() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
