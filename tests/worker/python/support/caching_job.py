"""A training on two ranks with switches, and what the cache of frozen activations did in it.

  caching_job.py OUT [--cache ADDRESS] [--patient] [--use auto|always] [--form FORM] [--epochs N] [--workers N]
                 [--augment] [--only-rank N] [--pause N ...]
Each rank writes OUT/rank<r>.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from cache_daemon import be_patient, wait_until_kept
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import egeria
from egeria import data
from egeria.frozen_forward import inference_form
from egeria.frozen_forward.passes import Passes
from support.ending import end_process_group

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "worker" / "python" / "examples"))
from cifar_resnet import ResNet  # noqa: E402  pylint: disable=wrong-import-position

SAMPLES, BATCH, EPOCHS = 150, 20, 8  # the last batch of a rank's 75 samples has 15
STEPS_PER_EPOCH = 4
# Frozen, frozen further, all active again, and frozen with other weights than before.
PLANS = [(4, 2), (12, 4), (20, 0), (22, 2)]


class Images(Dataset):
    def __init__(self, augment: bool):
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(SAMPLES, 3, 32, 32, generator=generator)
        self.labels = torch.randint(0, 10, (SAMPLES,), generator=generator)
        self.augment = augment

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.augment:
            image = image.roll(int(torch.randint(1, 31, ())), 2) * (1 + 0.1 * torch.rand(()))
        return image, self.labels[index]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--cache", default="none")
    parser.add_argument(
        "--patient",
        action="store_true",
        help="wait for the cache, also for one that is started anew "
        "in a pause, and at the end of an epoch until it has written all",
    )
    parser.add_argument("--use", default="always")
    parser.add_argument("--form", default="exact", help="see Config.frozen_forward; made at once, whatever it takes")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--augment", action="store_true")
    parser.add_argument("--only-rank", type=int, help="the only one that has the cache")
    parser.add_argument(
        "--pause",
        type=int,
        nargs="+",
        default=[],
        help="before epoch N, from 0: says so in OUT/paused<n>, goes on when OUT/go<n> is there",
    )
    arguments = parser.parse_args()
    if arguments.patient:
        be_patient()
    if arguments.form != "exact":
        inference_form._WORTH = 1e9
        Passes.may_build = lambda self: True  # type: ignore[method-assign]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    network = ResNet(14)
    torch.manual_seed(100 + rank)
    model: nn.Module = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
    cache = arguments.cache if arguments.only_rank in (None, rank) else "none"
    config = egeria.Config(plans=PLANS, cache=cache, cache_use=arguments.use, frozen_forward=arguments.form)
    session = egeria.attach(model, optimizer, config=config)
    images = Images(arguments.augment)
    sampler = DistributedSampler(images, shuffle=True, seed=3)
    loader = data.wrap(DataLoader(images, BATCH, sampler=sampler, num_workers=arguments.workers))
    losses = []
    for epoch in range(arguments.epochs):
        if epoch in arguments.pause:
            (arguments.out / f"paused{epoch}").touch()
            while not (arguments.out / f"go{epoch}").exists():
                time.sleep(0.02)
            if arguments.patient:
                wait_until_kept(session, attachments=2)
        sampler.set_epoch(epoch)
        for batch, labels in loader:
            loss = F.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.step(loss)
            losses.append(loss.item().hex())
            if len(losses) == PLANS[0][0]:
                wait_until_kept(session)
        if arguments.patient:
            wait_until_kept(session)
            dist.barrier()  # a rank's next samples may be those of the other
    weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in network.state_dict().values()))
    parameters = hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in network.parameters()))
    (arguments.out / f"rank{rank}.json").write_text(
        json.dumps(
            {
                "losses": losses,
                "weights": weights.hexdigest(),
                "parameters": parameters.hexdigest(),
                "counters": session.cache_counters(),
                "estimates": session.cache_estimates(),
                "identical": session.summary()["ranks_identical"],
                "form": session.summary()["frozen_forward"],
            }
        ),
        encoding="utf-8",
    )
    session.close()
    end_process_group()


if __name__ == "__main__":
    main()
