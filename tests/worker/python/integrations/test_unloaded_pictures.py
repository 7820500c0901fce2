"""Samples in JPEG files that the frameworks' trainings need not load; the weights are the plain run's to the bit."""

from __future__ import annotations

import multiprocessing
import pathlib
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from cache_daemon import Daemon, wait_until_kept
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from unloaded_runs import LAYERS, Net

from egeria import Config, EgeriaError
from egeria.integrations import huggingface, lightning

SAMPLES, BATCH = 32, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("pictures")
    pixels = np.random.default_rng(0).integers(0, 255, (SAMPLES, 12, 12, 3), np.uint8)
    for index in range(SAMPLES):
        Image.fromarray(pixels[index]).save(folder / f"{index}.jpg")
    return folder


class Pictures(Dataset):
    """Counts, over all processes, how many pictures it opens."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.opened = multiprocessing.Value("i", 0)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        with self.opened.get_lock():
            self.opened.value += 1
        with Image.open(self.folder / f"{index}.jpg") as picture:
            pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
        return self.sample(pixels, index % 10)

    def sample(self, pixels: Tensor, label: int) -> Any:
        return {"pixel_values": pixels, "labels": label, "name": "not for the model"}

    @property
    def loads(self) -> int:
        return self.opened.value


class Classifier(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self) -> None:
        super().__init__(PretrainedConfig())
        net = Net()
        self.layers, self.head = net.layers, net.head

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.layers(pixel_values).flatten(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class UntilKept(TrainerCallback):
    def __init__(self, callback: huggingface.EgeriaCallback):
        self.callback = callback

    def on_step_end(self, *_: Any, **__: Any) -> None:
        wait_until_kept(self.callback.session, 20)


def settings(cache: str) -> Config:
    return Config(controller="none", plans=[(1, 2)], cache=cache, cache_use="always")


class Fit:
    """One training with a Trainer."""

    def __init__(
        self,
        folder: pathlib.Path,
        out: pathlib.Path,
        cache: str,
        resume: pathlib.Path | None = None,
        wrapping: dict[str, Any] | None = None,
        **options: Any,
    ):
        out.mkdir(exist_ok=True)
        torch.manual_seed(0)
        wrapping = {"skip_loading": True} if wrapping is None else wrapping
        self.callback = huggingface.EgeriaCallback(modules=LAYERS, config=settings(cache), **wrapping)
        self.pictures = Pictures(folder)
        arguments = TrainingArguments(
            str(out),
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            per_device_train_batch_size=BATCH,
            **{"num_train_epochs": 6, "save_strategy": "no", **options},
        )
        callbacks = [self.callback, UntilKept(self.callback)] if cache != "none" else [self.callback]
        self.trainer = Trainer(Classifier(), arguments, train_dataset=self.pictures, callbacks=callbacks)
        self.trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
        self.weights = self.trainer.model.state_dict()
        self.counters = self.callback.session.cache_counters()

    def same_as(self, other: Fit) -> bool:
        return all(torch.equal(value, other.weights[name]) for name, value in self.weights.items())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dataloader_num_workers": 2},
        {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
        {"gradient_accumulation_steps": 2},
        {"wrapping": {"skip_loading": True, "variants": 2}, "num_train_epochs": 10},
    ],
    ids=str,
)
def test_a_trainer_leaves_pictures_out_and_changes_no_bit(
    options: Any, folder: pathlib.Path, tmp_path: pathlib.Path, patient_cache: Daemon
):
    plain = Fit(folder, tmp_path / "plain", "none", **options)
    skipping = Fit(folder, tmp_path / "skipping", patient_cache.address, **options)
    assert skipping.same_as(plain)
    assert skipping.counters["samples_left_out"] > SAMPLES
    assert skipping.pictures.loads < plain.pictures.loads * 0.8
    assert "get_batch_samples" not in vars(skipping.trainer)


def test_a_resumed_trainer_leaves_pictures_out(folder: pathlib.Path, tmp_path: pathlib.Path, patient_cache: Daemon):
    saving = {"save_strategy": "steps", "save_steps": 12}
    plain = Fit(folder, tmp_path / "plain", "none", **saving)
    checkpoint = tmp_path / "plain" / "checkpoint-12"
    resumed = Fit(folder, tmp_path / "resumed", patient_cache.address, resume=checkpoint)
    assert resumed.same_as(plain) and resumed.counters["samples_left_out"] > SAMPLES


def test_a_picture_that_changes_while_a_trainer_runs_is_seen(
    folder: pathlib.Path, tmp_path: pathlib.Path, patient_cache: Daemon, monkeypatch: pytest.MonkeyPatch
):
    fits = []
    for cache in ("none", patient_cache.address):
        own = tmp_path / ("with" if cache != "none" else "without")
        own.mkdir()
        for picture in folder.iterdir():
            (own / picture.name).write_bytes(picture.read_bytes())

        def change(self: Any, args: Any, state: Any, *_: Any, own: pathlib.Path = own, **__: Any) -> None:
            if state.epoch >= 4:
                (own / "3.jpg").write_bytes((folder / "4.jpg").read_bytes())

        monkeypatch.setattr(huggingface.EgeriaCallback, "on_epoch_begin", change)
        fits.append(Fit(own, own, cache, num_train_epochs=7))
    assert fits[1].same_as(fits[0]) and fits[1].counters["samples_changed"] == 3
    assert fits[1].counters["samples_left_out"] > SAMPLES


def test_a_trainer_whose_loader_cannot_leave_anything_out_says_so(folder: pathlib.Path, tmp_path: pathlib.Path):
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "get_train_dataloader", lambda self: DataLoader(Endless()))
        with pytest.raises(EgeriaError, match=r"^\[NO_SAMPLE_IDS\]"):
            Fit(folder, tmp_path / "out", f"unix:{tmp_path}/none.sock", max_steps=3)


class Module(L.LightningModule):
    def __init__(self, loader: DataLoader):
        super().__init__()
        torch.manual_seed(0)
        self.model, self.loader = Net(), loader

    def train_dataloader(self) -> DataLoader:
        return self.loader

    def training_step(self, batch: Any, index: int) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch["pixel_values"]), batch["labels"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), 0.05)


class Patient(L.Callback):
    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        wait_until_kept(trainer.callbacks[0].session, 20)


@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_leaves_pictures_out_and_changes_no_bit(workers: int, folder: pathlib.Path, patient_cache: Daemon):
    def fit(cache: str) -> tuple[list[Tensor], int]:
        pictures = Pictures(folder)
        loader = DataLoader(pictures, BATCH, shuffle=True, num_workers=workers)
        module = Module(loader)
        callback = lightning.EgeriaCallback(modules=LAYERS, config=settings(cache), skip_loading=True, version="1")
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=6,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback, Patient()] if cache != "none" else [callback],
        )
        trainer.fit(module)
        return list(module.parameters()), pictures.loads

    (skipping, few), (plain, many) = fit(patient_cache.address), fit("none")
    assert all(map(torch.equal, skipping, plain)) and few < many * 0.7
