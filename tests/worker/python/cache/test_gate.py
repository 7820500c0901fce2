"""Whether the cache is used: only where samples come again as they were, and only as long as it saves time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from skipping_runs import DictStore, Fetched, counters_of, skipper_of
from torch import Tensor, nn

from egeria.cache.gate import CacheGate
from egeria.cache.repeated_samples import Repeats
from egeria.freeze.freezer import Freezer
from egeria.model.modules import partition

CPU = torch.device("cpu")


class Clock:
    """In the place of the machine's: only what sleeps takes long."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 1e-6
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


clock = Clock()


def slow_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """In the place of torch's own, so that no code of the model names the clock."""
    clock.sleep(getattr(weight, "seconds", 0.0))
    return LINEAR(x, weight, bias)


LINEAR = nn.functional.linear


@pytest.fixture(autouse=True)
def time_is_that_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", clock.now)
    monkeypatch.setattr(nn.functional, "linear", slow_linear)


def slow(seconds: float) -> nn.Module:
    """Layers whose forward pass takes `seconds`."""
    layers = nn.Sequential(nn.Linear(4, 4))
    layers[0].weight.seconds = seconds
    return layers


class SlowStore(DictStore):
    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds
        self.gets = 0

    def get(self, ids: Sequence[int], input_hashes: Sequence[int], patience: float) -> Fetched:
        self.gets += 1
        clock.sleep(self.seconds)
        return super().get(ids, input_hashes, patience)


class Training:
    """A training of a model whose first layer is frozen."""

    def __init__(
        self,
        store: DictStore,
        repeats: Repeats | None,
        forward_seconds: float = 0.0,
        drew: bool | None = None,
        steps_left: int | None = None,
    ):
        torch.manual_seed(0)
        self.model = nn.Sequential(slow(forward_seconds), nn.Linear(4, 2))
        modules = partition(self.model, ["0", "1"])
        Freezer(modules, []).apply(1)
        self.ids: list[int] = []
        if repeats is None:  # samples are known to come again
            repeats = Repeats()
            repeats.known = True
        gate = CacheGate(CPU, repeats, drew=lambda: drew, steps_left=lambda: steps_left)
        self.skipper = skipper_of(self.model, modules, 1, store, lambda batch: self.ids, gate)
        self.samples = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))

    def epochs(self, count: int, augment: bool = False) -> None:
        for _ in range(count):
            for first in range(0, 64, 8):
                self.ids = list(range(first, first + 8))
                noise = torch.rand(8, 4) if augment else 0
                self.model(self.samples[self.ids] + noise).sum().backward()

    @property
    def estimates(self) -> dict[str, Any]:
        return self.skipper.gate.ledger.estimates()


def test_the_first_epoch_fills_and_the_second_is_served() -> None:
    """Nobody knows in the first one whether samples come again."""
    store = DictStore()
    training = Training(store, Repeats(), forward_seconds=0.03)
    training.epochs(1)
    assert training.estimates["state"] == "unknown" and store.stored == 64
    assert counters_of(training.skipper)["proofs"] == 1
    training.epochs(1)
    counters = counters_of(training.skipper)
    assert counters["passes_skipped"] + counters["audits"] == 8
    training.epochs(2)
    assert training.estimates["state"] == "on", training.estimates
    assert training.estimates["fetch_seconds"] < training.estimates["forward_seconds"]


def test_where_batches_are_made_with_random_numbers_nothing_is_kept_before_samples_come_again() -> None:
    store = DictStore()
    training = Training(store, Repeats(), forward_seconds=0.03, drew=True)
    training.epochs(1)
    assert store.stored == counters_of(training.skipper)["proofs"] == 0
    assert counters_of(training.skipper)["miss_off"] == 64
    training.epochs(3)
    assert counters_of(training.skipper)["passes_skipped"] > 8


def test_random_augmentation_switches_it_off_without_a_single_proof() -> None:
    store = DictStore()
    training = Training(store, Repeats(), drew=True)
    training.epochs(4, augment=True)
    assert training.estimates["state"] == "off" and "augmentation" in training.estimates["reason"]
    assert counters_of(training.skipper)["proofs"] == 0 and store.stored == 0


@pytest.mark.parametrize("drew", [None, False])
def test_augmentation_that_nobody_sees_is_seen_in_the_first_pass_of_the_next_epoch(drew: bool | None) -> None:
    """By what is kept of these samples, which is dropped, and nothing is kept from there on."""

    class OneOfEach(DictStore):
        def get(self, ids: Sequence[int], input_hashes: Sequence[int], patience: float) -> Fetched:
            kept = {sample for sample, _ in self.rows}
            tensors, reasons = super().get(ids, input_hashes, patience)
            return tensors, [
                "other_input" if reason and sample in kept else reason for sample, reason in zip(ids, reasons)
            ]

    store = OneOfEach()
    repeats = Repeats()
    training = Training(store, repeats, forward_seconds=0.03, drew=drew)
    repeats.note = lambda *_: None  # it remembers 256 samples of a large data set, which come again late
    training.epochs(1, augment=True)
    assert store.stored == 64 and repeats.known is None
    for first in (0, 8):
        training.ids = list(range(first, first + 8))
        training.model(training.samples[training.ids] + torch.rand(8, 4)).sum().backward()
    assert repeats.known is False and training.estimates["state"] == "off"
    training.epochs(2, augment=True)
    assert store.stored == 64 + 8 and not store.rows  # the first 8 samples are too few to say it


def test_writes_wait_for_time_while_nobody_knows_whether_samples_come_again() -> None:
    class Dear(DictStore):
        def put(self, ids: Any, input_hashes: Any, tensors: Any) -> None:
            clock.sleep(0.01)
            super().put(ids, input_hashes, tensors)

    store = Dear()
    training = Training(store, Repeats(), forward_seconds=0.03)
    training.epochs(1)
    assert store.stored == 16  # the proof stores 8, and the next pass shows what that costs: more than 2 % of 8 passes
    store = Dear()
    Training(store, Repeats(), forward_seconds=0.03, drew=False).epochs(1)
    assert store.stored == 64


@pytest.mark.parametrize(("steps_left", "at"), [(None, 1), (1000, 1), (1, 1000)])
def test_the_last_batch_of_an_epoch_is_proven_where_that_pays(steps_left: int | None, at: int) -> None:
    training = Training(DictStore(), None, forward_seconds=0.003, steps_left=steps_left)
    training.epochs(4)
    clock.sleep(1)
    assert counters_of(training.skipper)["proofs"] == 1
    for call in range(1, 9):
        training.ids = [61, 62, 63]
        training.model(training.samples[61:]).sum().backward()
        assert counters_of(training.skipper)["proofs"] == (1 if call < at else 2)


def test_another_shape_is_proven_once_it_comes_often() -> None:
    training = Training(DictStore(), None, forward_seconds=0.003)
    training.epochs(1)
    clock.sleep(1)
    proofs = []
    for _ in range(12):
        training.ids = list(range(40, 48))
        training.model(torch.ones(8, 3, 4)).sum().backward()
        proofs.append(counters_of(training.skipper)["proofs"])
    assert proofs[0] == 1 and proofs[-1] == 2, proofs


def test_proofs_of_further_shapes_take_a_tenth_of_the_time_at_most() -> None:
    training = Training(DictStore(), None, forward_seconds=0.003)
    training.epochs(1)
    for rows in range(7, 0, -1):
        training.ids = list(range(40, 40 + rows))
        training.model(training.samples[training.ids]).sum().backward()
    proofs = counters_of(training.skipper)["proofs"]
    assert 1 <= proofs < 4
    clock.sleep(100)
    for rows in range(7, 0, -1):
        training.ids = list(range(40, 40 + rows))
        training.model(training.samples[training.ids]).sum().backward()
    assert counters_of(training.skipper)["proofs"] > proofs


def test_what_the_training_thread_spends_is_added_up() -> None:
    training = Training(SlowStore(0.02), None, forward_seconds=0.002)
    begin = clock.now()
    training.epochs(2)
    passed = clock.now() - begin
    asked = (
        counters_of(training.skipper)["passes"]
        - counters_of(training.skipper)["proofs"]
        - counters_of(training.skipper)["miss_off"] // 8
    )
    assert 0.02 * (asked - 1) <= training.skipper.gate.watch.seconds < passed


def test_a_store_that_is_slower_than_the_layers_is_left_alone() -> None:
    store = SlowStore(0.02)
    training = Training(store, None, forward_seconds=0.002)
    training.epochs(10)
    assert training.estimates["state"] == "off", training.estimates
    assert "forward pass takes" in training.estimates["reason"]
    assert store.gets < 40, "it was asked all the time"
    assert counters_of(training.skipper)["miss_off"] > 0


def test_samples_that_are_never_found_again_switch_it_off() -> None:
    class Forgetful(DictStore):
        def find(self, ids: Any, input_hashes: Any) -> Any:
            return [None] * len(ids)

    training = Training(Forgetful(), None, forward_seconds=0.03)
    training.epochs(6)
    assert training.estimates["state"] == "off" and "no pass could be skipped" in training.estimates["reason"]


def test_always_asks_nobody() -> None:
    training = Training(DictStore(), None)
    training.skipper.gate = CacheGate(CPU, Repeats(), always=True)
    training.epochs(3)
    assert counters_of(training.skipper)["passes_skipped"] > 0 and counters_of(training.skipper)["miss_off"] == 0
