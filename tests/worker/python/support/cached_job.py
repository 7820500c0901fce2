"""A student that learns from a teacher; rank and learning rate are arguments.

cached_job.py MODE CACHE RATE
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

import torch
import torch.distributed.fsdp
from cached_networks import Pair, batches, images, wait_until_kept
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import egeria

MODE, CACHE, RATE = sys.argv[1], sys.argv[2], float(sys.argv[3])
EPOCHS = 4


def loss_of(pair: Pair, pictures: Tensor) -> Tensor:
    with torch.no_grad():
        target = pair.teacher(pictures).softmax(-1)
    if CACHE != "plain":
        wait_until_kept(pair.teacher)
    return nn.functional.cross_entropy(pair.student(pictures), target)


def in_a_loop(pair: Pair, pictures: Tensor) -> None:
    optimizer = torch.optim.SGD(pair.student.parameters(), RATE, momentum=0.9)
    session = egeria.attach(pair, optimizer) if MODE == "attached" else None
    for rows in batches(len(pictures), EPOCHS):
        loss = loss_of(pair, pictures[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if session is not None:
        session.close()


def in_trainer(pair: Pair, pictures: Tensor) -> None:
    from transformers import Trainer, TrainingArguments

    class Distilling(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Tensor:
            model.teacher.eval()  # Trainer has put all of the model into training mode
            return loss_of(model, inputs["pictures"])

    arguments = TrainingArguments(
        "trainer", num_train_epochs=EPOCHS, learning_rate=RATE, report_to=[], save_strategy="no", use_cpu=True
    )
    arguments.remove_unused_columns = False
    Distilling(pair, arguments, train_dataset=[{"pictures": picture} for picture in pictures]).train()


def in_lightning(pair: Pair, pictures: Tensor) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.pair = pair

        def training_step(self, batch: Any, _: int) -> Tensor:
            return loss_of(self.pair, batch[0])

        def on_train_epoch_start(self) -> None:
            self.pair.teacher.eval()  # Lightning has put all of the module into training mode

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.pair.student.parameters(), RATE)

    trainer = lightning.Trainer(
        max_epochs=EPOCHS, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu"
    )
    trainer.fit(Module(), DataLoader(TensorDataset(pictures), 8, shuffle=True))


def main() -> None:
    torch.manual_seed(0)
    pair = Pair()
    if MODE == "ddp":
        pair.teacher = nn.parallel.DistributedDataParallel(pair.teacher.requires_grad_(True))
    if MODE == "sharded":
        mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        torch.distributed.fsdp.fully_shard(pair.teacher, mesh=mesh)
    if CACHE != "plain":
        egeria.cached(pair.teacher, cache=None if CACHE == "default" else CACHE, use="always")
    {"trainer": in_trainer, "lightning": in_lightning}.get(MODE, in_a_loop)(pair, *images())
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in pair.student.parameters())
    result: dict[str, Any] = {"weights": hashlib.sha256(weights).hexdigest()}
    if CACHE != "plain":
        result.update(egeria.cache_summary(pair.teacher))
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    main()
