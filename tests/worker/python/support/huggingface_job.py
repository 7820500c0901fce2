"""Trains a small BERT with the Trainer, with or without Egeria; run by test_huggingface.py on two ranks."""

from __future__ import annotations

import argparse
import json
import pathlib

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

from egeria import Config
from egeria.integrations.huggingface import EgeriaCallback
from support.ending import end_process_group


class Sums(Dataset):
    """Is the sum of the tokens even?"""

    def __init__(self) -> None:
        self.tokens = torch.randint(5, 50, (96, 12), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index]
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.sum() % 2}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--resume", help="checkpoint to go on from")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--plain", action="store_true", help="without Egeria")
    parser.add_argument("--plans", type=json.loads, default=[[4, 2], [14, 0]])
    parser.add_argument("--bf16", action="store_true")
    arguments = parser.parse_args()
    set_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=16,
            hidden_dropout_prob=0.1,
        )
    )
    callback = EgeriaCallback(config=Config(plans=[tuple(plan) for plan in arguments.plans]))
    trainer = Trainer(
        model,
        TrainingArguments(
            str(arguments.output),
            max_steps=arguments.steps,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_grad_norm=0.5,
            learning_rate=1e-3,
            weight_decay=0.1,
            use_cpu=True,
            bf16=arguments.bf16,
            save_steps=4,
            logging_steps=2,
            report_to="tensorboard",
            disable_tqdm=True,
        ),
        train_dataset=Sums(),
        callbacks=[] if arguments.plain else [callback],
    )
    trainer.train(resume_from_checkpoint=arguments.resume)
    if dist.get_rank() == 0:
        session = callback.session
        (arguments.output / "report.json").write_text(
            json.dumps(
                {
                    "world_size": trainer.args.world_size,
                    "wrapped": type(trainer.model_wrapped).__name__,
                    "log_history": trainer.state.log_history,
                    "switches": []
                    if session is None
                    else [[entry.step, entry.frozen_prefix, entry.ranks_identical] for entry in session.switches],
                    "steps": 0 if session is None else session.summary()["steps"],
                    "trainable": all(parameter.requires_grad for parameter in model.parameters()),
                }
            )
        )
    end_process_group()


if __name__ == "__main__":
    main()
