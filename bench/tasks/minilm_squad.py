"""A pretrained BERT of six layers (all-MiniLM-L6-v2), fine-tuned over several epochs to find answers in text."""

from __future__ import annotations

from torch import nn

from bench.harness.task import Profile, Quality
from bench.tasks.bert_squad import BertSquad
from bench.tasks.fine_tuning import FineTuning
from bench.tasks.models.minilm import freeze_words

_SETTINGS = {"rate": 2e-4, "head_rate": 10, "weight_decay": 0.01, "warm_up": 0.06, "decay": "linear"}


class MiniLmSquad(FineTuning, BertSquad):
    """Quality is F1 of the likeliest answer. The table of words is frozen in every run, as is common."""

    name = "minilm-squad"
    title = "MiniLM, SQuAD format, several epochs"
    quality = Quality("f1", "points", higher_is_better=True, scale=100)
    profiles = {
        "smoke": Profile(8, 8, 2, {**_SETTINGS, "length": 64, "training": 64, "validation": 16}),
        "small": Profile(724, 16, 20, {**_SETTINGS, "length": 64, "training": 2_900, "validation": 900}),
        "paper": Profile(
            10_000, 32, 40, {**_SETTINGS, "rate": 5e-5, "length": 256, "training": 100_000, "validation": 2_000}
        ),
    }

    def build_model(self) -> nn.Module:
        model = super().build_model()
        freeze_words(model.bert)
        return model
