"""Scripts with a frozen trunk and a trained head, as strangers write them, run plainly and with the cache."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from cache_daemon import wait_until_kept
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import egeria
from egeria import data
from egeria.data import sample_ids
from egeria.errors import EgeriaError

SAMPLES, BATCH, EPOCHS = 24, 4, 5
_SECONDS = 120  # no script takes so long unless it hangs
_generator = torch.Generator().manual_seed(3)
IMAGES = torch.randn(SAMPLES, 3, 12, 12, generator=_generator)
LABELS = torch.arange(SAMPLES) % 4


class Script:
    """A script uses this of Egeria, where it has a cache, and notes what the two are compared by."""

    def __init__(self, cache: str | None):
        self.cache = cache
        self.session: egeria.Session | None = None
        self.losses: list[float] = []
        self.refused: list[str] = []

    def attach(self, model: nn.Module, optimizer: Any, **options: Any) -> None:
        if self.cache is None:
            return
        config = egeria.Config(controller="none", policy="none", cache=self.cache, cache_use="always")
        try:
            self.session = egeria.attach(model, optimizer, config=config, **options)
        except EgeriaError as error:
            self.refused.append(str(error))
            return
        caching = self.session._training.cache.caching
        caching._gate.ledger.skippable = 65  # nothing is audited, so that mistakes show

    def wrap(self, loader: DataLoader) -> DataLoader:
        if self.cache is None:
            return loader
        try:
            return data.wrap(loader)
        except EgeriaError as error:
            self.refused.append(str(error))
            return loader

    def loader(self, *tensors: Tensor, **options: Any) -> DataLoader:
        options = {"batch_size": BATCH, "shuffle": True} | options
        return self.wrap(DataLoader(TensorDataset(*(tensors or (IMAGES, LABELS))), **options))

    def note(self, loss: Tensor) -> None:
        self.losses.append(loss.item())

    def end_epoch(self) -> None:
        """Waits until the cache has kept what it was offered."""
        if self.session is not None:
            wait_until_kept(self.session)

    def train(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Iterable[Any] | None = None,
        *,
        epochs: int = EPOCHS,
        loss_of: Callable[[Any, Tensor], Tensor] = F.cross_entropy,
        call: Callable[..., Any] | None = None,
        before: Callable[[int], None] = lambda step: None,
        each_epoch: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        """The loop of most scripts."""
        loader = self.loader() if loader is None else loader
        steps = 0
        for epoch in range(epochs):
            each_epoch(epoch)
            for inputs, labels in loader:
                before(steps)
                loss = loss_of((call or model)(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                self.note(loss)
                steps += 1
            self.end_epoch()


@dataclasses.dataclass
class Outcome:
    """Tells what the cache did in a script, which trained as it does without.

    Attributes:
      served: passes whose frozen layers were not computed.
      names: of the reasons that its owner was told.
      text: all that he was told.
    """

    served: int
    names: set[str]
    text: str


class _Words(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def _no_longer_than(seconds: int) -> Iterator[None]:
    def give_up(*_: Any) -> None:
        raise AssertionError(f"the script hangs: no end within {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _run(function: Callable[[Script], Any], script: Script) -> tuple[list[Tensor], list[Any]]:
    """Returns all tensors that the script leaves, and its losses and random states."""
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    data.current().forget()
    sample_ids._told.clear()
    data.current()._without = 0
    left: list[Tensor] = []
    with _no_longer_than(_SECONDS):
        for entry in function(script):
            found = entry.state_dict().values() if isinstance(entry, nn.Module) else [entry]
            left += [value.detach().clone() for value in found if isinstance(value, Tensor)]
    states = [torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist()]
    return left, [script.losses, *states]


def compare(function: Callable[[Script], Any], cache: str) -> Outcome:
    """Runs the script plainly and with the cache, and expects the same of both, to the bit; and that it is served, or
    told why not.

    Args:
      function: returns modules and tensors that the training has made.
    """
    plain, others = _run(function, Script(None))
    script, words = Script(cache), _Words()
    logger = logging.getLogger("egeria")
    level = logger.level
    logger.addHandler(words)
    logger.setLevel(logging.INFO)
    try:
        cached, same_others = _run(function, script)
        session = script.session
        counters = session.cache_counters() if session is not None else {}
        reason = str(session.cache_estimates().get("reason")) if session is not None else ""
        if session is not None:
            session.close()
    finally:
        logger.removeHandler(words)
        logger.setLevel(level)
    assert others[0] == same_others[0], "the losses differ"
    assert others[1:] == same_others[1:], "random numbers were touched"
    assert len(plain) == len(cached)
    for one, other in zip(plain, cached):
        assert one.dtype == other.dtype and torch.equal(torch.nan_to_num(one.cpu()), torch.nan_to_num(other.cpu())), (
            "the weights differ"
        )
    assert not counters.get("failures"), counters
    text = "\n".join([*words.lines, *script.refused, reason])
    outcome = Outcome(counters.get("passes_skipped", 0), set(re.findall(r"\[([A-Z_]+)\]", text)), text)
    assert outcome.served or outcome.names or re.search("no sample ids|serves no frozen layers|nothing is frozen", text)
    return outcome


def freeze(*modules: nn.Module, evaluate: bool = True) -> None:
    for module in modules:
        module.requires_grad_(False)
        if evaluate:
            module.eval()


class Trunk(nn.Module):
    """Two convolutions with batch norms, down to a vector of eight numbers."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(dropout))
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, images: Tensor) -> Tensor:
        return self.pool(self.second(self.first(images)))


class Network(nn.Module):
    """A trunk and a head, of which the trunk stays in evaluation mode, whatever the model is put into."""

    def __init__(self, trunk: nn.Module | None = None, head: nn.Module | None = None, holds_mode: bool = True):
        super().__init__()
        self.trunk = Trunk() if trunk is None else trunk
        self.head = nn.Linear(8, 4) if head is None else head
        self._holds_mode = holds_mode
        freeze(self.trunk)

    def train(self, mode: bool = True) -> Network:
        super().train(mode)
        if getattr(self, "_holds_mode", False):
            self.trunk.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.trunk(images))


Run = Callable[[Callable[[Script], Any]], Outcome]  # compare() with a cache


def optimizer_of(model: nn.Module, rate: float = 0.05, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], rate, momentum=0.9, **options)


def trained(build: Callable[[], nn.Module], **options: Any) -> Callable[[Script], Any]:
    """A script with the usual loop."""

    def script(run: Script) -> Any:
        model = build()
        optimizer = optimizer_of(model)
        run.attach(model, optimizer)
        run.train(model, optimizer, **options)
        return [model]

    return script


def changed(build: Callable[[], nn.Module], change: Callable[[int, nn.Module], None]) -> Callable[[Script], Any]:
    """The same, in which something happens before each step."""

    def script(run: Script) -> Any:
        model = build()
        optimizer = optimizer_of(model)
        run.attach(model, optimizer)
        run.train(model, optimizer, before=lambda step: change(step, model))
        return [model]

    return script


def step(run: Script, model: nn.Module, optimizer: Any, images: Tensor, labels: Tensor) -> None:
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.note(loss)


def begun(run: Script, model: nn.Module | None = None, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = Network() if model is None else model
    optimizer = optimizer_of(model, **options)
    run.attach(model, optimizer)
    return model, optimizer
