"""The optimizer's metric: g' P g is what a step takes off the loss, to first order."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from egeria.gradients.gradient_norms import Norms
from egeria.gradients.optimizer_metric import OptimizerMetric


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float32))


def trained(kind: type, weight: nn.Parameter, gradients: torch.Tensor, **options) -> torch.optim.Optimizer:
    optimizer = kind([weight], **options)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    return optimizer


def metric_of(optimizer: torch.optim.Optimizer) -> OptimizerMetric:
    metric = OptimizerMetric([optimizer])
    metric.begin()
    return metric


def test_of_gradient_descent_it_is_the_rate():
    weight = parameter(1, 2)
    metric = metric_of(torch.optim.SGD([weight], 0.25, momentum=0.9))
    assert metric.rate(weight) == 0.25
    assert metric.square(weight, torch.tensor([3.0, 4.0])) is None
    norms = Norms(metric)
    norms.set(weight, torch.tensor([3.0, 4.0]))
    assert norms.sums([[weight]]) == ([25.0], [6.25])


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("steps", [1, 7])
def test_of_adam_it_is_what_a_step_without_momentum_takes_off(kind: type, steps: int):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(5))
    optimizer = trained(kind, weight, torch.randn(steps, 5), lr=0.1, betas=(0.0, 0.9), eps=1e-3, weight_decay=0.0)
    gradient = torch.randn(5)
    metric = metric_of(optimizer)
    square = metric.square(weight, gradient)
    second = optimizer.state[weight]["exp_avg_sq"] / (1 - 0.9**steps)
    expected = (gradient.square() / (second.sqrt() + 1e-3)).sum()
    assert float(square) == pytest.approx(float(expected), rel=1e-5)
    norms = Norms(metric)
    norms.set(weight, gradient)
    assert norms.sums([[weight]])[1] == [pytest.approx(0.1 * float(expected), rel=1e-5)]


@pytest.mark.parametrize(("kind", "state"), [(torch.optim.RMSprop, "square_avg"), (torch.optim.Adagrad, "sum")])
def test_of_others_that_scale_by_squares_too(kind: type, state: str):
    weight = parameter(1, 2)
    optimizer = trained(kind, weight, torch.tensor([[1.0, 4.0], [1.0, 4.0]]), lr=0.1, eps=0.0)
    square = metric_of(optimizer).square(weight, torch.tensor([1.0, 2.0]))
    root = optimizer.state[weight][state].sqrt()
    assert float(square) == pytest.approx(float(1 / root[0] + 4 / root[1]), rel=1e-5)


@pytest.mark.parametrize("kind", [torch.optim.Adadelta, torch.optim.Adamax, torch.optim.Rprop])
def test_of_others_nothing_is_said(kind: type):
    known, weight = parameter(1, 2), parameter(3, 4)
    metric = OptimizerMetric(
        [torch.optim.SGD([known], 0.1), trained(kind, weight, torch.tensor([[1.0, 4.0], [1.0, 4.0]]), lr=0.1)]
    )
    metric.begin()
    assert metric.knows(known) and not metric.knows(weight)
    norms = Norms(metric)
    norms.set(known, torch.tensor([3.0, 4.0]))
    assert norms.sums([[known], [weight]])[1] == [pytest.approx(2.5), 0.0]
    norms.set(weight, torch.tensor([1.0, 2.0]))
    assert norms.sums([[known], [weight]]) == ([pytest.approx(25), pytest.approx(5)], [])


def test_nor_of_adam_before_its_first_step():
    weight, stranger = parameter(1, 2), parameter(1)
    metric = metric_of(torch.optim.Adam([weight], 0.1))
    assert not metric.knows(weight)
    assert metric.knows(stranger), "nothing changes it"


def test_what_has_never_had_a_gradient_counts_nothing():
    weight = parameter(1, 2, 3)
    optimizer = trained(torch.optim.Adam, weight, torch.tensor([[1.0, 0.0, 2.0]]), lr=0.1)
    square = metric_of(optimizer).square(weight, torch.tensor([1.0, 100.0, 2.0]))
    assert float(square) == pytest.approx(1 / 1 + 4 / 2, rel=1e-5), "v of the second is 0"


def test_of_sparse_gradients():
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters(), 0.1)
    table(torch.tensor([1, 3])).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    (2 * table(torch.tensor([1, 1])).sum()).backward()
    sparse = metric_of(optimizer).square(table.weight, table.weight.grad)
    dense = metric_of(optimizer).square(table.weight, table.weight.grad.to_dense())
    assert float(sparse) == pytest.approx(float(dense)) and math.isfinite(float(dense)) and float(dense) > 0


def test_groups_have_rates_of_their_own_and_they_may_change():
    one, other, stranger = parameter(1), parameter(2), parameter(3)
    optimizer = torch.optim.SGD([{"params": [one], "lr": 0.5}, {"params": [other], "lr": 0.0}], 0.1)
    metric = metric_of(optimizer)
    assert (metric.rate(one), metric.rate(other), metric.rate(stranger)) == (0.5, 0.0, 0.0)
    assert metric.square(stranger, torch.tensor([1.0])) is None
    optimizer.param_groups[1]["lr"] = 0.25
    metric.begin()
    assert metric.rate(other) == 0.25


def test_half_precision_is_measured_in_single():
    weight = parameter(1, 2)
    optimizer = trained(torch.optim.Adam, weight, torch.tensor([[1e-3, 1e-3]]), lr=0.1)
    square = metric_of(optimizer).square(weight, torch.tensor([1e-3, 1e-3], dtype=torch.bfloat16))
    assert square.dtype == torch.float32
    assert float(square) == pytest.approx(2e-3, rel=2e-2)


def test_of_large_tensors_some_columns_stand_for_all():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(1024, 128))
    optimizer = torch.optim.Adam([weight], 0.1, betas=(0.9, 0.99))
    squares, exact, metric = [], [], metric_of(optimizer)
    for step in range(20 + 113):  # so many places for 16 columns of 128
        weight.grad = torch.randn_like(weight)
        optimizer.step()
        if step < 20:  # few squares make a v that may be close to 0
            continue
        gradient = torch.randn_like(weight)
        metric.begin()
        squares.append(float(metric.square(weight, gradient)))
        second = optimizer.state[weight]["exp_avg_sq"] / (1 - 0.99 ** float(optimizer.state[weight]["step"]))
        exact.append(float((gradient.square() / (second.sqrt() + 1e-8)).sum()))
    assert squares != exact and sum(squares) == pytest.approx(sum(exact), rel=0.01)


def test_whose_numbers_are_of_another_kind_has_no_metric_and_a_reading_all_the_same():
    """Adafactor's eps is a pair, and it keeps `exp_avg_sq` of what is no matrix."""
    weight = parameter(1, 2)
    optimizer = trained(torch.optim.Adam, weight, torch.randn(3, 2))
    for group, state in ((dict(eps=(1e-30, 1e-3)), {}), ({}, dict(step=(3,))), (dict(lr=None), {})):
        optimizer.param_groups[0].update(group)
        optimizer.state[weight].update(state)
        metric = metric_of(optimizer)
        norms = Norms(metric)
        norms.set(weight, torch.tensor([3.0, 4.0]))
        assert not metric.knows(weight) and norms.sums([[weight]]) == ([25.0], [])
        optimizer = trained(torch.optim.Adam, weight, torch.randn(3, 2))
