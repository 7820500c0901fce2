"""Copies, checkpoints and batches"""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from shapes import shape


def net(width=32):
    def block():
        return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())

    return nn.Sequential(block(), block(), block(), block(), nn.Linear(width, 4))


def batch():
    return torch.randn(8, 32), torch.randint(4, (8,))


@shape(steps=60, tells=["RATES_UNKNOWN"])
def best_model():
    """The best weights kept by deepcopy and loaded at the end"""
    import egeria

    model, held_out = net(), batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=60)
    best, weights = float("inf"), None
    for _ in range(6):
        model.train()
        for _ in range(10):
            x, y = batch()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.step(loss)
        model.eval()
        with torch.no_grad():
            loss = F.cross_entropy(model(held_out[0]), held_out[1]).item()
        if loss < best:
            best, weights = loss, copy.deepcopy(model.state_dict())
    final = copy.deepcopy(model)
    model.load_state_dict(weights)
    return model, final


@shape(steps=60, tells=["RATES_UNKNOWN"])
def copy_trained_on():
    """A copy of the whole model, taken late and trained on by an optimizer of its own, with weights saved and loaded"""
    import egeria

    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    other = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.05)
    for _ in range(10):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(other(x), y).backward()
        optimizer.step()
    torch.save(model.state_dict(), "weights.pt")
    loaded = net()
    loaded.load_state_dict(torch.load("weights.pt"))
    return model, other, loaded


@shape(steps=60, counts=[40, 60])
def resume():
    """A training that is stopped, saved, and resumed in new objects, with the session's state in the checkpoint"""
    import egeria

    def make():
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)

    def train(model, optimizer, scheduler, session, steps):
        for _ in range(steps):
            x, y = batch()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            session.step(loss)

    model, optimizer, scheduler = make()
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=60)
    train(model, optimizer, scheduler, session, 40)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "egeria": session}
    torch.save({name: part.state_dict() for name, part in parts.items()}, "checkpoint.pt")
    session.close(finished=False)

    saved = torch.load("checkpoint.pt")
    model, optimizer, scheduler = make()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=60)
    session.load_state_dict(saved["egeria"])
    train(model, optimizer, scheduler, session, 20)
    return model


@shape(steps=40, tells=["RATES_UNKNOWN"])
def batches_of_one():
    """One sample in a batch and eight batches in a step"""
    import egeria

    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(4)), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = egeria.attach(model, optimizer, total_steps=40)
    for _ in range(40):
        for _ in range(8):
            loss = F.cross_entropy(model(torch.randn(1, 32)), torch.randint(4, (1,))) / 8
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(loss)
    return model


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.lstm = nn.LSTM(16, 16, bidirectional=True, batch_first=True)
        self.classify = nn.Linear(32, 5)

    def forward(self, tokens, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.classify(hidden)


@shape(steps=60, prefix=1, tells=["RATES_UNKNOWN"])
def packed_sequences():
    """A bidirectional LSTM over packed sequences of different lengths, the number of samples varying"""
    import egeria

    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    session = egeria.attach(model, optimizer, total_steps=60)
    for step in range(60):
        count = 4 + step % 3
        lengths = torch.randint(3, 9, (count,)).sort(descending=True).values
        tokens, tags = torch.randint(1, 30, (count, 8)), torch.randint(5, (count, 8))
        scores = model(tokens, lengths)
        loss = F.cross_entropy(scores.flatten(0, 1), tags[:, : scores.shape[1]].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60, prefix=1, tells=["RATES_UNKNOWN"])
def multi_task():
    """A trunk with two heads, dictionaries in and out, a sum of losses with weights that are learned"""
    import egeria

    class MultiTask(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
            self.heads = nn.ModuleDict({"kind": nn.Linear(32, 4), "value": nn.Linear(32, 1)})
            self.log_weights = nn.Parameter(torch.zeros(2))

        def forward(self, batch):
            hidden = self.trunk(batch["x"])
            outputs = {name: head(hidden) for name, head in self.heads.items()}
            losses = F.cross_entropy(outputs["kind"], batch["kind"]), F.mse_loss(outputs["value"], batch["value"])
            loss = sum(torch.exp(-w) * part + w for w, part in zip(self.log_weights, losses))
            return {"loss": loss, **outputs}

    model = MultiTask()
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        loss = model({"x": torch.randn(8, 32), "kind": torch.randint(4, (8,)), "value": torch.randn(8, 1)})["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model
