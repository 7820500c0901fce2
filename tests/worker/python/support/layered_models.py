"""Small models in layers, for the tests of freezing, and an independent way to freeze them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from egeria.model.modules import LayerModule
from support.sharded import whole


class Block(nn.Module):
    """A residual layer; `norm` may be BatchNorm, then frozen buffers matter."""

    def __init__(self, width: int, norm: type[nn.Module] = nn.LayerNorm, dropout: float = 0.0):
        super().__init__()
        self.norm = norm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(torch.relu(self.up(self.norm(x)))))


class OtherwiseInSmallBatches(nn.Module):
    """As kernels do which share the work among samples, it rounds otherwise where there are fewer of them."""

    def __init__(self, batch: int):
        super().__init__()
        self.batch = batch

    def forward(self, images: Tensor) -> Tensor:
        return images if len(images) == self.batch else images * (1 + 1e-6)


class Layered(nn.Module):
    """A stem, blocks and a head; each is a layer module.

    Args:
      reentrant: None: blocks run as they are; True, False: each is checkpointed with use_reentrant=reentrant.
    """

    def __init__(
        self,
        blocks: int = 4,
        width: int = 16,
        norm: type[nn.Module] = nn.LayerNorm,
        dropout: float = 0.0,
        reentrant: bool | None = None,
    ):
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.blocks = nn.ModuleList(Block(width, norm, dropout) for _ in range(blocks))
        self.head = nn.Linear(width, 4)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class Unused(Layered):
    """Has a head that no output comes from: DistributedDataParallel must be told to find unused parameters."""

    def __init__(self, **options):
        super().__init__(**options)
        self.idle = nn.Linear(4, 4)


def make(seed: int = 0, **options) -> Layered:
    """A Layered whose weights follow from `seed`."""
    torch.manual_seed(seed)
    return Layered(**options)


def backward(model: nn.Module, seed: int) -> None:
    """Adds the gradients of a small batch, which follows from `seed`."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randn(6, 8, generator=generator), torch.randint(4, (6,), generator=generator)
    nn.functional.cross_entropy(model(inputs), targets).backward()


def equal(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Whether all are equal to the bit."""
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right))


def layer_modules(model: Layered) -> list[LayerModule]:
    """Stem, each block, and the head with what follows it."""
    named = [("stem", model.stem), *((f"blocks.{i}", block) for i, block in enumerate(model.blocks))]
    last = [(name, child) for name, child in model.named_children() if name in ("head", "idle")]
    modules = [LayerModule(name, (unit,), (name,)) for name, unit in named]
    return [*modules, LayerModule("head", tuple(unit for _, unit in last), tuple(name for name, _ in last))]


def freeze_by_hand(modules: Sequence[LayerModule], prefix: int) -> None:
    """Does what a Freezer has to amount to, for a model that nobody else touches."""
    for index, module in enumerate(modules):
        for unit in module.units:
            unit.requires_grad_(index >= prefix)
            unit.train(index >= prefix)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the gradients that there are, whole where they are sharded and dense where they are sparse."""

    def copied(gradient: Tensor) -> Tensor:
        return (whole(gradient).to_dense() if gradient.is_sparse else whole(gradient)).detach().clone()

    return {name: copied(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def largest_relative_error(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The largest relative error of a parameter's gradient, in the Euclidean norm.

    A gradient that is less than a hundredth of the whole one, as where samples cancel, is measured against that
    hundredth: its rounding errors are the samples'. Raises AssertionError where one side has a gradient that the other
    lacks.
    """
    assert got.keys() == wanted.keys(), sorted(got.keys() ^ wanted.keys())
    floor = 0.01 * sum(value.square().sum() for value in wanted.values()).sqrt()
    return max(((got[name] - wanted[name]).norm() / wanted[name].norm().clamp_min(floor)).item() for name in wanted)


def relative_error_of_all(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The relative error of the gradient as one long vector."""
    difference = sum((got[name] - wanted[name]).square().sum() for name in wanted)
    return (difference / sum(value.square().sum() for value in wanted.values())).sqrt().item()


class WithTable(Layered):
    """Looks its input up in a table whose gradients are sparse."""

    def __init__(self, **options):
        super().__init__(**options)
        self.stem = nn.Embedding(32, 16, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem((x.sum(1).abs() * 8).long() % 32)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
