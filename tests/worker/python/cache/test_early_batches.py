"""Batches from before a freeze are computed in the epoch that fills the cache, so that the next one lacks nothing."""

from __future__ import annotations

import pytest
import torch
from cache_daemon import Daemon
from frozen_trunk import BATCH, EPOCHS, SAMPLES, Network, Run, Script, Trunk, freeze

from egeria.cache.early_batches import EarlyBatches

STEPS = SAMPLES // BATCH  # an epoch


def noted(early: EarlyBatches, *batches: list[int]) -> EarlyBatches:
    for ids in batches:
        early.note((torch.tensor(ids, dtype=torch.float32)[:, None],), {}, ids)
    return early


def taken(early: EarlyBatches, *passes: list[int]) -> list[list[int] | None]:
    found = [early.take(ids) for ids in passes]
    return [None if batch is None else batch.ids for batch in found]


def test_each_pass_takes_one_batch_until_a_sample_comes_again() -> None:
    early = noted(EarlyBatches(lambda passes: True), [0, 1], [2, 3], [4, 5])
    assert taken(early, [6, 7], [8, 9], [2, 0], [6, 7]) == [[0, 1], [2, 3], None, None]


def test_what_cannot_be_computed_yet_comes_behind_the_others() -> None:
    early = noted(EarlyBatches(lambda passes: True), [0, 1], [2, 3])
    batch = early.take([4])
    assert batch is not None
    early.give_back(batch)
    assert taken(early, [4], [5], [6]) == [[2, 3], [0, 1], None]


def test_a_script_may_write_to_its_batch() -> None:
    rows = torch.zeros(2, 3)
    early = EarlyBatches(lambda passes: True)
    early.note((rows,), {}, [0, 1])
    rows += 1
    batch = early.take([2])
    assert batch is not None and not batch.call.tensors()[0].any()


@pytest.mark.parametrize("most_bytes,next_epoch", [(15, True), (1 << 20, False)])
def test_nothing_is_computed_in_vain(most_bytes: int, next_epoch: bool) -> None:
    early = noted(EarlyBatches(lambda passes: next_epoch, most_bytes), [0, 1], [2, 3])
    assert taken(early, [4, 5]) == [None]
    assert taken(noted(early, [6, 7]), [8]) == [None]


def test_a_second_epoch_in_which_nothing_is_frozen_ends_it() -> None:
    assert taken(noted(EarlyBatches(lambda passes: True), [0, 1], [2, 3], [0, 2]), [4]) == [None]


def test_a_training_of_one_epoch_computes_none(scripts_cache: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    take = EarlyBatches.take
    monkeypatch.setattr(EarlyBatches, "take", lambda self, ids: found.append(take(self, ids)))
    script = Script(scripts_cache.address)
    model = Network(Trunk()).requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    script.attach(model, optimizer, total_steps=STEPS)
    script.train(model, optimizer, epochs=1, before=lambda step: freeze(*[model.trunk] if step == 1 else []))
    assert script.session is not None
    script.session.close()
    assert found and found == [None] * len(found)


@pytest.mark.parametrize("at", [0, 1])  # half of an epoch has to follow
def test_the_next_epoch_lacks_no_sample(at: int, run: Run) -> None:
    absent: list[int] = []

    def script(run_: Script) -> list[Network]:
        model = Network(Trunk()).requires_grad_(True)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        run_.attach(model, optimizer, total_steps=EPOCHS * STEPS)

        def before(step: int) -> None:
            if step == at:
                freeze(model.trunk)

        def each_epoch(epoch: int) -> None:
            if run_.session is not None:
                absent.append(run_.session.cache_counters().get("miss_absent", 0))

        run_.train(model, optimizer, before=before, each_epoch=each_epoch)
        return [model]

    outcome = run(script)
    assert outcome.served > (EPOCHS - 2) * STEPS, outcome.text
    assert absent[0] == 0 < absent[1] and len(set(absent[1:])) == 1, absent  # all are of the first epoch
