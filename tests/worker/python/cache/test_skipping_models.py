"""Models of the field with frozen layers that are skipped: the same bits, or refused by name."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from skipped_models import (
    LABELS,
    MASK,
    TOKENS,
    Encoder,
    ThreeLayers,
    UNet,
    Upwards,
    WithLowLevelFeatures,
    encoder_layers,
    images,
    square,
    vectors,
)
from skipping_runs import DictStore, epochs, train
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

BERT_LAYERS = [
    "bert.embeddings",
    *(rf"bert\.encoder\.layer\.{number}" for number in range(4)),
    r"bert\.pooler|classifier",
]


def bert() -> nn.Module:
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=200, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64
        )
    )


def gpt(**options: Any) -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=200, n_embd=32, n_layer=4, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0, **options
        )
    )


def untied_gpt() -> nn.Module:
    return gpt(tie_word_embeddings=False)


def gpt_layers(model: nn.Module) -> list[Any]:
    body = model.transformer
    return [[body.wte, body.wpe, body.drop], *body.h[:3], [body.h[3], body.ln_f, model.lm_head]]


def loss_of(output: Any) -> Tensor:
    return output.loss


def sentences(ids: list[int], **options: Any) -> Any:
    return (), dict(input_ids=TOKENS[ids], attention_mask=MASK[ids], labels=LABELS[ids], **options)


def text(ids: list[int], **options: Any) -> Any:
    return (), dict(input_ids=TOKENS[ids], labels=TOKENS[ids], use_cache=False, **options)


def expect_same(build: Any, layers: Any, prefix: int, steps: Any, loss: Any = square) -> list[str]:
    """Names of the layers whose outputs crossed."""
    cached = train(build, layers, prefix, steps, loss, DictStore(), warm=True)
    assert cached.refusal is None, cached.skipper.refusal
    assert cached.same_as(train(build, layers, prefix, steps, loss, warm=True))
    assert cached.counters["passes_skipped"] >= 6
    return cached.live


def expect_refused(name: str, build: Any, layers: Any, prefix: int, steps: Any, loss: Any = square) -> None:
    cached = train(build, layers, prefix, steps, loss, DictStore())
    assert cached.refusal == name, cached.skipper.refusal
    assert cached.same_as(train(build, layers, prefix, steps, loss))
    assert cached.counters["passes_skipped"] == 0


@pytest.mark.parametrize("prefix", range(1, 6))
def test_bert_with_dropout_and_masks(prefix: int) -> None:
    live = expect_same(bert, BERT_LAYERS, prefix, epochs(22, 8, 4, sentences), loss_of)
    assert live == [["bert.embeddings", *(f"bert.encoder.layer.{number}" for number in range(4))][prefix - 1]]


@pytest.mark.parametrize("prefix", [2, 3, 5])
def test_bert_that_returns_its_hidden_states_is_refused(prefix: int) -> None:
    steps = epochs(16, 8, 2, lambda ids: sentences(ids, output_hidden_states=True))
    expect_refused("TOO_MANY_TENSORS", bert, BERT_LAYERS, prefix, steps, loss_of)


def test_one_layer_is_skipped_though_hidden_states_are_returned() -> None:
    """One tensor crosses the cut."""
    steps = epochs(22, 8, 4, lambda ids: sentences(ids, output_hidden_states=True))
    assert expect_same(bert, BERT_LAYERS, 1, steps, loss_of) == ["bert.embeddings"]


def test_hooks_that_a_library_adds_in_its_first_pass_are_added_once() -> None:
    """transformers adds hooks when hidden states are first asked for, and notes that in an attribute."""
    steps = epochs(8, 8, 1, lambda ids: sentences(ids, output_hidden_states=True))
    counts = []
    for store in (None, DictStore()):
        models: list[nn.Module] = []
        train(bert, BERT_LAYERS, 2, steps * 2, loss_of, store, each_step=lambda _, model, __: models.append(model))
        counts.append([len(module._forward_hooks) for module in models[-1].modules()][1:])
    assert counts[0] == counts[1]


@pytest.mark.parametrize("prefix", range(1, 5))
def test_gpt2_untied(prefix: int) -> None:
    expect_same(untied_gpt, gpt_layers, prefix, epochs(22, 8, 4, text), loss_of)


def test_gpt2_tied_is_refused() -> None:
    expect_refused("TIED_PARAMETER", gpt, gpt_layers, 1, epochs(16, 8, 2, text), loss_of)


def test_gpt2_with_a_cache_of_keys_is_refused() -> None:
    steps = [(ids, args, dict(kwargs, use_cache=True)) for ids, args, kwargs in epochs(16, 8, 2, text)]
    expect_refused("NOT_A_TENSOR", untied_gpt, gpt_layers, 2, steps, loss_of)


def test_gpt2_whose_embedding_dropout_is_active_draws_before_the_next_layer() -> None:
    def layers(model: nn.Module) -> list[Any]:
        body = model.transformer
        return [[body.wte, body.wpe], *body.h[:3], [body.h[3], body.ln_f, model.lm_head]]

    steps = epochs(16, 8, 4, text)
    # A position embedding has no rows for samples: it is computed, the other is kept.
    assert expect_same(untied_gpt, layers, 1, steps, loss_of) == ["transformer.wte"]
    expect_refused("RANDOM", untied_gpt, layers, 2, steps, loss_of)


@pytest.mark.parametrize(
    "prefix,live", [(1, ["stem"]), (2, ["first"]), (3, ["first", "second"]), (4, ["first", "third"])]
)
def test_low_level_features_cross_too(prefix: int, live: list[str]) -> None:
    layers = ["stem", "first", "second", "third", "low|head"]
    assert expect_same(WithLowLevelFeatures, layers, prefix, epochs(22, 8, 4, images)) == live


UNET_LAYERS = ["down1", "down2", "down3", "up2", "up1", "out"]


@pytest.mark.parametrize("prefix,live", [(1, ["down1"]), (5, ["up1"])])
def test_unet_at_its_outer_cuts(prefix: int, live: list[str]) -> None:
    assert expect_same(UNet, UNET_LAYERS, prefix, epochs(22, 8, 4, images)) == live


@pytest.mark.parametrize("prefix", [2, 3, 4])
def test_unet_is_refused_at_each_inner_cut(prefix: int) -> None:
    """Also where two tensors cross, as they do in the model with low-level features."""
    expect_refused("TOO_MANY_TENSORS", UNet, UNET_LAYERS, prefix, epochs(16, 8, 2, images))


@pytest.mark.parametrize("prefix", [2, 3])
def test_unet_in_halves_is_refused_too(prefix: int) -> None:
    """Its way up is a layer of its own, which takes all stages at once, and of which nothing is frozen."""

    class Halves(UNet):
        def __init__(self) -> None:
            super().__init__()
            self.up = Upwards(self.up2, self.up1)
            del self.up2, self.up1

        def forward(self, x: Tensor) -> Tensor:
            first = self.down1(x)
            second = self.down2(first)
            return self.out(self.up([first, second, self.down3(second)]))

    expect_refused("TOO_MANY_TENSORS", Halves, [*UNET_LAYERS[:3], "up", "out"], prefix, epochs(16, 8, 2, images))


def test_a_decoder_that_is_given_all_stages_and_takes_two_is_not_refused() -> None:
    class Decoder(nn.Module):
        def __init__(self, low: nn.Module, head: nn.Module) -> None:
            super().__init__()
            self.low, self.head = low, head

        def forward(self, stages: list[Tensor]) -> Tensor:
            low, high = stages[1], F.interpolate(stages[3], stages[1].shape[-2:])
            return self.head(torch.cat([high, self.low(low)], 1))

    class Model(WithLowLevelFeatures):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = Decoder(self.low, self.head)
            del self.low, self.head

        def forward(self, x: Tensor) -> Tensor:
            stages = [self.stem(x)]
            for layer in (self.first, self.second, self.third):
                stages.append(layer(stages[-1]))
            return self.decoder(stages)

    layers = ["stem", "first", "second", "third", "decoder"]
    assert expect_same(Model, layers, 3, epochs(22, 8, 4, images)) == ["first", "second"]


@pytest.mark.parametrize("prefix", range(1, 4))
def test_transformer_encoder_with_a_mask_by_keyword(prefix: int) -> None:
    steps = epochs(22, 8, 4, lambda ids: ((TOKENS[ids],), dict(padding=MASK[ids] == 0)))
    expect_same(Encoder, encoder_layers, prefix, steps)


def padded(ids: list[int], length: int) -> Any:
    """Cut to `length`, of which the mask leaves some."""
    return (), dict(input_ids=TOKENS[ids][:, :length], attention_mask=MASK[ids][:, :length], labels=LABELS[ids])


@pytest.mark.parametrize("prefix", [1, 3, 5])
def test_batches_that_are_padded_to_their_longest_sample(prefix: int) -> None:
    """A sample is padded otherwise in other company, and is another one then."""
    lengths = torch.randint(4, TOKENS.size(1) + 1, (22,), generator=torch.Generator().manual_seed(2)).tolist()
    steps = epochs(22, 4, 12, lambda ids: padded(ids, max(lengths[sample] for sample in ids)))
    assert len({kwargs["input_ids"].size(1) for _, _, kwargs in steps}) > 3
    store = DictStore()
    cached = train(bert, BERT_LAYERS, prefix, steps, loss_of, store, warm=True)
    assert cached.refusal is None, cached.skipper.refusal
    assert cached.same_as(train(bert, BERT_LAYERS, prefix, steps, loss_of, warm=True))
    assert cached.counters["passes_skipped"] > 0 and len(store.rows) > 22, "samples with several paddings"


@pytest.mark.parametrize("batch", [8, 12])
def test_batch_in_the_second_dimension_is_refused(batch: int) -> None:
    """Also where there are as many samples as tokens in a sentence, so that the sizes do not tell."""

    def build() -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Encoder(batch_first=False)

    steps = epochs(batch, batch, 3, lambda ids: ((TOKENS[ids],), {}))
    expect_refused("BATCH_NOT_FIRST" if batch == 8 else "BATCH_DEPENDENT", build, encoder_layers, 2, steps)


def test_layers_of_lists_are_found_where_they_are_called() -> None:
    class Listed(ThreeLayers):
        def __init__(self) -> None:
            super().__init__()
            self.front = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 8)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.front[0]:
                x = layer(x)
            return super().forward(self.front[1](x))

    # On some processors a row of a Linear's output depends on the batch's size: then the shorter batches are computed.
    live = expect_same(Listed, ["front", "a", "b", "c"], 1, epochs(22, 8, 8, vectors))
    assert live == ["front.1"]
