"""Trains on batches from DataLoader workers that were forked and spawned while the session's line is open.

session_loader_job.py FOLDER
"""

from __future__ import annotations

import json
import pathlib
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import egeria


class Numbers(Dataset):
    """Holds the model too, as datasets sometimes do: it is pickled for a spawned worker."""

    def __init__(self, model: nn.Module | None, size: int):
        self.model = model
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        x = torch.full((8,), float(index % 7))
        if self.model is not None:
            self.model.train()
            self.model(x.unsqueeze(0))  # its hooks must be inert in the worker
        return x


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    config = egeria.Config(
        batch_size=4, observe=True, policy="plasticity", options={"interval_steps": 1, "window": 3, "bootstrap": False}
    )
    with egeria.attach(model, optimizer, config=config) as session:
        counts = {}
        for method, size in (("fork", 80), ("spawn", 32)):
            counts[method] = 0
            loader = DataLoader(Numbers(model, size), batch_size=8, num_workers=2, multiprocessing_context=method)
            for _ in range(2):
                for batch in loader:
                    loss = model(batch).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    session.step(loss)
                    counts[method] += 1
        while session.counters()["samples_sent"] == 0:
            model(torch.randn(8, 8)).square().mean().backward()
            optimizer.step()
        sent = session.counters()["samples_sent"] > 0
    (folder / "loader.json").write_text(json.dumps({**counts, "steps": sum(counts.values()), "sent": sent}))


if __name__ == "__main__":
    main()
