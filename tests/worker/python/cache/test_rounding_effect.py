"""Before rounded activations are used, their effect on the model is measured."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence

import pytest
import torch
from skipped_models import RESNET_LAYERS, images, resnet, square
from skipping_runs import DictStore, Run, epochs, train
from torch import Tensor, nn

from egeria import _native
from egeria.cache.skipper import Skipper

STEPS = epochs(22, 8, 4, images)


class Rounding(DictStore):
    """Rounds as the cache does for "int8"."""

    rounds = True

    def as_kept(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [_native.as_int8(tensor) for tensor in tensors]

    def put(self, ids: Sequence[int], input_hashes: Sequence[int], tensors: tuple[Tensor, ...]) -> None:
        super().put(ids, input_hashes, tuple(self.as_kept(tensors)))


class Losing(nn.Module):
    """Returns a loss first, and after it what it is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.net = resnet()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.drop(self.net(x))
        return y.square().mean(), y


def test_the_effect_on_activations_results_and_loss_is_measured_and_told_before_the_first_use(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Rounding()
    known: list[bool] = []

    def each_step(number: int, model: nn.Module, skipper: Skipper) -> None:
        if store.stored and skipper.rounding is None:
            known.append(False)

    layers = [f"net.{pattern}" for pattern in RESNET_LAYERS]
    with caplog.at_level(logging.INFO, "egeria"):
        run = train(Losing, layers, 3, STEPS, lambda out: out[0], store, each_step=each_step)
    assert run.refusal is None and run.counters["passes_skipped"] > 2 and not known
    effect = run.skipper.rounding
    assert 1e-4 < effect.activations < 0.02 and 1e-5 < effect.results < 0.1
    assert effect.loss > 0 and 0 < abs(effect.loss_change) < 0.1 * effect.loss
    told = [record.message for record in caplog.records if "kept rounded" in record.message]
    assert len(told) == 1 and "its loss is" in told[0]


def test_measuring_leaves_the_training_as_it_is() -> None:
    """Nothing is found again, so that nothing rounded is used."""

    class Empty(Rounding):
        def find(self, ids: Sequence[int], input_hashes: Sequence[int]) -> list[tuple[Tensor, ...] | None]:
            return [None] * len(ids)

    def run(store: DictStore | None) -> Run:
        return train(resnet, RESNET_LAYERS, 3, STEPS, square, store)

    measured = run(Empty())
    assert measured.skipper.rounding is not None and measured.skipper.rounding.loss is None
    assert measured.same_as(run(None))


def test_an_audit_compares_with_what_rounding_gives() -> None:
    audited = train(resnet, RESNET_LAYERS, 3, STEPS, square, Rounding(), audit=True)
    assert audited.refusal is None and audited.counters["audits"] > 0


def test_rows_are_rounded_each_for_itself_and_twice_as_once() -> None:
    tensor = torch.randn(5, 8, 6, 6) * torch.logspace(-3, 3, 8)[:, None, None]
    kept = _native.as_int8(tensor)
    assert torch.equal(_native.as_int8(kept), kept) and not torch.equal(kept, tensor)
    assert torch.equal(_native.as_int8(tensor[2:3])[0], kept[2])
    assert (kept - tensor).abs().amax((0, 2, 3)).le(tensor.abs().amax((0, 2, 3)) / 127 * 0.51).all()
    other = copy.copy(tensor)
    other[1, 0, 0, 0] = torch.nan
    assert torch.equal(_native.as_int8(other)[1].nan_to_num(), other[1].nan_to_num()), "it stays exact"
    for exact in (torch.arange(5), torch.randn(5).double(), torch.randn(5)):
        assert torch.equal(_native.as_int8(exact), exact)
