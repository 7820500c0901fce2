"""Fits a small network with Lightning, with or without Egeria; run by test_lightning.py on two ranks."""

from __future__ import annotations

import argparse
import json
import pathlib

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from egeria import Config
from egeria.integrations.lightning import EgeriaCallback
from support.ending import end_process_group


class Net(nn.Sequential):
    def __init__(self) -> None:
        blocks = [nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()) for _ in range(3)]
        super().__init__(*blocks, nn.Linear(8, 2))


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Net()

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> tuple[list, list]:
        optimizer = torch.optim.SGD(self.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 3)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--resume", help="checkpoint to go on from")
    parser.add_argument("--plain", action="store_true", help="without Egeria")
    parser.add_argument("--plans", type=json.loads, default=[[4, 2], [14, 0]])
    parser.add_argument("--precision", default="32-true")
    arguments = parser.parse_args()
    L.seed_everything(0)
    data = torch.randn(128, 8)
    loader = DataLoader(TensorDataset(data, (data.sum(1) > 0).long()), 8, shuffle=True)  # 8 batches a rank
    callback = EgeriaCallback(config=Config(plans=[tuple(plan) for plan in arguments.plans]))
    checkpoints = ModelCheckpoint(arguments.output, "{step}", save_top_k=-1, every_n_epochs=1)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=5,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        precision=arguments.precision,
        callbacks=[checkpoints, *([] if arguments.plain else [callback])],
        logger=CSVLogger(arguments.output, "log", ""),
        log_every_n_steps=2,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader, ckpt_path=arguments.resume)
    if dist.get_rank() == 0:
        session = callback.session
        (arguments.output / "report.json").write_text(
            json.dumps(
                {
                    "attached": None if session is None else type(session._training.switcher._model).__name__,
                    "switches": []
                    if session is None
                    else [[entry.step, entry.frozen_prefix, entry.ranks_identical] for entry in session.switches],
                    "steps": 0 if session is None else session.summary()["steps"],
                    "total_steps": None if session is None else session._training.config.total_steps,
                }
            )
        )
    end_process_group()


if __name__ == "__main__":
    main()
