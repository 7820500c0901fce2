"""SQuAD 1.1's format: squad/{train,dev}.json. Each question comes with a window of its text that has the answer."""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

import torch
from torch import Tensor

from bench.harness.errors import BenchError
from bench.tasks.datasets import data_folder, unreadable

_LONGEST_QUESTION = 24
_CLS, _SEP = 101, 102


class Windows:
    """[CLS] question [SEP] window [SEP], padded with zeros.

    Attributes:
      tokens, types: int64 [n, length].
      starts, ends: int64 [n]: the answer's first and last token.
    """

    def __init__(self, data: pathlib.Path | None, split: str, tokenizer: Any, length: int, count: int):
        """count: at most so many questions, evenly spread over the file, of those whose answer fits."""
        questions = [
            (paragraph["context"], entry["question"], entry["answers"][0])
            for article in _articles(data, split)
            for paragraph in article["paragraphs"]
            for entry in paragraph["qas"]
        ]
        stride = max(1, len(questions) // count)
        rows = [
            row
            for number, question in enumerate(questions[::stride])
            if (row := self._row(tokenizer, *question, length, number)) is not None
        ]
        if not rows:
            raise BenchError("BAD_DATA", f"squad/{split}.json has no question whose answer fits into {length} tokens")
        self.tokens, self.types = (torch.stack([row[part] for row in rows]) for part in (0, 1))
        self.starts, self.ends = (torch.tensor([row[part] for row in rows]) for part in (2, 3))

    @staticmethod
    def _row(
        tokenizer: Any, context: str, question: str, answer: dict[str, Any], length: int, number: int
    ) -> tuple[Tensor, Tensor, int, int] | None:
        asked = tokenizer.encode(question, add_special_tokens=False).ids[:_LONGEST_QUESTION]
        text = tokenizer.encode(context, add_special_tokens=False)
        first, past = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        inside = [index for index, (begin, end) in enumerate(text.offsets) if begin < past and end > first]
        room = length - len(asked) - 3
        if not inside or len(inside) > room // 2:
            return None
        # The answer shall not always be in the middle; where it is depends on the question's number alone.
        slack = room - len(inside)
        begin = max(0, min(inside[0] - number * 7_919 % slack, len(text.ids) - room))
        window = text.ids[begin : begin + room]
        row = [_CLS, *asked, _SEP, *window, _SEP]
        offset = len(asked) + 2 - begin
        tokens, types = torch.zeros(2, length, dtype=torch.long)
        tokens[: len(row)] = torch.tensor(row)
        types[len(asked) + 2 : len(row)] = 1
        return tokens, types, inside[0] + offset, inside[-1] + offset


def questions_by_article(data: pathlib.Path | None, split: str, count: int) -> tuple[list[str], Tensor]:
    """At most so many questions, shuffled always alike, and the number of each one's article."""
    questions = [
        (entry["question"], label)
        for label, article in enumerate(_articles(data, split))
        for paragraph in article["paragraphs"]
        for entry in paragraph["qas"]
    ]
    random.Random(7).shuffle(questions)
    texts, labels = zip(*questions[:count])
    return list(texts), torch.tensor(labels)


def _articles(data: pathlib.Path | None, split: str) -> list[dict[str, Any]]:
    file = data_folder(data, "squad") / f"{split}.json"
    try:
        return json.loads(file.read_text(encoding="utf-8"))["data"]
    except OSError as error:
        raise unreadable(file, error) from None
