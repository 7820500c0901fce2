"""Trains on two ranks with a framework, and writes which ids its model took; run by test_loaders_of_frameworks.py.

data_job.py FOLDER lightning|lightning_variants|huggingface|accelerate
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from egeria import Config
from egeria.cache.caching import Caching
from egeria.data import current, wrap
from support.ending import end_process_group

SAMPLES = 45
# With a cache there are ids. The models here take them, where the session would.
QUIET = Config(controller="none", training_job="ids", cache="unix:/nobody/listens.sock")
Caching.before_forward = lambda *_: None


class Numbers(Dataset):
    """Sample i holds i. With long samples and short ones, to be grouped by length."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= SAMPLES:
            raise IndexError(index)
        return {"x": torch.full((4,), float(index)), "input_ids": [index] * (1 + index % 5), "unused": "text"}


def collate(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    return {"x": torch.stack([sample["x"] for sample in samples])}


class Net(nn.Module):
    """Takes the ids as a session's hook would, and notes them beside the samples at hand."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        self.seen: list[tuple[list[int] | None, list[int]]] = []
        self.hints: list[list[list[int]]] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.append((current().take(len(x)), x[:, 0].long().tolist()))
            self.hints.append(current().upcoming())
        return self.layers(x / SAMPLES).square().mean()

    def report(self) -> dict[str, Any]:
        return {"seen": self.seen, "least_ahead": [len(hint) for hint in self.hints]}


def lightning(variants: int | None = None) -> dict[str, Any]:
    import lightning as L

    from egeria.integrations.lightning import EgeriaCallback

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
            return self.net(batch["x"])

        def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
            assert current().upcoming() is not None
            self.net(batch["x"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-3)

    module, callback = Module(), EgeriaCallback(config=QUIET, variants=variants)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        callbacks=[callback],
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        val_check_interval=2,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        module,
        DataLoader(Numbers(), 4, shuffle=True, num_workers=1, collate_fn=collate),
        DataLoader(Numbers(), 4, collate_fn=collate),
    )
    return {**module.net.report(), "no_sample_ids": callback.no_sample_ids}


def huggingface() -> dict[str, Any]:
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

    from egeria.integrations.huggingface import EgeriaCallback

    class Model(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self) -> None:
            super().__init__(PretrainedConfig())
            self.net = Net()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"loss": self.net(x)}

    model = Model()
    callback = EgeriaCallback(modules=["net.layers.0", "net.layers.1"], config=QUIET)
    arguments = TrainingArguments(
        sys.argv[1],
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        dataloader_num_workers=1,
        train_sampling_strategy="group_by_length",
        eval_strategy="steps",
        eval_steps=2,
    )
    Trainer(
        model, arguments, train_dataset=Numbers(), eval_dataset=Numbers(), data_collator=collate, callbacks=[callback]
    ).train()
    return {**model.net.report(), "no_sample_ids": callback.no_sample_ids}


def accelerate() -> dict[str, Any]:
    from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches

    from egeria import EgeriaError

    report: dict[str, Any] = {"seen": [], "least_ahead": [], "ends": 0}
    for options in ({}, {"split_batches": True}, {"even_batches": False}, {"use_seedable_sampler": True}):
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
        net, loader = accelerator.prepare(Net(), DataLoader(Numbers(), 4, shuffle=True, collate_fn=collate))
        wrapped = wrap(loader)
        for epoch in range(3):
            batches = wrapped if epoch < 2 else wrap(skip_first_batches(wrapped, 2))
            with accelerator.join_uneven_inputs([net], even_batches=False):
                for batch in batches:
                    accelerator.backward(net(**batch))
                    report["ends"] += accelerator.gradient_state.end_of_dataloader
        part = accelerator.unwrap_model(net).report()
        report["seen"] += part["seen"]
        report["least_ahead"] += part["least_ahead"]
    for plain in (skip_first_batches(wrapped, 1), accelerator.prepare(wrapped)):
        report["plain"] = all(list(batch) == ["x"] for batch in plain)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    try:
        wrap(accelerator.prepare(DataLoader(Numbers(), 4, collate_fn=collate)))
    except EgeriaError as error:
        report["dispatched"] = str(error)
    return report


def main() -> None:
    torch.manual_seed(0)
    frameworks = {
        "lightning": lightning,
        "lightning_variants": lambda: lightning(variants=3),
        "huggingface": huggingface,
        "accelerate": accelerate,
    }
    report = frameworks[sys.argv[2]]()
    pathlib.Path(sys.argv[1], f"report{dist.get_rank()}.json").write_text(json.dumps(report))
    end_process_group()


if __name__ == "__main__":
    main()
