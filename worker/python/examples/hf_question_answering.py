#!/usr/bin/env python3
"""Trains a small BERT from scratch to answer questions, with the Trainer of Hugging Face Transformers.

    python hf_question_answering.py train.json dev.json --epochs 3      # or by torchrun --nproc-per-node 2

The files have the format of SQuAD 1.1. Nothing is downloaded: the model is made from its configuration, and the
vocabulary from the words of the training file.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import re
import sys
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

try:
    from transformers import BertConfig, BertForQuestionAnswering, Trainer, TrainingArguments, set_seed
except ImportError:
    sys.exit("hf_question_answering.py needs Transformers: pip install transformers accelerate")

from egeria.integrations.huggingface import EgeriaCallback  # egeria

PAD, CLS, SEP, UNKNOWN = range(4)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=pathlib.Path, help="questions to train on, in SQuAD's format")
    parser.add_argument("dev", type=pathlib.Path, help="questions to evaluate on")
    parser.add_argument("--output", type=pathlib.Path, default="qa-model", help="folder for checkpoints and logs")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint there")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--length", type=int, default=160, help="tokens of a question with a piece of its text")
    parser.add_argument("--vocabulary", type=int, default=8000, help="words (default 8000)")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="per process (default 16)")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step (default 1)")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="fp32")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--save-steps", type=int, default=500)
    parser.add_argument("--logging-steps", type=int, default=50)
    parser.add_argument("--report-to", default="none", help="such as tensorboard (default none)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.width % arguments.heads:
        parser.error(f"--width {arguments.width} is not a multiple of --heads {arguments.heads}")
    if arguments.length < 64:
        parser.error(f"--length {arguments.length}: at least 64 tokens are needed")
    return arguments


class Question(NamedTuple):
    question: list[str]
    context: list[str]
    start: int  # first and last word of the answer in the context
    end: int


def words(text: str) -> list[tuple[str, int]]:
    """Lower-case words and punctuation marks of a text, each with the offset at which it begins."""
    return [(match.group().lower(), match.start()) for match in re.finditer(r"\w+|[^\w\s]", text)]


def read_questions(file: pathlib.Path) -> list[Question]:
    """Questions whose answer lies at word borders of the context."""
    found = []
    try:
        for article in json.loads(file.read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                context = words(paragraph["context"])
                for entry in paragraph["qas"]:
                    answer = entry["answers"][0]
                    first, past = answer["answer_start"], answer["answer_start"] + len(answer["text"])
                    inside = [i for i, (_, offset) in enumerate(context) if first <= offset < past]
                    if inside:
                        question = [word for word, _ in words(entry["question"])]
                        found.append(Question(question, [word for word, _ in context], inside[0], inside[-1]))
    except OSError as error:
        sys.exit(f"hf_question_answering.py: cannot read {file}: {error.strerror}")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        sys.exit(f"hf_question_answering.py: {file} is not in SQuAD's format: {type(error).__name__} {error}")
    if not found:
        sys.exit(f"hf_question_answering.py: {file} has no question with an answer")
    return found


def build_vocabulary(questions: list[Question], size: int) -> dict[str, int]:
    """The commonest words, numbered from behind the special ones."""
    counts = collections.Counter(word for question in questions for word in question.question)
    for context in {tuple(question.context) for question in questions}:
        counts.update(context)
    return {word: UNKNOWN + 1 + i for i, (word, _) in enumerate(counts.most_common(size - UNKNOWN - 1))}


class Windows(Dataset):
    """Each question with as much of its context as fits, around the answer: [CLS] question [SEP] context [SEP]."""

    def __init__(self, questions: list[Question], vocabulary: dict[str, int], length: int) -> None:
        self.questions, self.vocabulary, self.length = questions, vocabulary, length

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        question, context, start, end = self.questions[index]
        question = question[:32]
        room = self.length - len(question) - 3
        # The answer shall not always be in the middle; its place depends on the question alone.
        begin = max(0, min(start - index * 7919 % room, len(context) - room))
        piece = context[begin : begin + room]
        offset = len(question) + 2 - begin
        end = min(end, begin + len(piece) - 1)
        tokens = [CLS, *map(self._code, question), SEP, *map(self._code, piece), SEP]
        types = [0] * (len(question) + 2) + [1] * (len(piece) + 1)
        padding = [0] * (self.length - len(tokens))
        return {
            "input_ids": torch.tensor(tokens + [PAD] * len(padding)),
            "token_type_ids": torch.tensor(types + padding),
            "attention_mask": torch.tensor([1] * len(tokens) + padding),
            "start_positions": torch.tensor(start + offset),
            "end_positions": torch.tensor(end + offset),
        }

    def _code(self, word: str) -> int:
        return self.vocabulary.get(word, UNKNOWN)


def exact_match(prediction: tuple) -> dict[str, float]:
    """The share of questions whose first and last word are both found."""
    (starts, ends), (start_positions, end_positions) = prediction
    right = (np.argmax(starts, 1) == start_positions) & (np.argmax(ends, 1) == end_positions)
    return {"exact_match": float(np.mean(right))}


def main() -> None:
    arguments = parse_arguments()
    set_seed(arguments.seed)
    training, evaluation = read_questions(arguments.train), read_questions(arguments.dev)
    vocabulary = build_vocabulary(training, arguments.vocabulary)
    model = BertForQuestionAnswering(
        BertConfig(
            vocab_size=arguments.vocabulary,
            hidden_size=arguments.width,
            num_hidden_layers=arguments.layers,
            num_attention_heads=arguments.heads,
            intermediate_size=4 * arguments.width,
            max_position_embeddings=arguments.length,
        )
    )
    trainer = Trainer(
        model,
        TrainingArguments(
            str(arguments.output),
            num_train_epochs=arguments.epochs,
            per_device_train_batch_size=arguments.batch_size,
            per_device_eval_batch_size=64,
            gradient_accumulation_steps=arguments.accumulate,
            learning_rate=arguments.learning_rate,
            warmup_steps=100,
            weight_decay=0.01,
            bf16=arguments.precision == "bf16",
            torch_compile=arguments.compile,
            save_steps=arguments.save_steps,
            logging_steps=arguments.logging_steps,
            eval_strategy="epoch",
            report_to=arguments.report_to,
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            seed=arguments.seed,
        ),
        train_dataset=Windows(training, vocabulary, arguments.length),
        eval_dataset=Windows(evaluation, vocabulary, arguments.length),
        compute_metrics=exact_match,
    )
    trainer.add_callback(EgeriaCallback())  # egeria
    trainer.train(resume_from_checkpoint=arguments.resume)
    metrics = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"exact match {metrics['eval_exact_match']:.4f}, loss {metrics['eval_loss']:.4f}")


if __name__ == "__main__":
    main()
