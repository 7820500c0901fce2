"""A weight that several layer modules share stays active as long as one of them is, and everything else freezes."""

from __future__ import annotations

import logging
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from session_runs import run
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import egeria
from egeria.training import session as session_module

PLANS = [(4, 2), (8, 3), (12, 0)]
WORDS = 40


@pytest.fixture(autouse=True)
def no_session_stays_open() -> Iterator[None]:
    yield
    for session in list(session_module._open.values()):
        session.close(finished=False)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Language(nn.Module):
    """The shape of nanoGPT: a position table of its own, a last matrix that is the table of words."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, 16), nn.Embedding(8, 16)
        self.h = nn.ModuleList(Block() for _ in range(4))
        self.ln_f = nn.LayerNorm(16)
        self.lm_head = nn.Linear(16, WORDS, bias=False)
        self.lm_head.weight = self.wte.weight

    def body(self, x: Tensor) -> Tensor:
        x = self.wte(x) + self.wpe(torch.arange(x.size(1)))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.lm_head(self.body(x))


class ByFunction(Language):
    """Has no module for the last matrix."""

    def __init__(self) -> None:
        super().__init__()
        del self.lm_head

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.body(x), self.wte.weight)


class EncoderAndDecoder(Language):
    """Both sides and the last matrix have one table of words."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder_words = nn.Embedding(WORDS, 16)
        self.decoder_words.weight = self.wte.weight

    def forward(self, x: Tensor) -> Tensor:
        told = self.wte(x)
        for block in self.h[:2]:
            told = block(told)
        x = self.decoder_words(x) + told.mean(1, keepdim=True)
        for block in self.h[2:]:
            x = block(x)
        return self.lm_head(self.ln_f(x))


SPECS: dict[str, list[Any]] = {
    "the table alone": ["wte", ["wpe", "h.0"], "h.1", "h.2", ["h.3", "ln_f", "lm_head"]],
    "the table in front": [["wte", "wpe", "h.0"], "h.1", "h.2", "h.3", ["ln_f", "lm_head"]],
    "both at the end": [["wpe", "h.0"], "h.1", "h.2", "h.3", ["wte", "ln_f", "lm_head"]],
}
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, 0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: AdamW(parameters, 1e-2),
}


def by_hand(model: nn.Module, optimizer: Optimizer, spec: Sequence[Any], prefix: int) -> None:
    """Freezes as a careful person does: the gradients of what only frozen layers use are off."""
    groups = [[model.get_submodule(name) for name in ([entry] if isinstance(entry, str) else entry)] for entry in spec]
    active = {id(parameter) for group in groups[prefix:] for unit in group for parameter in unit.parameters()}
    for parameter in model.parameters():
        trained, parameter.requires_grad = parameter.requires_grad, id(parameter) in active
        if not parameter.requires_grad:
            parameter.grad = None
        elif not trained and "momentum_buffer" in optimizer.state[parameter]:
            optimizer.state[parameter]["momentum_buffer"].zero_()


def train(model: nn.Module, optimizer: Optimizer, after: Callable[[int, Tensor], None]) -> None:
    for step in range(1, 17):
        words = torch.randint(WORDS, (4, 8), generator=torch.Generator().manual_seed(step))
        loss = F.cross_entropy(model(words).flatten(0, 1), words.roll(1, 1).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after(step, loss)


def seeded(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def as_by_hand(kind: type[nn.Module], spec: Sequence[Any], make: Callable[[Any], Optimizer], **more: Any) -> Any:
    """Trains twice, and returns the session of the first training."""
    model, twin = seeded(kind), seeded(kind)
    optimizer = make(model.parameters())
    config = egeria.Config(plans=PLANS, controller="none")
    session = egeria.attach(more.get("wrap", lambda same: same)(model), optimizer, modules=spec, config=config)
    called = more.get("wrap", lambda same: same)(model)
    train(called, optimizer, lambda _, loss: session.step(loss))
    other = make(twin.parameters())
    plans = dict(PLANS)
    train(twin, other, lambda step, _: by_hand(twin, other, spec, plans[step]) if step in plans else None)
    assert [(switch.step, switch.frozen_prefix) for switch in session.switches] == PLANS
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters()):
        assert torch.equal(mine, theirs), name
    return session


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("spec", SPECS)
def test_tied_tables_train_to_the_bit_as_by_hand(spec: str, optimizer: str, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, logger="egeria"):
        as_by_hand(Language, SPECS[spec], OPTIMIZERS[optimizer])
    assert not caplog.records


def test_a_table_that_encoder_decoder_and_head_share_trains_as_by_hand():
    spec = [["wte", "wpe", "h.0"], "h.1", ["decoder_words", "h.2"], "h.3", ["ln_f", "lm_head"]]
    as_by_hand(EncoderAndDecoder, spec, OPTIMIZERS["sgd"])


def test_a_table_that_a_function_uses_at_the_end_is_not_frozen_with_the_front():
    model = seeded(ByFunction)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    config = egeria.Config(plans=[(4, 2)], controller="none")
    session = egeria.attach(model, optimizer, config=config)
    train(model, optimizer, lambda _, loss: session.step(loss))
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert session.prefix == 2 and frozen and "wte.weight" not in frozen and "wpe.weight" in frozen


def test_a_compiled_model_with_a_tied_table_trains_on():
    model = torch.compile(seeded(Language), backend="aot_eager")
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    session = egeria.attach(model, optimizer, config=egeria.Config(plans=[(4, 2)], controller="none"))
    words: list[Tensor] = []
    train(model, optimizer, lambda _, loss: words.append(model._orig_mod.wte.weight.detach().clone()))
    assert session.prefix == 2 and not any(torch.equal(*pair) for pair in zip(words, words[1:]))


def test_the_frozen_share_counts_what_is_frozen_and_trains():
    model = seeded(Language)
    model.h[1].requires_grad_(False)
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    config = egeria.Config(plans=[(2, 1), (4, 2), (6, 3)], controller="none")
    spec = ["wte", "h.1", ["wpe", "h.0"], "h.2", ["h.3", "ln_f", "lm_head"]]
    session = egeria.attach(model, optimizer, modules=spec, config=config)
    shares: list[tuple[float, str]] = []
    train(
        model, optimizer, lambda _, loss: shares.append((session.scalars()["egeria/frozen_share"], session.progress()))
    )
    trained = sum(parameter.numel() for name, parameter in model.named_parameters() if not name.startswith("h.1."))
    front = sum(parameter.numel() for unit in (model.wpe, model.h[0]) for parameter in unit.parameters())
    assert [share for share, _ in shares[1::2][:3]] == pytest.approx([0, 0, front / trained])
    assert shares[4][1] == "frozen 0/3" and shares[6][1].startswith("frozen 1/3")
    assert len(session.switches) == 3 and session.summary()["freezes"] == 1
    model.requires_grad_(False)
    with pytest.raises(egeria.EgeriaError, match=r"\[NOTHING_TRAINABLE\] no parameter requires"):
        egeria.attach(model, optimizer)


class Positions(nn.Sequential):
    """Its positions are the model's own."""

    def __init__(self) -> None:
        super().__init__(*(nn.Linear(8, 8) for _ in range(4)))
        self.register_parameter("positions", nn.Parameter(torch.zeros(8)))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.positions)


@pytest.mark.parametrize("compiled", [False, True])
def test_what_the_model_holds_freezes_where_it_is_used(compiled: bool, controller: Any):
    model = Positions()
    optimizer = SGD(model.parameters(), 0.1)
    options = {"entries": [{"fraction": 0.02, "frozen_prefix": 1}]}
    config = egeria.Config(controller=controller.address, policy="schedule", options=options, total_steps=1000)
    called = torch.compile(model, backend="eager") if compiled else model
    session = egeria.attach(called, optimizer, config=config)
    assert [name for name, _ in session.modules[-1].loose] == ["positions"], "until a pass has shown more"
    for _ in range(400):
        called(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        if session.prefix == 1:
            break
        time.sleep(0.01)
    assert session.prefix == 1 and not model.positions.requires_grad


def test_an_end_without_anything_to_train_joins_what_trains():
    """As in a model with adapters, whose table of words is tied and does not train."""
    model = seeded(Language)
    model.requires_grad_(False)
    for block in model.h[:3]:
        block.up.requires_grad_(True)
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    session = egeria.attach(model, optimizer, config=egeria.Config(plans=[(4, 1)], controller="none"))
    assert session.modules[-1].name == "h.2-lm_head"
    train(model, optimizer, lambda _, loss: session.step(loss))
    assert session.prefix == 1


def test_a_weight_that_does_not_train_may_be_moved(caplog: pytest.LogCaptureFixture):
    """As in momentum contrast, whose second encoder is an average of the first."""
    model = seeded(Language)
    model.h[0].requires_grad_(False)
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    session = egeria.attach(model, optimizer, config=egeria.Config(plans=[(2, 2)], controller="none"))
    train(model, optimizer, lambda _, loss: model.h[0].up.weight.data.mul_(0.99))
    assert session.prefix == 2 and any(model.h[0] in module.units for module in session.modules[:2])
    assert not caplog.records


def test_gradients_that_are_off_when_the_link_starts_change_nothing(controller: Any, caplog: pytest.LogCaptureFixture):
    """As in a generator's step, in which the critic's are."""
    model = seeded(Language)
    optimizer = SGD(model.parameters(), 0.1)
    config = egeria.Config(
        controller=controller.address,
        policy="schedule",
        options={"entries": [{"fraction": 1.0, "frozen_prefix": 1}]},
        total_steps=1000,
    )
    session = egeria.attach(model, optimizer, config=config)

    def toggle(step: int, _: Tensor) -> None:
        model.ln_f.requires_grad_(step % 2 == 0)
        model.h[3].requires_grad_(step % 2 == 0)

    before = [module.name for module in session.modules]
    toggle(1, torch.zeros(()))
    train(model, optimizer, toggle)
    assert session.counters() and [module.name for module in session.modules] == before
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_ranks_stay_alike_around_a_tied_weight(tmp_path: pathlib.Path):
    options = ["--egeria", "plans", "--plans", "4:1,8:2,12:0", "--steps", 16, "--model", "tied"]
    records, output = run(tmp_path, *options)
    assert [switch[:2] for switch in records[0]["switches"]] == [[4, 1], [8, 2], [12, 0]]
    assert records[0]["switches"] == records[1]["switches"] and records[0]["summary"]["ranks_identical"]
    assert records[0]["weights"] == records[1]["weights"] and "warning" not in output.lower()
