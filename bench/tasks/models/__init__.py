"""The networks of the tasks, written out so that no further package is needed."""

from __future__ import annotations

from torch import nn


def initialize_convolutions(network: nn.Module) -> None:
    """Kaiming's normal distribution by fan-out, for ReLU."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
