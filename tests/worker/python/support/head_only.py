"""A frozen trunk and a trained head, as people write it: the optimizer holds the head, and nothing else is said.

head_only.py OUT [--plain|--unwrapped] writes the processor time of each epoch, and the weights at the end.
"""

import json
import pathlib
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import egeria

torch.manual_seed(0)
blocks = [nn.Sequential(nn.Conv2d(3 if i == 0 else 32, 32, 3, 1, 1), nn.ReLU()) for i in range(4)]
model = nn.Sequential(nn.Sequential(*blocks), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model[-1].parameters(), lr=0.1, momentum=0.9)
images = torch.randn(256, 3, 32, 32)
loader = DataLoader(TensorDataset(images, torch.randint(0, 10, (256,))), batch_size=32, shuffle=True)
session = None
if "--plain" not in sys.argv:
    loader = loader if "--unwrapped" in sys.argv else egeria.data.wrap(loader)
    session = egeria.attach(model, optimizer)
seconds = []
for epoch in range(5):
    begin = time.process_time()
    for batch, labels in loader:
        loss = nn.functional.cross_entropy(model(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds.append(time.process_time() - begin)
out = pathlib.Path(sys.argv[1])
torch.save(model.state_dict(), out / "weights.pt")
report = {"seconds": seconds, "progress": session.progress() if session else None}
(out / "report.json").write_text(json.dumps(report), encoding="utf-8")
