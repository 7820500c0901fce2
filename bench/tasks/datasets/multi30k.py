"""Multi30k: pairs of an English and a German sentence, one a line in multi30k/{train,val}.{en,de}."""

from __future__ import annotations

import pathlib

import torch
from torch import Tensor

from bench.harness.errors import BenchError
from bench.tasks.datasets import data_folder, unreadable

PAD, BEGIN, END, UNKNOWN = range(4)


class Pairs:
    """Sentence pairs as tokens, with a vocabulary of both languages that byte-pair encoding finds in the training set.

    Attributes:
      source, target: one int64 tensor a sentence; a target begins with BEGIN, and both end with END.
    """

    def __init__(self, data: pathlib.Path | None, vocabulary: int, longest: int):
        try:
            import tokenizers
        except ImportError:
            raise BenchError("NO_PACKAGE", "this task needs tokenizers; pip install tokenizers") from None
        folder = data_folder(data, "multi30k")
        texts = {name: _lines(folder / name) for name in ("train.en", "train.de", "val.en", "val.de")}
        self._tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
        self._tokenizer.normalizer = tokenizers.normalizers.Lowercase()
        self._tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocabulary, show_progress=False, special_tokens=["<pad>", "<s>", "</s>", "<unk>"]
        )
        self._tokenizer.train_from_iterator(texts["train.en"] + texts["train.de"], trainer)
        self.training = self._encode(texts["train.en"], texts["train.de"], longest)
        self.validation = self._encode(texts["val.en"], texts["val.de"], longest)

    def _encode(self, english: list[str], german: list[str], longest: int) -> list[tuple[Tensor, Tensor]]:
        if len(english) != len(german):
            raise BenchError("BAD_DATA", f"multi30k has {len(english)} English and {len(german)} German sentences")
        sides = [
            [entry.ids[: longest - 2] for entry in self._tokenizer.encode_batch(side)] for side in (english, german)
        ]
        return [(torch.tensor([*source, END]), torch.tensor([BEGIN, *target, END])) for source, target in zip(*sides)]


def batch(pairs: list[tuple[Tensor, Tensor]], samples: Tensor) -> tuple[Tensor, Tensor]:
    """Source [b, n] and target [b, m] tokens, padded to a multiple of 4."""
    chosen = [pairs[index] for index in samples.tolist()]
    return _padded([source for source, _ in chosen]), _padded([target for _, target in chosen], extra=1)


def _padded(sentences: list[Tensor], extra: int = 0) -> Tensor:
    """extra: columns beyond the multiple of 4, for targets, which lose one when input and label are told apart."""
    length = -(-max(len(sentence) - extra for sentence in sentences) // 4) * 4 + extra
    tokens = torch.zeros(len(sentences), length, dtype=torch.long)
    for row, sentence in zip(tokens, sentences):
        row[: len(sentence)] = sentence
    return tokens


def _lines(file: pathlib.Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise unreadable(file, error) from None
