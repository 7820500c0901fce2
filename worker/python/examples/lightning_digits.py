#!/usr/bin/env python3
"""Trains a small network on scikit-learn's handwritten digits with Lightning, data-parallel.

python lightning_digits.py                # or torchrun --nproc-per-node 2 lightning_digits.py --devices 2
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning as L
    from sklearn import datasets
except ImportError as error:
    sys.exit(f"lightning_digits.py needs Lightning and scikit-learn ({error}): pip install lightning scikit-learn")

from egeria.integrations.lightning import EgeriaCallback  # egeria


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32, help="per process (default 32)")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step (default 1)")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--output", type=pathlib.Path, default="lightning-digits", help="for checkpoints and logs")
    parser.add_argument("--resume", type=pathlib.Path, metavar="CHECKPOINT", help="go on from this file")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.resume and not arguments.resume.is_file():
        parser.error(f"--resume {arguments.resume}: there is no such file")
    return arguments


class Digits(L.LightningDataModule):
    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        digits = datasets.load_digits()
        images = (torch.tensor(digits.images, dtype=torch.float32) / 16).unsqueeze(1)
        data = TensorDataset(images, torch.tensor(digits.target))
        count = int(0.8 * len(data))
        self.train, self.val = torch.utils.data.random_split(
            data, [count, len(data) - count], torch.Generator().manual_seed(0)
        )

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val, 256)


class Classifier(L.LightningModule):
    def __init__(self, learning_rate: float, epochs: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.stem = self._block(1, 32, 1)
        self.body = nn.Sequential(self._block(32, 64, 2), self._block(64, 64, 1), self._block(64, 128, 2))
        self.head = nn.Linear(128, 10)

    @staticmethod
    def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.stem(images)).mean((2, 3)))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        images, labels = batch
        outputs = self(images)
        accuracy = (outputs.argmax(1) == labels).float().mean()
        self.log_dict({"val_loss": F.cross_entropy(outputs, labels), "val_accuracy": accuracy}, sync_dist=True)

    def configure_optimizers(self) -> tuple[list, list]:
        optimizer = torch.optim.SGD(self.parameters(), self.hparams.learning_rate, momentum=0.9, weight_decay=1e-4)
        milestones = [int(0.6 * self.hparams.epochs)]
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)]


def main() -> None:
    arguments = parse_arguments()
    L.seed_everything(arguments.seed)
    trainer = L.Trainer(
        accelerator="auto",
        devices=arguments.devices,
        strategy="ddp" if arguments.devices > 1 else "auto",
        max_epochs=arguments.epochs,
        accumulate_grad_batches=arguments.accumulate,
        default_root_dir=arguments.output,
        log_every_n_steps=10,
        check_val_every_n_epoch=5,
        enable_progress_bar=False,
    )
    trainer.callbacks.append(EgeriaCallback())  # egeria
    model = Classifier(arguments.learning_rate, arguments.epochs)
    data = Digits(arguments.batch_size)
    trainer.fit(model, data, ckpt_path=arguments.resume)
    metrics = trainer.validate(model, data, verbose=False)[0]
    if trainer.is_global_zero:
        print(f"accuracy {metrics['val_accuracy']:.4f}, validation loss {metrics['val_loss']:.4f}")


if __name__ == "__main__":
    main()
