"""The training thread waits for the GPU only where the documents say so."""

from __future__ import annotations

import collections
import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gpu_training import Encoder, Options, Training, readings
from harness import Controller
from torch import Tensor

import egeria

pytestmark = pytest.mark.only_cuda

_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """torch raises where it waits for the GPU."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def waits(training: Training, session: egeria.Session | None, steps: int, pace: float = 0.0) -> dict[str, int]:
    """Calls of CUDA that wait, by name, in so many steps."""
    batches = [(training.images(), training.labels()) for _ in range(steps)]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for images, labels in batches:
            training.step += 1
            training.take_step(images, labels, session)
            time.sleep(pace)
    counts = collections.Counter(event.name for event in profile.events() if event.name in _WAITS)
    return dict(counts)


class Ready:
    """A training whose batches are on the GPU, so that a plain step does not wait for it."""

    def __init__(self, trained: Options, **config: Any):
        self.training = Training(trained)
        self.session = self.training.attach(**config)

    def batch(self) -> tuple[Tensor, Tensor]:
        return self.training.images(), self.training.labels()

    def quiet_steps(self, steps: int, pace: float = 0.0) -> None:
        batches = [self.batch() for _ in range(steps)]
        with no_waiting():
            for images, labels in batches:
                self.training.step += 1
                self.training.take_step(images, labels, self.session)
                time.sleep(pace)


OPTIONS = {
    "sgd": Options(),
    "attention": Options(model=Encoder, optimizer="adamw-fused"),
    "capturable": Options(model=Encoder, optimizer="adamw-capturable"),
    "rate-on-the-gpu": Options(model=Encoder, optimizer="adamw-rate-on-the-gpu"),
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_step_without_a_reading(kind: str, controller: Controller) -> None:
    ready = Ready(OPTIONS[kind], controller=controller.address, policy="none", observe=True)
    ready.training.train(6, ready.session, pace=0.1)
    ready.quiet_steps(20, pace=0.02)
    assert ready.session.counters()["connected"]


@pytest.mark.parametrize("kind", OPTIONS)
def test_samples_and_snapshots(kind: str, controller: Controller) -> None:
    """Both go to the controller as the GPU comes to them."""
    ready = Ready(
        OPTIONS[kind],
        controller=controller.address,
        policy="plasticity",
        observe=True,
        batch_size=8,
        reference="controller",
        options={"interval_steps": 2, "window": 3, "bootstrap": False},
    )
    ready.training.train(4, ready.session, pace=0.1)
    before = ready.session.counters()["samples_sent"]
    ready.quiet_steps(40, pace=0.05)
    assert ready.session.counters()["samples_sent"] > before + 3
    assert ready.session.counters()["snapshots_sent"] > 0


@pytest.mark.parametrize("kind", OPTIONS)
def test_steps_with_frozen_layers(kind: str) -> None:
    """After 1, 2, 4, ... of them, and every 32, a look at what is frozen waits."""
    ready = Ready(OPTIONS[kind], plans=[(5, 2)])
    ready.training.train(5, ready.session)
    assert ready.session.prefix == 2
    for steps in (3, 7, 15):  # in between
        ready.training.train(4 if steps == 3 else 1, ready.session)
        ready.quiet_steps(steps)


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_reading_of_gradients_waits_a_few_times(kind: str, controller: Controller) -> None:
    """It does not wait once for each parameter."""
    ready = Ready(
        OPTIONS[kind], controller=controller.address, policy="gradnorm", options={"interval_steps": 1}, observe=True
    )
    ready.training.train(4, ready.session, pace=0.1)
    ready.training.train_until(lambda: len(readings(controller)) > 0, ready.session)
    batches = [ready.batch() for _ in range(5)]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for images, labels in batches:
                ready.training.step += 1
                ready.training.take_step(images, labels, ready.session)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    told = [entry for entry in caught if "synchroniz" in str(entry.message)]
    places = collections.Counter(f"{entry.filename.rpartition('/')[2]}:{entry.lineno}" for entry in told)
    print("waits in 5 readings of", kind, dict(places))
    assert len(told) / len(batches) < 25, places


def test_what_waits_is_counted_by_the_profiler_too(controller: Controller) -> None:
    """torch's own warnings do not see all that waits."""
    plain = Training(Options(model=Encoder, optimizer="adamw-fused"))
    plain.train(5)
    ready = Ready(plain.options, controller=controller.address, policy="none", observe=True)
    ready.training.train(6, ready.session, pace=0.1)
    assert waits(ready.training, ready.session, 20) == waits(plain, None, 20)
