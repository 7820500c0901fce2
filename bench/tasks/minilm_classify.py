"""A pretrained BERT of six layers (all-MiniLM-L6-v2), fine-tuned to tell which article a question is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from bench.harness.task import Profile, Quality
from bench.tasks.classification import accuracy_and_loss, correct_and_loss, labelled_loss
from bench.tasks.datasets.squad import questions_by_article
from bench.tasks.fine_tuning import FineTuning
from bench.tasks.models.minilm import MiniLm, TextClassifier, freeze_words

_SETTINGS = {
    "length": 32,
    "training": 4_800,
    "testing": 1_500,
    "rate": 2e-4,
    "head_rate": 10,
    "weight_decay": 0.01,
    "warm_up": 0.06,
    "decay": "linear",
}


class MiniLmClassify(FineTuning):
    """Classes are the articles of SQuAD's training file. The table of words is frozen in every run, as is common."""

    name = "minilm-classify"
    title = "MiniLM, question to article"
    quality = Quality("accuracy", "points", higher_is_better=True, scale=100)
    profiles = {
        "smoke": Profile(8, 8, 2, {**_SETTINGS, "training": 32, "testing": 16}),
        "small": Profile(600, 32, 20, _SETTINGS),
        "paper": Profile(4_000, 32, 40, {**_SETTINGS, "rate": 5e-5, "training": 80_000, "testing": 7_000}),
    }
    modules = staticmethod(lambda model: [model.bert.embeddings, *model.bert.encoder.layer, model.head])
    loss = staticmethod(labelled_loss)

    def load(self) -> None:
        self._pretrained = MiniLm()
        count = self.settings["testing"]
        texts, labels = questions_by_article(self.data, "train", count + self.settings["training"])
        self._pretrained.tokenizer.enable_truncation(self.settings["length"])
        tokens = torch.zeros(len(texts), self.settings["length"], dtype=torch.long)
        for row, text in zip(tokens, self._pretrained.tokenizer.encode_batch(texts)):
            row[: len(text.ids)] = torch.tensor(text.ids)
        self._classes = int(labels.max()) + 1
        self._test_tokens, self._test_labels = tokens[:count], labels[:count]
        self._training = TensorDataset(tokens[count:], labels[count:])

    @property
    def training_samples(self) -> int:
        return len(self._training)

    @property
    def validation_samples(self) -> int:
        return len(self._test_labels)

    def dataset(self) -> Sequence[Any]:
        return self._training

    def build_model(self) -> nn.Module:
        from transformers import BertModel

        bert = BertModel(self._pretrained.config(), add_pooling_layer=False)
        self._pretrained.fill(bert)
        freeze_words(bert)
        return TextClassifier(bert, self._classes, dropout=0.1)

    def evaluate(self, model: nn.Module, samples: Tensor, device: torch.device) -> Tensor:
        sums = torch.zeros(3, dtype=torch.float64)
        lengths = (self._test_tokens[samples] != 0).sum(1)
        for part in samples[lengths.argsort(stable=True)].split(128):
            tokens = self._test_tokens[part]
            longest = int((tokens != 0).sum(1).max())
            sums += correct_and_loss(model(tokens[:, :longest].to(device)), self._test_labels[part].to(device))
        return sums

    def scores(self, sums: Tensor) -> dict[str, float]:
        return accuracy_and_loss(sums)
