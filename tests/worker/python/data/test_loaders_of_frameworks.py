"""Sample ids in the loops of training frameworks, which take batches ahead, make loaders of loaders, resume."""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
import random
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderShard, SeedableRandomSampler
from launching import HERE, Program
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import (
    BatchEncoding,
    PretrainedConfig,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

import egeria.data.sample_ids
from egeria import Config, EgeriaError
from egeria.cache.caching import Caching
from egeria.data import Marks, SampleIds, Variants, current, wrap
from egeria.data.tagging import KEY
from egeria.integrations.huggingface import EgeriaCallback

SAMPLES = 45
# With a cache there are ids. The models here take them, where the session would.
QUIET = Config(controller="none", training_job="ids", cache="unix:/nobody/listens.sock")


@pytest.fixture(autouse=True)
def ids_are_left_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Caching, "before_forward", lambda *_: None)


@pytest.mark.parametrize("framework", ["lightning", "lightning_variants", "huggingface", "accelerate"])
def test_two_ranks_have_the_ids_of_each_batch(framework: str, tmp_path: pathlib.Path):
    with Program(tmp_path, "run_script.py", HERE / "data_job.py", tmp_path, framework, ranks=2) as job:
        job.succeed()
    reports = [json.loads((tmp_path / f"report{rank}.json").read_text()) for rank in range(2)]
    for report in reports:
        assert len(report["seen"]) >= 12
        k = 3 if "variants" in framework else 1
        assert all([index // k for index in ids] == samples for ids, samples in report["seen"])
        assert max(report["least_ahead"]) >= 4  # a rank has 6 batches
        assert report.get("no_sample_ids") is None
    if framework == "accelerate":
        assert reports[0]["plain"] and reports[0]["ends"] == 12
        assert reports[0]["dispatched"].startswith("[NO_SAMPLE_IDS] with dispatch_batches=True one process loads")
    epochs = [sample for report in reports for _, samples in report["seen"] for sample in samples]
    assert set(epochs) == set(range(SAMPLES))
    if "variants" in framework:  # both epochs have all samples, each in another variant
        assert len({index for report in reports for ids, _ in report["seen"] for index in ids}) == 2 * SAMPLES


# Hugging Face's Trainer, in this process.


class Numbers(Dataset):
    """Sample i holds i and noise of three generators; some are longer than others."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= SAMPLES:
            raise IndexError(index)
        noise = torch.tensor([torch.rand(()), random.random(), np.random.rand()])
        numbers = torch.cat([torch.tensor([float(index)]), noise])
        return {"x": numbers, "input_ids": [1] * (1 + index % 5), "extra": 1}


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(Numbers()[index] for index in range(20))


def collate(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    return {"x": torch.stack([sample["x"] for sample in samples])}


def collate_encoding(samples: list[dict[str, Any]]) -> BatchEncoding:
    return BatchEncoding(collate(samples))


class Model(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self) -> None:
        super().__init__(PretrainedConfig())
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
        self.seen: list[tuple[list[int] | None, list[int]]] = []

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        if self.training:
            self.seen.append((current().take(len(x)), x[:, 0].long().tolist()))
        return {"loss": self.layers(x / SAMPLES).square().mean()}


def trainer_of(
    folder: pathlib.Path, callback: TrainerCallback, dataset: Any = None, collator: Any = collate, **options: Any
) -> Trainer:
    set_seed(0)
    arguments = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 4,
        "save_strategy": "no",
        "learning_rate": 1e-2,
        **options,
    }
    return Trainer(
        Model(),
        TrainingArguments(str(folder), use_cpu=True, report_to="none", disable_tqdm=True, **arguments),
        train_dataset=Numbers() if dataset is None else dataset,
        eval_dataset=Numbers(),
        data_collator=collator,
        callbacks=[callback],
    )


def right(model: Model, least: int) -> bool:
    return len(model.seen) >= least and all(ids == samples for ids, samples in model.seen)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"train_sampling_strategy": "group_by_length", "gradient_accumulation_steps": 3},
        {"train_sampling_strategy": "batch_rebalance", "gradient_accumulation_steps": 2},
        {"dataloader_num_workers": 2, "dataloader_persistent_workers": True, "eval_strategy": "steps", "eval_steps": 3},
        {"remove_unused_columns": False, "dataloader_drop_last": True, "label_smoothing_factor": 0.0},
        {"collator": collate_encoding, "gradient_accumulation_steps": 2},
    ],
    ids=str,
)
def test_the_trainer_has_the_ids_of_each_batch_and_trains_as_without(options: dict[str, Any], tmp_path: pathlib.Path):
    callback = EgeriaCallback(config=QUIET)
    trainer = trainer_of(tmp_path, callback, **options)
    trainer.train()
    assert callback.no_sample_ids is None
    assert right(trainer.model, 22)
    plain = trainer_of(tmp_path, TrainerCallback(), **options)
    plain.train()
    assert [samples for _, samples in plain.model.seen] == [samples for _, samples in trainer.model.seen]
    for one, other in zip(trainer.model.parameters(), plain.model.parameters()):
        assert torch.equal(one, other)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_trainer_has_the_ids_of_each_batch(tmp_path: pathlib.Path, workers: int):
    options = {
        "save_strategy": "steps",
        "save_steps": 4,
        "gradient_accumulation_steps": 2,
        "dataloader_num_workers": workers,
    }
    whole = trainer_of(tmp_path, EgeriaCallback(config=QUIET), **options)
    whole.train()
    callback = EgeriaCallback(config=QUIET)
    resumed = trainer_of(tmp_path, callback, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))  # 8 batches into the first epoch of 12
    assert right(resumed.model, 16) and resumed.model.seen == whole.model.seen[8:]
    assert callback.no_sample_ids is None


class WithVariants(Trainer):
    """A trainer on three variants of each sample."""

    def get_train_dataloader(self) -> DataLoader:
        images = Variants(Numbers(), 3)
        sampler = images.one_each(SeedableRandomSampler(images.dataset, data_seed=3))
        return self.accelerator.prepare(DataLoader(images, 4, sampler=sampler, collate_fn=collate))


def check_other_variants_each_epoch(whole: list[Any], resumed: list[Any]) -> None:
    """Two epochs have 12 batches each, samples have three variants, and the resume begins behind batch 16."""
    assert len(whole) == 24 and resumed == whole[16:]
    first, second = (
        dict(divmod(index, 3) for ids, _ in whole[begin : begin + 12] for index in ids) for begin in (0, 12)
    )
    assert len(first) == len(second) == SAMPLES and all(first[sample] != second[sample] for sample in first)


def test_a_trainer_with_variants_that_is_resumed_has_those_of_one_that_is_not(tmp_path: pathlib.Path):
    seen = []
    for resume in (None, str(tmp_path / "checkpoint-16")):  # 4 batches into the second epoch of 12
        trainer = trainer_of(tmp_path, EgeriaCallback(config=QUIET), save_strategy="steps", save_steps=16)
        trainer.__class__ = WithVariants
        trainer.train(resume_from_checkpoint=resume)
        seen.append(trainer.model.seen)
        assert all(ids is not None and [index // 3 for index in ids] == samples for ids, samples in seen[-1])
    check_other_variants_each_epoch(*seen)


@pytest.mark.parametrize("cache", [QUIET.cache, "none"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_callback_brings_variants_with_and_without_a_cache(cache: str, workers: int, tmp_path: pathlib.Path):
    seen = []
    config = dataclasses.replace(QUIET, cache=cache)
    for resume in (None, str(tmp_path / "checkpoint-16")):  # 4 batches into the second epoch of 12
        trainer = trainer_of(
            tmp_path,
            EgeriaCallback(config=config, variants=3),
            save_strategy="steps",
            save_steps=16,
            dataloader_num_workers=workers,
        )
        trainer.train(resume_from_checkpoint=resume)
        seen.append(trainer.model.seen)
        assert all(ids is not None and [index // 3 for index in ids] == samples for ids, samples in seen[-1])
    check_other_variants_each_epoch(*seen)
    assert type(trainer.get_train_dataloader().dataset) is Numbers


def test_a_callback_that_can_bring_no_variants_says_so(tmp_path: pathlib.Path):
    trainer = trainer_of(tmp_path, EgeriaCallback(config=QUIET, variants=3), Stream(), max_steps=5)
    with pytest.raises(EgeriaError, match=r"^\[NO_SAMPLE_IDS\]"):
        trainer.train()
    assert "training_step" not in vars(trainer)


def test_the_loader_of_a_trainer_is_as_before_when_it_has_ended(tmp_path: pathlib.Path):
    """Some give the Trainer a loader of their own, always the same."""

    class Keeping(Trainer):
        def get_train_dataloader(self) -> DataLoader:
            if not hasattr(self, "loader"):
                self.loader = super().get_train_dataloader()
            return self.loader

    trainer = trainer_of(tmp_path, EgeriaCallback(config=QUIET))
    trainer.__class__ = Keeping
    for _ in range(2):
        trainer.train()
        assert right(trainer.model, 24)
        trainer.model.seen.clear()
    assert type(trainer.loader.dataset) is Numbers
    assert all(list(batch) == ["x"] for batch in trainer.loader)


@pytest.mark.parametrize(
    "dataset, options, why",
    [
        (Stream(), {"max_steps": 5}, "an iterable dataset, have no indices"),
        (None, {"max_steps": 5, "accelerator_config": {"dispatch_batches": True}}, "with dispatch_batches=True"),
    ],
)
def test_a_trainer_without_ids_trains_and_says_why(
    dataset: Any,
    options: dict[str, Any],
    why: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO, "egeria")
    monkeypatch.setattr(egeria.data.sample_ids, "_current", SampleIds())
    monkeypatch.setattr(egeria.data.sample_ids, "_told", set())
    callback = EgeriaCallback(config=QUIET)
    trainer = trainer_of(tmp_path, callback, dataset, **options)
    trainer.train()
    assert why in callback.no_sample_ids
    assert len(trainer.model.seen) == 5 and all(ids is None for ids, _ in trainer.model.seen)
    lines = [record.getMessage() for record in caplog.records if record.name == "egeria"]
    assert sum("nothing is cached" in line and why in line for line in lines) == 1


def test_a_callback_that_is_switched_off_leaves_the_batches_alone(tmp_path: pathlib.Path):
    callback = EgeriaCallback(config=Config(enabled=False))
    trainer = trainer_of(tmp_path, callback, max_steps=2)
    inner, keys = trainer.training_step, []
    trainer.training_step = lambda model, inputs, *rest: keys.append(list(inputs)) or inner(model, inputs, *rest)
    trainer.train()
    assert keys == [["x"]] * 2 and [ids for ids, _ in trainer.model.seen] == [None, None]
    assert callback.no_sample_ids == "there is no cache (Config.cache)"


# The pieces.


def prepared(**options: Any) -> DataLoaderShard:
    return Accelerator(cpu=True).prepare(DataLoader(Numbers(), 4, collate_fn=collate, **options))


def test_marked_batches_hold_the_indices_until_they_are_announced():
    loader = prepared()
    marks = Marks(loader)
    for number, batch in enumerate(loader):
        assert KEY in batch
        current().announce([1] * 4)
        with marks.announcing(batch):
            assert list(batch) == ["x"]
            if number % 2:
                assert current().take(len(batch["x"])) == batch["x"][:, 0].long().tolist()
        assert current().take(len(batch["x"])) is None  # also what nobody has taken
    for other in ({"x": 1}, UserDict(x=1), [1, 2], {KEY: 3}):
        with marks.announcing(other):
            assert current().take(1) is None and KEY not in other


def test_a_dict_that_the_dataset_keeps_is_left_as_it_is():
    samples = [{"x": torch.ones(1)} for _ in range(3)]
    loader = DataLoader(samples, 1, collate_fn=lambda batch: batch[0])
    Marks(loader)
    assert all(KEY in batch for batch in loader) and all(list(sample) == ["x"] for sample in samples)


@pytest.mark.parametrize("loader", [DataLoader(Numbers(), batch_size=None), None])
def test_what_cannot_be_marked_is_refused(loader: Any):
    with pytest.raises(EgeriaError, match="NO_SAMPLE_IDS"):
        Marks(loader)


def test_a_loader_whose_workers_run_is_not_marked():
    loader = DataLoader(Numbers(), 4, num_workers=1, persistent_workers=True, collate_fn=collate)
    next(iter(loader))
    with pytest.raises(EgeriaError, match="its workers run already"):
        Marks(loader)


def test_a_prepared_loader_is_wrapped_with_its_device_and_its_end():
    loader = prepared(shuffle=True)
    wrapped = wrap(loader)
    assert wrap(wrapped) is wrapped and type(wrapped).__name__ == "DataLoaderShard"
    assert wrapped.dataset is loader.dataset and wrapped.total_batch_size == 4 and len(wrapped) == 12
    ends = []
    for batch in wrapped:
        assert current().take(len(batch["x"])) == batch["x"][:, 0].long().tolist()
        ends.append(wrapped.end_of_dataloader)
    assert ends == [False] * 11 + [True] and wrapped.iteration == 1
    for batch in loader:
        assert list(batch) == ["x"] and current().take(len(batch["x"])) is None
