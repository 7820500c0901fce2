"""Compilation, precision, and ways to call a model"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from shapes import shape


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(4))
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(width, 4)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def batch():
    return torch.randn(8, 32), torch.randint(4, (8,))


@shape(steps=40)
def compiled_model():
    """model = torch.compile(model)"""
    import egeria

    model = torch.compile(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=40)
    for _ in range(40):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        session.step(loss)
    return model


@shape(steps=40, ci=False, tells=["RATES_UNKNOWN"])
def compiled_in_place():
    """model.compile(), which compiles the model's own call"""
    import egeria

    model = Net()
    model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=40)
    for _ in range(40):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=40, freezes=False, tells=["NO_PASSES", "RATES_UNKNOWN"], ci=False)
def compiled_loss_function():
    """A compiled function that calls the model and computes the loss"""
    import egeria

    model = Net()

    @torch.compile
    def compute_loss(x, y):
        return F.cross_entropy(model(x), y)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = egeria.attach(model, optimizer, total_steps=40)
    for _ in range(40):
        loss = compute_loss(*batch())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(loss)
    return model


@shape(steps=40, tells=["RATES_UNKNOWN"], ci=False)
def compiled_loss_with_modules():
    """A compiled function that calls the model and computes the loss, where attach() is told the layers"""
    import egeria

    model = Net()

    @torch.compile
    def compute_loss(x, y):
        return F.cross_entropy(model(x), y)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = egeria.attach(model, optimizer, modules=r"blocks\.(\d+)|head", total_steps=40)
    for _ in range(40):
        loss = compute_loss(*batch())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(loss)
    return model


@shape(steps=40, ci=False, tells=["RATES_UNKNOWN"])
def compiled_optimizer_step():
    """The optimizer's step compiled, as a recipe of torch has it"""
    import egeria

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-3))

    @torch.compile(fullgraph=False)
    def step():
        optimizer.step()

    session = egeria.attach(model, optimizer, total_steps=40)
    for _ in range(40):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        step()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def autocast_bfloat16():
    """bfloat16 autocast"""
    import egeria

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x, y = batch()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def grad_scaler():
    """float16 autocast with a GradScaler, unscaled and clipped before the step"""
    import egeria

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x, y = batch()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def checkpointed_layers():
    """Layers that are computed again in the backward pass, with dropout, one of them by the older, reentrant way"""
    import egeria

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.1), nn.ReLU()) for _ in range(4))
            self.tail, self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)), nn.Linear(32, 4)

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return self.head(checkpoint_sequential(self.tail, 2, x, use_reentrant=True))

    model = Deep()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
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
def forward_method():
    """model.forward(x) in place of model(x)"""
    import egeria

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x, y = batch()
        loss = F.cross_entropy(model.forward(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def functional_call():
    """torch.func.functional_call on the model, with its own parameters"""
    import egeria

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x, y = batch()
        loss = F.cross_entropy(torch.func.functional_call(model, dict(model.named_parameters()), (x,)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model
