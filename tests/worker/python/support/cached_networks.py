"""Networks that nothing trains, and loops that call them plainly and cached."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

import egeria
from egeria import _native
from egeria.cached_calls import cached as cached_calls

BATCH = 8
SAMPLES = 28  # three batches and a half


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8 * 8 * 8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.stem(x).flatten(1)))


def conv_net() -> ConvNet:
    return ConvNet().eval().requires_grad_(False)


class Pair(nn.Module):
    """A student with its teacher inside, as a LightningModule has it."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = conv_net()
        self.student = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 10))


@dataclasses.dataclass
class Features:
    """An output class of the script's own, which pytree does not know."""

    low: Tensor
    high: list[Tensor]
    name: str = "features"


class Structured(ConvNet):
    """Returns all kinds of things."""

    def forward(self, images: Tensor, scale: float = 1.0, extra: dict[str, Tensor] | None = None) -> dict[str, Any]:
        low = self.stem(images)
        mean, log_variance = low.chunk(2, dim=1)  # with gaps between their rows
        logits = super().forward(images) * scale
        return {
            "features": Features(low, [low.flatten(1), logits]),
            "again": logits,
            "gaps": (mean, log_variance),
            "classes": logits.argmax(-1),
            "half": logits.bfloat16(),
            "inputs": images,
            "extra": None if extra is None else extra["weights"] * 2,
            "count": 3,
        }


def images(generator: int = 0) -> tuple[Tensor, ...]:
    return (torch.randn(SAMPLES, 3, 8, 8, generator=torch.Generator().manual_seed(generator)),)


def server_of(network: nn.Module) -> Any:
    return cached_calls._forward_of(network).server


def wait_until_kept(network: nn.Module, seconds: float = 300) -> None:
    """Until the cache has what it was offered."""
    cache = server_of(network).line._cache
    if cache is None:
        return
    deadline = time.monotonic() + seconds
    while not cache.attached:
        assert time.monotonic() < deadline, "there is no cache"
        time.sleep(0.01)
    assert cache.flush(seconds)


def same(one: Any, other: Any) -> bool:
    """Whether a caller could tell one value from the other, but by identity."""
    mine, structure = pytree.tree_flatten(one)
    theirs, other_structure = pytree.tree_flatten(other)
    return structure == other_structure and len(mine) == len(theirs) and all(map(_same_leaf, mine, theirs))


def _same_leaf(one: Any, other: Any) -> bool:
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and same(vars(one), vars(other))
    if not isinstance(one, Tensor):
        return type(one) is type(other) and one == other
    looks = [
        (type(t), t.dtype, t.device, t.shape, t.stride(), t.requires_grad, t.is_inference(), t.is_leaf)
        for t in (one, other)
    ]
    return looks[0] == looks[1] and _native.same_bits(one, other)


def batches(count: int, epochs: int, order: int = 0) -> list[list[int]]:
    """Shuffled epochs, each with a last batch that is smaller."""
    generator = torch.Generator().manual_seed(order)
    orders = [torch.randperm(count, generator=generator).tolist() for _ in range(epochs)]
    return [order[begin : begin + BATCH] for order in orders for begin in range(0, count, BATCH)]


def compare(
    network: nn.Module,
    call: Callable[[nn.Module, Sequence[int]], Any],
    cache: str,
    *,
    epochs: int = 5,
    samples: int = SAMPLES,
    plain: Callable[[Any], Any] = lambda value: value,
    before: Callable[[int, nn.Module], None] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Calls a cached network and a plain copy of it alike, and checks that they give the same; random states, too.
    Returns the cache's summary.

    Args:
      plain: gives of the copy's result what the cached call is to give.
      before: called before each call with its number and each of the two.
    """
    twin = copy.deepcopy(network)
    assert egeria.cached(network, cache=cache, **{"use": "always", **options}) is network
    for number, rows in enumerate(batches(samples, epochs)):
        for model in (network, twin) if before is not None else ():
            before(number, model)
        torch.manual_seed(number)
        value = call(network, rows)
        random = torch.get_rng_state()
        torch.manual_seed(number)
        expected = plain(call(twin, rows))
        assert torch.equal(random, torch.get_rng_state())
        assert same(value, expected), f"call {number}"
        wait_until_kept(network)
    summary = egeria.cache_summary(network)
    egeria.uncached(network)
    assert vars(network).keys() == vars(twin).keys()
    return summary
