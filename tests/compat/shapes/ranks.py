"""Several processes"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from shapes import shape


def net(width=32):
    def block():
        return nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU())

    return nn.Sequential(block(), block(), block(), block(), nn.Linear(width, 4))


def vectors(count=160):
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, 32, generator=generator), torch.randint(4, (count,), generator=generator))


@shape(steps=60, ranks=2, launcher="torchrun", ci=False)
def ddp_torchrun():
    """DistributedDataParallel on two ranks under torchrun, a DistributedSampler, gloo"""
    import egeria

    dist.init_process_group("gloo")
    dataset = vectors()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2])
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=60)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.step(loss)
        scheduler.step()
    session.close()
    dist.destroy_process_group()
    return model.module


def _worker(rank, world):
    import egeria

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29513")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DistributedDataParallel(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=60)
    loader = DataLoader(vectors(), batch_size=4, sampler=DistributedSampler(vectors(), shuffle=False))
    for _ in range(3):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.step(loss)
    session.close()
    dist.destroy_process_group()
    return model.module


@shape(steps=60, ranks=2, launcher="spawn", ci=False, tells=["RATES_UNKNOWN"])
def ddp_spawn():
    """DistributedDataParallel on two ranks that torch.multiprocessing.spawn starts"""
    mp.spawn(_worker, args=(2,), nprocs=2)


@shape(steps=40, ranks=2, tells=["RATES_UNKNOWN"])
def ddp_no_sync():
    """DistributedDataParallel with two batches accumulated under no_sync(), batch normalisation, a barrier last"""
    import egeria

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()) for _ in range(4))
    model = DistributedDataParallel(nn.Sequential(*blocks, nn.Linear(32, 4)))
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = egeria.attach(model, optimizer, total_steps=40)
    for _ in range(40):
        with model.no_sync():
            F.cross_entropy(model(torch.randn(4, 32)), torch.randint(4, (4,))).backward()
        loss = F.cross_entropy(model(torch.randn(4, 32)), torch.randint(4, (4,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(loss)
    dist.barrier()
    session.close()
    dist.destroy_process_group()
    return model.module


@shape(steps=40, ranks=2, tells=["RATES_UNKNOWN"])
def fsdp2():
    """fully_shard (FSDP2) on two ranks, layer by layer"""
    import egeria

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = net()
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=40)
    torch.manual_seed(dist.get_rank())
    for _ in range(40):
        loss = F.cross_entropy(model(torch.randn(4, 32)), torch.randint(4, (4,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    session.close()
    dist.destroy_process_group()
    return model


@shape(steps=10, ranks=2, refused="FSDP1")
def fsdp1():
    """FullyShardedDataParallel, the older one, whose flat parameters mix layers"""
    import egeria

    dist.init_process_group("gloo")
    model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=10)
    for _ in range(10):
        loss = F.cross_entropy(model(torch.randn(4, 32)), torch.randint(4, (4,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    dist.destroy_process_group()
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def data_parallel():
    """DataParallel where there is no more than one device"""
    import egeria

    model = DataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        loss = F.cross_entropy(model(torch.randn(8, 32)), torch.randint(4, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=40, launcher="accelerate", ci=False, tells=["RATES_UNKNOWN"])
def accelerate_launch():
    """accelerate on one process under `accelerate launch`"""
    import accelerate

    import egeria

    accelerator = accelerate.Accelerator(cpu=True)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(vectors(), batch_size=4))
    session = egeria.attach(model, optimizer, total_steps=40)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        session.step(loss)
    return accelerator.unwrap_model(model)


@shape(steps=40, ranks=2)
def accelerate_ranks():
    """accelerate on two ranks, which share a loader out, with the scheduler prepared as well"""
    import accelerate

    import egeria

    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 80)  # one step for each rank
    loader = DataLoader(vectors(), batch_size=4)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=40)
    for _ in range(2):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            session.step(loss)
    session.close()
    accelerator.end_training()
    return accelerator.unwrap_model(model)
