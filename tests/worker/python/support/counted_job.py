"""Trains a model of which every call is counted, by the interpreter itself: what the model's code says is not touched.

  counted_job.py --out FILE [options]
Writes the calls of each of its parts and hooks, the states of all generators, and the final weights.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import json
import pathlib
import random
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SEEN: list[Any] = []  # hooks append to it
PASSES = {"n": 0}


class Memory:
    """A helper of the model that is no module."""

    def __init__(self) -> None:
        self.mean = torch.zeros(16)

    def update(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.mean


class Block(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(inputs, 16), nn.BatchNorm1d(16)

    def mix(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.linear(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.head = Block(8), Block(16), Block(16), nn.Linear(16, 4)

    def last(self, x: Tensor) -> Tensor:
        return self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.c(self.b(self.a(x))))


class Stateful(Plain):
    """Has generators, counters and a helper of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.numbers, self.memory = torch.Generator().manual_seed(3), random.Random(3), Memory()
        self.register_buffer("passes", torch.zeros(()))

    def last(self, x: Tensor) -> Tensor:
        self.passes += 1
        x = x * (torch.rand(x.shape, generator=self.generator) > 0.2) * self.numbers.choice([0.9, 1.1])
        return self.head(F.dropout(x, 0.1, self.training)) - 0.01 * self.memory.update(x)[:4]


class Momentum(Plain):
    """Moves a second encoder in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(16, 16)
        self.key.requires_grad_(False)

    def last(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.key.weight.mul_(0.9).add_(self.c.linear.weight, alpha=0.1)
        return self.head(x + 0.1 * self.key(x))


class Global(Plain):
    def last(self, x: Tensor) -> Tensor:
        PASSES["n"] += 1
        return self.head(x) * (1 + 0.01 * (PASSES["n"] % 7))


class Rows(Dataset):
    def __init__(self, count: int) -> None:
        self.x = torch.randn(count, 8, generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], index % 4


class Calls:
    """Counts calls of functions of this file, and of the forward methods of the model's parts."""

    def __init__(self, model: nn.Module):
        self.counts: collections.Counter[str] = collections.Counter()
        self._names = {id(module): name for name, module in model.named_modules()}
        self._names.update({id(value): "helper" for value in vars(model).values() if isinstance(value, Memory)})

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not (code.co_name == "forward" or code.co_filename == __file__):
            return
        owner = frame.f_locals.get("self")
        if code.co_name.startswith("hook"):
            self.counts[code.co_name] += 1
        elif id(owner) in self._names:
            self.counts[f"{self._names[id(owner)]}.{code.co_name}"] += 1


def add_hooks(model: nn.Module) -> list[Any]:
    def hook_forward(*arguments: Any) -> None:
        SEEN.append(float(arguments[-1].detach().mean()))

    def hook_before(*_: Any) -> None:
        SEEN.append(1.0)

    def hook_backward(*arguments: Any) -> None:
        SEEN.append(float(arguments[-1][0].mean()))

    def hook_gradient(gradient: Tensor) -> None:
        SEEN.append(float(gradient.mean()))

    def hook_accumulated(parameter: Tensor) -> None:
        SEEN.append(float(parameter.grad.mean()))

    def hook_of_all(*_: Any) -> None:
        SEEN.append(2.0)

    return [
        model.c.register_forward_hook(hook_forward),
        model.c.register_forward_pre_hook(hook_before),
        model.c.register_full_backward_hook(hook_backward),
        model.head.weight.register_hook(hook_gradient),
        model.head.weight.register_post_accumulate_grad_hook(hook_accumulated),
        nn.modules.module.register_module_forward_hook(hook_of_all),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--model", default="Stateful")
    parser.add_argument("--policy", default="", help="without it there is no session")
    parser.add_argument("--act", action="store_true", help="freeze, and do not just observe")
    parser.add_argument("--cache", default="none")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--no-hooks", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    model = globals()[arguments.model]()
    handles = [] if arguments.no_hooks else add_hooks(model)
    called = torch.compile(model, backend="aot_eager") if arguments.compile else model
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)
    loader: Any = DataLoader(Rows(48), 12, shuffle=True, generator=torch.Generator().manual_seed(7))
    session = None
    if arguments.policy:
        import egeria
        from egeria import data

        plans = [(8, 2)] if arguments.act and arguments.policy == "plans" else []
        loader = data.wrap(loader) if arguments.cache != "none" else loader
        dense = {"interval_steps": 2} if arguments.policy in ("plasticity", "gradnorm") else {}
        config = egeria.Config.from_env(
            **(dict(plans=plans, controller="none") if plans else dict(policy=arguments.policy, options=dense)),
            observe=not arguments.act,
            cache=arguments.cache,
            cache_use="always",
        )
        session = egeria.attach(
            called,
            optimizer,
            modules=["a", "b", "c", ["key", "head"] if hasattr(model, "key") else "head"],
            scheduler=scheduler,
            total_steps=arguments.steps,
            config=config,
        )
    calls, step = Calls(model), 0
    while step < arguments.steps:
        losses = []
        for inputs, labels in loader:
            sys.setprofile(calls)
            loss = F.cross_entropy(called(inputs), labels)
            loss.backward()
            losses.append(loss)
            if len(losses) == arguments.accumulate:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                step += 1
                if session is not None:
                    session.step(losses[-1])
                losses = []
            sys.setprofile(None)
            if session is not None and not losses and arguments.policy != "plans":
                time.sleep(0.02)  # requests take a while to come
    for handle in handles:
        handle.remove()
    result: dict[str, Any] = {"calls": dict(calls.counts), "seen": len(SEEN), "passes": PASSES["n"]}
    with contextlib.suppress(AttributeError):
        result["generators"] = [int(model.generator.get_state().sum()), repr(model.numbers.getstate())[:200]]
    result["random"] = [int(torch.get_rng_state().sum()), random.random()]
    state = b"".join(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for value in (
        value.detach() for value in model.state_dict().values()
    ))  # fmt: skip
    result["weights"] = hashlib.sha256(state).hexdigest()
    told: dict[str, Any] = {}
    if session is not None:
        told = {"counters": session.counters(), "cache": session.cache_counters(), "prefix": session.prefix}
        told["cache_reason"] = session.cache_estimates().get("reason", "")
        session.close(False)
    arguments.out.write_text(json.dumps({"trained": result, "told": told}), encoding="utf-8")


if __name__ == "__main__":
    main()
