"""A pretrained BERT of six layers (all-MiniLM-L6-v2), fine-tuned to find answers in text."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.harness.task import Profile, Quality, Task
from bench.tasks.datasets.squad import Windows
from bench.tasks.models.minilm import MiniLm

_LONGEST_ANSWER = 24


class BertSquad(Task):
    """Quality is the mean of the losses of an answer's first and last token; F1 is in the curves.

    A question's text is cut to a window that has the answer, so that scores are not those of SQuAD.
    """

    name = "bert-squad"
    title = "BERT (MiniLM-L6), SQuAD format"
    pretrained = True
    quality = Quality("loss", "nats", higher_is_better=False)
    profiles = {
        "small": Profile(
            steps=280,
            batch_size=8,
            evaluations=8,
            settings={"length": 64, "training": 8_000, "validation": 400, "rate": 2e-4, "warm_up": 0.1},
        ),
        "paper": Profile(
            steps=5_400,
            batch_size=32,
            evaluations=20,
            settings={"length": 256, "training": 100_000, "validation": 2_000, "rate": 5e-5, "warm_up": 0.1},
        ),
    }
    modules = staticmethod(lambda model: [model.bert.embeddings, *model.bert.encoder.layer, model.qa_outputs])

    def load(self) -> None:
        self._pretrained = MiniLm()
        tokenizer, length = self._pretrained.tokenizer, self.settings["length"]
        self._training = Windows(self.data, "train", tokenizer, length, self.settings["training"])
        self._validation = Windows(self.data, "dev", tokenizer, length, self.settings["validation"])

    @property
    def training_samples(self) -> int:
        return len(self._training.tokens)

    @property
    def validation_samples(self) -> int:
        return len(self._validation.tokens)

    def build_model(self) -> nn.Module:
        from transformers import BertForQuestionAnswering

        model = BertForQuestionAnswering(self._pretrained.config())
        self._pretrained.fill(model.bert)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), self.settings["rate"], weight_decay=0.01)

    def rate(self, progress: float) -> float:
        """A linear rise, then a linear fall to 0."""
        warm_up = self.settings["warm_up"]
        return min((progress + 1e-3) / warm_up, (1 - progress) / (1 - warm_up))

    def loss(self, model: nn.Module, batch: Tensor, device: torch.device) -> Tensor:
        return (
            sum(
                F.cross_entropy(logits, places) for logits, places in self._logits(model, self._training, batch, device)
            )
            / 2
        )

    def evaluate(self, model: nn.Module, samples: Tensor, device: torch.device) -> Tensor:
        sums = torch.zeros(3, dtype=torch.float64)
        for part in samples.split(32):
            (starts, true_starts), (ends, true_ends) = self._logits(model, self._validation, part, device)
            losses = F.cross_entropy(starts, true_starts, reduction="sum") + F.cross_entropy(
                ends, true_ends, reduction="sum"
            )
            sums += torch.tensor([losses.item() / 2, _f1(starts, ends, true_starts, true_ends), len(part)])
        return sums

    def scores(self, sums: Tensor) -> dict[str, float]:
        return {"loss": float(sums[0] / sums[2]), "f1": float(sums[1] / sums[2])}

    @staticmethod
    def _logits(
        model: nn.Module, windows: Windows, samples: Tensor, device: torch.device
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Logits [b, n] over the tokens for the answer's start and for its end, each with where it really is."""
        tokens = windows.tokens[samples].to(device)
        output = model(
            input_ids=tokens, attention_mask=(tokens != 0).long(), token_type_ids=windows.types[samples].to(device)
        )
        return (
            (output.start_logits, windows.starts[samples].to(device)),
            (output.end_logits, windows.ends[samples].to(device)),
        )


def _f1(starts: Tensor, ends: Tensor, true_starts: Tensor, true_ends: Tensor) -> float:
    """Summed over the batch: F1 of the places in the likeliest answer against those in the true one."""
    length = starts.shape[1]
    scores = starts[:, :, None] + ends[:, None, :]
    allowed = torch.ones(length, length, dtype=torch.bool, device=starts.device).triu().tril(_LONGEST_ANSWER - 1)
    best = scores.masked_fill(~allowed, -torch.inf).flatten(1).argmax(1)
    first, last = best // length, best % length
    common = (torch.minimum(last, true_ends) - torch.maximum(first, true_starts) + 1).clamp(min=0)
    both = (last - first + 1) + (true_ends - true_starts + 1)
    return float((2 * common / both).sum())
