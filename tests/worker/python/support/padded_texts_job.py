"""Trains the last layer of a small BERT by the Trainer on texts that are padded to the longest of a batch.

  padded_texts_job.py OUT [--cache ADDRESS]
Each rank writes OUT/rank<r>.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib

import torch
import torch.distributed as dist
from cache_daemon import be_patient, wait_until_kept
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from egeria import Config
from egeria.integrations.huggingface import EgeriaCallback
from support.ending import end_process_group

SAMPLES, BATCH, EPOCHS = 96, 8, 3


class Texts(Dataset):
    """Have 17 to 28 tokens."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.words = torch.randint(2, 90, (SAMPLES, 28), generator=generator).tolist()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, object]:
        words = self.words[index][: 17 + 5 * index % 12]
        return {"input_ids": words, "attention_mask": [1] * len(words), "labels": sum(words) % 2}


class WaitsForCache(TrainerCallback):
    def __init__(self, egeria: EgeriaCallback):
        self._egeria = egeria

    def on_step_end(self, *_: object, **__: object) -> None:
        wait_until_kept(self._egeria.session)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--cache")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    set_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 128}
    model = BertForSequenceClassification(
        BertConfig(vocab_size=90, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes)
    )
    model.bert.embeddings.requires_grad_(False)
    model.bert.encoder.layer[:2].requires_grad_(False)
    vocabulary = {"[PAD]": 0, "[UNK]": 1, **{f"w{number}": number for number in range(2, 90)}}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    callbacks = []
    if arguments.cache:
        be_patient()
        egeria = EgeriaCallback(config=Config(controller="none", cache=arguments.cache, cache_use="always"))
        callbacks = [egeria, WaitsForCache(egeria)]
    trainer = Trainer(
        model,
        TrainingArguments(
            str(arguments.out / "trainer"),
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH,
            learning_rate=1e-3,
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=7,
        ),
        train_dataset=Texts(),
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=callbacks,
    )
    trainer.train()
    rank = int(os.environ.get("RANK", "0"))
    weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    counters = egeria.session.cache_counters() if arguments.cache else {}
    reason = egeria.session.cache_estimates()["reason"] if arguments.cache else ""
    (arguments.out / f"rank{rank}.json").write_text(
        json.dumps({"weights": weights.hexdigest(), "counters": counters, "reason": reason})
    )
    if dist.is_initialized():
        end_process_group()


if __name__ == "__main__":
    main()
