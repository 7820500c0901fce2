#!/usr/bin/env python3
"""Trains a small GPT on the characters of a text file, data-parallel.

    python char_gpt.py input.txt --steps 2000      # or torchrun --nproc-per-node 2 char_gpt.py ...

With gradient accumulation, bfloat16 autocast, gradient clipping, a cosine schedule and torch.compile. The output
layer has weights of its own (they are not those of the embedding), so that the embedding can be frozen.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import egeria  # egeria


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=pathlib.Path, help="any text file in UTF-8")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--context", type=int, default=128, help="characters (default 128)")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=2000, help="optimizer steps (default 2000)")
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per process and micro-batch")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches per optimizer step (default 2)")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=100, help="steps (default 100)")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient; 0: no clipping")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--compile", default="inductor", metavar="BACKEND", help="of torch.compile, or none")
    parser.add_argument("--eval-interval", type=int, default=250, help="steps (default 250)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", type=pathlib.Path, help="write the loss of every step there, as JSON lines")
    parser.add_argument("--save", type=pathlib.Path, help="write the trained weights there")
    arguments = parser.parse_args()
    if arguments.width % arguments.heads:
        parser.error(f"--width {arguments.width} is not a multiple of --heads {arguments.heads}")
    if min(arguments.layers, arguments.context, arguments.steps, arguments.batch_size, arguments.accumulate) < 1:
        parser.error("--layers, --context, --steps, --batch-size and --accumulate must be at least 1")
    return arguments


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Embedding(nn.Module):
    """Characters and their positions."""

    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.character = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.character(tokens) + self.position.weight[: tokens.shape[1]]


class GPT(nn.Module):
    def __init__(self, vocabulary: int, context: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False))
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # The layers that add to the residual stream start smaller.
                residual = name.endswith(("out.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * layers) if residual else 1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [batch, length, vocabulary] of the characters that follow tokens [batch, length]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def read_text(file: pathlib.Path, context: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Returns the first nine tenths of the text, the rest, and the number of different characters."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"char_gpt.py: cannot read {file} as text: {error}")
    if len(text) < 20 * (context + 1):
        needed = 20 * (context + 1)
        sys.exit(f"char_gpt.py: {file} has {len(text)} characters; a context of {context} needs {needed}")
    code = {character: i for i, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([code[character] for character in text])
    cut = len(tokens) * 9 // 10
    return tokens[:cut], tokens[cut:], len(code)


def sample(tokens: torch.Tensor, count: int, context: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    starts = torch.randint(len(tokens) - context, (count,), generator=generator)
    windows = torch.stack([tokens[start : start + context + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


def learning_rate_factor(step: int, arguments: argparse.Namespace) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < arguments.warmup:
        return (step + 1) / arguments.warmup
    progress = (step - arguments.warmup) / max(1, arguments.steps - arguments.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress)))


def build_optimizer(model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """AdamW that decays matrices only."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


def main() -> None:
    arguments = parse_arguments()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    world = dist.get_world_size() if dist.is_initialized() else 1

    torch.manual_seed(arguments.seed)
    training, validation, vocabulary = read_text(arguments.text, arguments.context)
    network = GPT(
        vocabulary, arguments.context, arguments.width, arguments.layers, arguments.heads, arguments.dropout
    ).to(device)
    model: nn.Module = network
    if arguments.compile != "none":
        model = torch.compile(model, backend=arguments.compile)
    if world > 1:
        model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = build_optimizer(model, arguments.learning_rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, arguments))
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=arguments.precision == "bf16")
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=arguments.steps)  # egeria

    def loss_of(data: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        inputs, targets = (x.to(device) for x in sample(data, arguments.batch_size, arguments.context, generator))
        with autocast:
            logits = model(inputs)
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    losses: list[float] = []
    generator = torch.Generator().manual_seed(arguments.seed * 1000 + rank)
    start = time.perf_counter()
    for step in range(1, arguments.steps + 1):
        model.train()
        loss = torch.zeros((), device=device)
        for micro in range(arguments.accumulate):
            last = micro == arguments.accumulate - 1
            with contextlib.nullcontext() if last or world == 1 else model.no_sync():
                part = loss_of(training, generator) / arguments.accumulate
                part.backward()
            loss += part.detach()
        if arguments.clip > 0:
            nn.utils.clip_grad_norm_(model.parameters(), arguments.clip)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        session.step(loss)  # egeria
        losses.append(loss.item())

        if step % arguments.eval_interval == 0 or step == arguments.steps:
            model.eval()
            same = torch.Generator().manual_seed(arguments.seed)
            with torch.no_grad():
                value = sum(loss_of(validation, same).item() for _ in range(10)) / 10
            if rank == 0:
                seconds = time.perf_counter() - start
                print(f"step {step}: loss {losses[-1]:.4f}, validation {value:.4f}, {seconds:.1f} s", flush=True)

    if rank == 0 and arguments.losses:
        lines = (json.dumps({"step": step, "loss": value}) for step, value in enumerate(losses, 1))
        arguments.losses.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if rank == 0 and arguments.save:
        torch.save(network.state_dict(), arguments.save)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
