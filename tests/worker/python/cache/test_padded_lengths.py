"""Texts that are padded to the longest of a batch are served at other lengths, with the bits of a plain training."""

from __future__ import annotations

import collections
import itertools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cache_daemon import Daemon
from launching import Program
from skipping_runs import DictStore, epochs, train
from torch import Tensor, nn

from egeria.cache.gate import CacheGate
from egeria.cache.model_call import Call
from egeria.cache.padding import Padding, Text
from egeria.cache.proofs_by_shape import Proofs
from egeria.cache.text_references import Range, References
from egeria.cache.waiting_texts import WaitingTexts

transformers = pytest.importorskip("transformers")

SAMPLES = 48
GENERATOR = torch.Generator().manual_seed(3)
WORDS = torch.randint(5, 200, (SAMPLES, 64), generator=GENERATOR)
LABELS = torch.randint(2, (SAMPLES,), generator=GENERATOR)


class Classifier(nn.Module):
    """A BERT with a head on what `pool` makes of its hidden states."""

    def __init__(self, pool: Callable[[Tensor, Tensor], Tensor], attention: str):
        super().__init__()
        sizes = dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=2, intermediate_size=128)
        config = transformers.BertConfig(vocab_size=200, max_position_embeddings=64, **sizes)
        config._attn_implementation = attention
        self.bert = transformers.BertModel(config, add_pooling_layer=False)
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 2)
        self._pool = pool

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return F.cross_entropy(self.head(self._pool(self, states, attention_mask)), labels)


def masked_mean(model: nn.Module, states: Tensor, mask: Tensor) -> Tensor:
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)


def first_token(model: nn.Module, states: Tensor, mask: Tensor) -> Tensor:
    return states[:, 0]


def mean(model: nn.Module, states: Tensor, mask: Tensor) -> Tensor:
    return states.mean(1)


def most(model: nn.Module, states: Tensor, mask: Tensor) -> Tensor:
    return states.amax(1)


def normalised(model: nn.Module, states: Tensor, mask: Tensor) -> Tensor:
    return masked_mean(model, model.norm(states.transpose(1, 2)).transpose(1, 2), mask)


class Pooled(nn.Module):
    """The frozen layers give a number of features for each text."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = Trunk()
        self.head = nn.Linear(64, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.trunk(input_ids, attention_mask)), labels)


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bert = Classifier(masked_mean, "sdpa").bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return masked_mean(
            self, self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state, attention_mask
        )


class OtherAtALength(Trunk):
    """Texts that are padded to 24 tokens come out a little otherwise."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        pooled = super().forward(input_ids, attention_mask)
        return pooled * (1 + 2**-20) if input_ids.size(1) == 24 else pooled


class OtherAtTheEnd(Trunk):
    """The last vector of 16 tokens counts otherwise where it is not full."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        full = input_ids.size(1) // 16 * 16
        behind = attention_mask[:, full:].sum(1, keepdim=True) / max(1, input_ids.size(1) - full)
        return super().forward(input_ids, attention_mask) + 2**-10 * behind


class OtherInShortVectors(Trunk):
    """A last vector of 8 tokens counts otherwise where it is not full, as on processors with such vectors."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        behind = attention_mask[:, input_ids.size(1) // 8 * 8 :].sum(1, keepdim=True)
        return super().forward(input_ids, attention_mask) + 2**-10 * behind


LAYERS = ["bert.embeddings", *(rf"bert\.encoder\.layer\.{number}" for number in range(3)), "norm|head"]


def padded(lengths: list[int], to: Callable[[int], int] = lambda longest: longest) -> Callable[[list[int]], Any]:
    """Makes batches that are padded to their longest text."""

    def arguments(ids: list[int]) -> Any:
        length = to(max(lengths[sample] for sample in ids))
        mask = torch.tensor([[int(place < lengths[sample]) for place in range(length)] for sample in ids])
        return (), dict(input_ids=WORDS[ids, :length] * mask, attention_mask=mask, labels=LABELS[ids])

    return arguments


def lengths_between(least: int, greatest: int) -> list[int]:
    return [least + (5 * sample) % (greatest + 1 - least) for sample in range(SAMPLES)]


def run(build: Callable[[], nn.Module], layers: list[str], prefix: int, arguments: Any, number: int = 5) -> Any:
    steps = epochs(SAMPLES, 8, number, arguments)
    assert len({kwargs["input_ids"].size(1) for _, _, kwargs in steps}) > 3
    store = DictStore()
    cached = train(build, layers, prefix, steps, lambda loss: loss, store, warm=True)
    assert cached.refusal is None, cached.skipper.refusal
    assert cached.same_as(train(build, layers, prefix, steps, lambda loss: loss, warm=True))
    assert cached.counters["failures"] == 0
    return cached, store


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("pool", [masked_mean, first_token])
def test_rows_of_tokens_are_kept_without_their_padding(pool: Any, attention: str) -> None:
    lengths = lengths_between(17, 30)
    cached, store = run(lambda: Classifier(pool, attention), LAYERS, 2, padded(lengths))
    assert cached.counters["hits"] > 2.5 * SAMPLES, cached.counters


def test_a_pooled_text_is_the_same_at_other_lengths() -> None:
    lengths = lengths_between(17, 30)
    cached, store = run(Pooled, ["trunk", "head"], 1, padded(lengths))
    assert cached.counters["hits"] > 2.5 * SAMPLES, cached.counters


@pytest.mark.parametrize("pool", [mean, most, normalised])
def test_padding_that_the_trained_layers_look_at_counts(pool: Any) -> None:
    lengths = lengths_between(17, 30)
    cached, store = run(lambda: Classifier(pool, "sdpa"), LAYERS, 2, padded(lengths), 8)
    assert cached.counters["hits"] > 0


def pooled_by(trunk: type[nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = Pooled()
        model.trunk = trunk()
        return model

    return build


@pytest.mark.parametrize("trunk", [OtherAtALength, OtherAtTheEnd, OtherInShortVectors])
def test_a_length_that_makes_a_difference(trunk: type[nn.Module]) -> None:
    lengths = lengths_between(10, 46)
    cached, store = run(pooled_by(trunk), ["trunk", "head"], 1, padded(lengths), 6)
    assert cached.counters["hits"] > SAMPLES, cached.counters


def test_texts_are_the_same_between_multiples_of_short_vectors() -> None:
    to = itertools.cycle(range(18, 24))
    arguments = padded(lengths_between(17, 18), lambda longest: next(to))
    cached, store = run(pooled_by(OtherInShortVectors), ["trunk", "head"], 1, arguments)
    assert cached.counters["hits"] > 2.5 * SAMPLES, cached.counters


def test_texts_of_the_greatest_length_are_compared_in_batches_with_padding() -> None:
    """A network may ask whether there is any, and treat a batch without it otherwise."""
    found: list[list[int]] = []

    def compute(call: Call) -> list[Tensor]:
        found.append(Padding.of(call).lengths)
        return [torch.zeros(call.batch, 1)]

    _, kwargs = padded([23, 20, 21], lambda longest: 24)([0, 1, 2])
    call = Call((), kwargs, 3)
    references, conditions = References(Padding.of(call), call, size=3), call.conditions()
    for tokens in ([20, 21, 22], [23]):
        texts = [Text(each, 0) for each in tokens]
        known = references.find(Range(20, 23, 23), texts, conditions, compute, [False])
        assert set(texts) <= set(known)
    assert len(found) == 2
    assert all(min(lengths) < 23 for lengths in found), found


def test_comparisons_may_take_the_larger_share_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def may_prove(self: CacheGate, seconds: float, passes: float, is_text: bool = False) -> bool:
        asked.append(is_text)
        return True

    monkeypatch.setattr(CacheGate, "may_prove", may_prove)
    run(Pooled, ["trunk", "head"], 1, padded(lengths_between(17, 30)))
    assert len(asked) > 3
    assert all(asked)


def test_a_length_takes_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: collections.Counter[int] = collections.Counter()

    class Noted(Call):
        def run(self, function: Callable[..., Any]) -> Any:
            passes[self.tensors()[0].size(1)] += 1
            return super().run(function)

    monkeypatch.setattr("egeria.cache.skipper.Call", Noted)
    monkeypatch.setattr("egeria.cache.text_lengths._ENOUGH_NUMBERS", 1)  # in a real network one batch has enough
    lengths = lengths_between(17, 24)
    to = iter([25, 26, 27, 28, 29, 30])
    steps = epochs(SAMPLES, 8, 1, padded(lengths, lambda longest: next(to)))
    train(Pooled, ["trunk", "head"], 1, steps, lambda loss: loss, DictStore(), warm=True)
    # One pass as usual, and one without the frozen layers.
    assert [passes[length] for length in (27, 28, 29, 30)] == [2, 2, 2, 2], passes
    assert passes[31] <= 4, passes  # to compare with


def test_what_came_before_its_length_was_proven_is_kept_then(monkeypatch: pytest.MonkeyPatch) -> None:
    comings: collections.Counter[Any] = collections.Counter()

    def pays(self: Proofs, key: Any, call: Call) -> bool:
        comings[key] += 1
        return comings[key] > 1

    monkeypatch.setattr(Proofs, "_pays", pays)
    # The first two lengths are not compared with others yet. The one of 28 is never proven.
    to = iter([25, 26, 26, 27, 28, 27])
    steps = epochs(SAMPLES, 8, 1, padded(lengths_between(17, 24), lambda longest: next(to)))
    store = DictStore()
    train(Pooled, ["trunk", "head"], 1, steps, lambda loss: loss, store, warm=True)
    assert store.stored == 4 * 8


def test_what_waits_has_a_limit() -> None:
    waiting = WaitingTexts(most_bytes=100)
    call = Call((torch.zeros(2, 3),), {}, 2)
    for number in range(3):
        waiting.add("key", call, [2 * number, 2 * number + 1], ["trunk"], [torch.zeros(12)])
    assert [batch.ids for batch in waiting.take("key", ["trunk"])] == [[0, 1], [2, 3]]
    waiting.add("key", call, [6, 7], ["trunk"], [torch.zeros(12)])
    assert waiting.take("key", ["another"]) == []  # another cut is not what was expected


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_trainer_with_a_collator_that_pads(ranks: int, cache_daemon: Daemon, tmp_path: pathlib.Path) -> None:
    runs = []
    for name, options in (("plain", ()), ("cached", ("--cache", cache_daemon.address))):
        out = tmp_path / name
        out.mkdir()
        with Program(tmp_path, "padded_texts_job.py", out, *options, ranks=ranks) as job:
            job.succeed()
        runs.append([json.loads((out / f"rank{rank}.json").read_text()) for rank in range(ranks)])
    for plain, cached in zip(*runs):
        assert plain["weights"] == cached["weights"]
        assert cached["counters"]["hits"] > 96 / ranks, cached
        assert cached["counters"]["failures"] == 0, cached
