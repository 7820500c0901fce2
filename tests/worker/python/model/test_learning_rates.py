"""egeria.model.learning_rates: the rates in force, and the modules that they leave alone."""

from __future__ import annotations

import torch
from torch import nn

from egeria.model.learning_rates import LearningRates
from egeria.model.modules import LayerModule, partition


def setting(*rates: float | None) -> tuple[LearningRates, list[LayerModule], list[torch.optim.Optimizer]]:
    """A model of one layer module per rate, of which each has an optimizer with that rate; None: it has none."""
    layers = [nn.Linear(4, 4) for _ in rates]
    modules = partition(nn.Sequential(*layers), layers)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SGD(layer.parameters(), rate) for layer, rate in zip(layers, rates) if rate is not None
    ]
    return LearningRates(optimizers), modules, optimizers


def still(*rates: float | None) -> int:
    learning_rates, modules, _ = setting(*rates)
    return learning_rates.zero_lr_prefix(learning_rates.now(), modules)


def test_modules_of_rate_zero_are_still_from_the_front_on():
    assert still(0.1, 0.1, 0.1, 0.1) == 0
    assert still(0.0, 0.0, 0.1, 0.1) == 2
    assert still(0.0, 0.1, 0.0, 0.1) == 1
    assert still(0.1, 0.0, 0.0, 0.1) == 0


def test_the_last_module_is_never_still():
    assert still(0.0, 0.1, 0.0, 0.0) == 1
    learning_rates, modules, _ = setting(0.0, 0.0, 0.0, 0.1)
    assert learning_rates.zero_lr_prefix(learning_rates.now(), modules[:3]) == 2


def test_before_a_warm_up_nothing_is_still():
    assert still(0.0, 0.0, 0.0, 0.0) == 0


def test_at_the_end_of_a_schedule_it_is_as_it_was():
    learning_rates, modules, optimizers = setting(0.0, 0.0, 0.1, 0.1)
    assert learning_rates.zero_lr_prefix(learning_rates.now(), modules) == 2
    for optimizer in optimizers:
        optimizer.param_groups[0]["lr"] = 0.0
    assert learning_rates.zero_lr_prefix(learning_rates.now(), modules) == 2
    for optimizer in optimizers:
        optimizer.param_groups[0]["lr"] = 0.1
    assert learning_rates.zero_lr_prefix(learning_rates.now(), modules) == 0


def test_modules_in_no_optimizer_are_their_owners_business():
    assert still(None, None, 0.1, 0.1) == 0
    assert still(None, 0.0, None, 0.1) == 2


def test_a_module_with_a_parameter_that_learns_is_not_still():
    learning_rates, modules, optimizers = setting(0.0, 0.0, 0.1, 0.1)
    group = optimizers[1].param_groups[0]
    optimizers[1].add_param_group({"params": [group["params"].pop()], "lr": 0.1})
    assert learning_rates.zero_lr_prefix(learning_rates.now(), modules) == 1


def test_it_is_counted_anew_when_rates_change():
    learning_rates, modules, optimizers = setting(0.0, 0.0, 0.1, 0.1)
    assert learning_rates.now() == [0.0, 0.0, 0.1, 0.1]
    assert learning_rates.zero_lr_prefix(learning_rates.now(), modules) == 2
    optimizers[1].param_groups[0]["lr"] = 0.1
    assert learning_rates.zero_lr_prefix(learning_rates.now(), modules) == 1
    optimizers[1].param_groups[0]["lr"] = torch.tensor(0.0)
    assert learning_rates.zero_lr_prefix(learning_rates.now(), modules) == 2


def test_the_rate_is_summed_of_the_first_group_that_has_learned_as_long_as_it_does():
    learning_rates, _, _ = setting(0.0, 0.5, 0.25)
    learning_rates.end_step([0.0, 0.5, 0.25])
    learning_rates.end_step([4.0, 0.5, 0.25])  # group 1 is followed still
    assert learning_rates.sum == 1.0
    learning_rates.end_step([4.0, 0.0, 0.25])
    learning_rates.end_step([4.0, 0.5, 0.25])
    assert learning_rates.sum == 9.0
    learning_rates.end_step([0.0, 0.0, 0.0])
    learning_rates.end_step([float("inf"), 0.0, 0.0])
    assert learning_rates.mean_over(6) == 1.5
