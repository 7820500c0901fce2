"""Optimizers, averages and rates"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from shapes import shape


def net(width=32, norm=True):
    def block():
        return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width) if norm else nn.Identity(), nn.ReLU())

    return nn.Sequential(block(), block(), block(), block(), nn.Linear(width, 4))


def batch():
    return torch.randn(8, 32), torch.randint(4, (8,))


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization around another optimizer."""

    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base_optimizer = base(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in params]).norm()
        for p in params:
            self.state[p]["old"] = p.data.clone()
            p.add_(p.grad, alpha=(self.param_groups[0]["rho"] / (norm + 1e-12)).item())
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old"]
        self.base_optimizer.step()
        self.zero_grad()


@shape(steps=60)
def sam():
    """Sharpness-aware minimization: two passes a step, and methods of its own instead of step()"""
    import egeria

    model = net()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.base_optimizer, 60)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=60)
    for _ in range(60):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.first_step()
        F.cross_entropy(model(x), y).backward()
        optimizer.second_step()
        scheduler.step()
        session.step(loss)
    return model


class Lookahead(torch.optim.Optimizer):
    """Slow weights that follow those of another optimizer every few steps."""

    def __init__(self, inner, k=5, alpha=0.5):
        self.optimizer, self.k, self.alpha, self.count = inner, k, alpha, 0
        self.param_groups, self.state, self.defaults = inner.param_groups, inner.state, inner.defaults
        self.slow = [[p.detach().clone() for p in group["params"]] for group in inner.param_groups]

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        self.count += 1
        if self.count % self.k == 0:
            for group, slow in zip(self.param_groups, self.slow):
                for p, kept in zip(group["params"], slow):
                    if p.grad is not None:
                        kept.lerp_(p, self.alpha)
                        p.copy_(kept)
        return loss


@shape(steps=60, tells=["RATES_UNKNOWN"])
def lookahead():
    """Look-ahead around Adam: an optimizer that holds another one and shares its groups"""
    import egeria

    model = net()
    optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=1e-3))
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def adafactor():
    """torch's Adafactor"""
    import egeria

    model = net()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60)
def adafactor_transformers():
    """Transformers' Adafactor, which sets its own rates, with its schedule"""
    from transformers.optimization import Adafactor, AdafactorSchedule

    import egeria

    model = net()
    optimizer = Adafactor(model.parameters(), scale_parameter=True, relative_step=True, warmup_init=True, lr=None)
    scheduler = AdafactorSchedule(optimizer)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=60)
    for _ in range(60):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def muon():
    """Muon for matrices beside AdamW for all else: two optimizers that step together"""
    import egeria

    model = net()
    matrices = [p for p in model[:4].parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=1e-3)]
    session = egeria.attach(model, optimizers, total_steps=60)
    for _ in range(60):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        session.step(loss)
    return model


@shape(steps=20, refused="LBFGS")
def lbfgs():
    """L-BFGS, which moves what has no gradient"""
    import egeria

    model = net(norm=False)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    session = egeria.attach(model, optimizer, total_steps=20)
    x, y = batch()

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(20):
        session.step(optimizer.step(closure))
    return model


@shape(steps=40, tells=["RATES_UNKNOWN"])
def optimizer_in_backward():
    """An optimizer for each parameter, stepped by hooks inside the backward pass, as a recipe of torch has it"""
    import egeria

    model = net()
    optimizers = {p: torch.optim.AdamW([p], lr=1e-3, foreach=False) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    session = egeria.attach(model, list(optimizers.values()), total_steps=40)
    for _ in range(40):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        session.step(loss)
    return model


@shape(steps=60)
def two_optimizers():
    """The backbone by SGD and the head by Adam, each with its own scheduler, one session"""
    import egeria

    model = net()
    backbone, head = torch.optim.SGD(model[:4].parameters(), lr=0.05), torch.optim.Adam(model[4].parameters(), lr=1e-3)
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60) for optimizer in (backbone, head)]
    session = egeria.attach(model, [backbone, head], scheduler=schedulers[0], total_steps=60)
    for _ in range(60):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for optimizer, scheduler in zip((backbone, head), schedulers):
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def rates_by_layer():
    """A rate for each layer, less in front, all of them lowered by hand in two steps"""
    import egeria

    model = net()
    groups = [{"params": layer.parameters(), "lr": 0.05 * 0.8 ** (4 - depth)} for depth, layer in enumerate(model)]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=1e-4)
    session = egeria.attach(model, optimizer, total_steps=60)
    for step in range(60):
        if step in (30, 45):
            for group in optimizer.param_groups:
                group["lr"] *= 0.1
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def closure():
    """An optimizer that calls a closure for the loss"""
    import egeria

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x, y = batch()

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        session.step(optimizer.step(closure))
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def ema():
    """torch's AveragedModel with an exponential average, evaluated now and then"""
    import egeria

    model = net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=60)
    for step in range(60):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        session.step(loss)
        if step % 20 == 19:
            with torch.no_grad():
                average(x).argmax(1)
    return model, average


@shape(steps=60, tells=["RATES_STAY_HIGH"])
def swa():
    """Stochastic weight averaging in the second half, with SWALR, and batch normalisation made anew at the end"""
    import egeria

    model, loader = net(), [batch() for _ in range(10)]
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    swa_scheduler = SWALR(optimizer, swa_lr=0.02, anneal_epochs=1)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=60)
    for epoch in range(6):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.step(loss)
        if epoch >= 3:
            average.update_parameters(model)
            swa_scheduler.step()
        else:
            scheduler.step()
    update_bn(loader, average)
    return model, average
