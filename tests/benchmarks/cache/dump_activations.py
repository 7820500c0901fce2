#!/usr/bin/env python3
"""Writes activations of real networks for cache_format_benchmark: a ResNet-20 on CIFAR-10 and a small BERT on text.

    dump_activations.py FOLDER --cifar CIFAR-10-FOLDER --text FILE ...
    build/dev/benchmarks/cache_format_benchmark FOLDER/*.f32

Both are trained for some hundred steps before, so that their activations are not those of random weights. A file
NAME.BYTES.f32 has entries of BYTES bytes, one for each sample.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "worker/python/examples"))
import cifar_resnet

_MASK = 256  # after the bytes of the text


def write(folder: pathlib.Path, name: str, values: Tensor) -> None:
    values = values.detach().float().contiguous()
    values.numpy().tofile(folder / f"{name}.{values[0].numel() * 4}.f32")


def train(model: nn.Module, steps: int, loss: object, rate: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    for step in range(steps):
        optimizer.zero_grad()
        value = loss(step)
        value.backward()
        optimizer.step()
    print(f"{type(model).__name__}: loss {value.item():.2f} after {steps} steps")


def resnet(folder: pathlib.Path, cifar: pathlib.Path, steps: int, samples: int) -> None:
    data = cifar_resnet.Cifar10([cifar / "data_batch_1.bin"], augment=False)
    order = torch.randperm(len(data))

    def batch(step: int) -> tuple[Tensor, Tensor]:
        picked = [data[int(i)] for i in order[step * 64 % 9984 :][:64]]
        return torch.stack([image for image, _ in picked]), torch.stack([label for _, label in picked])

    model = cifar_resnet.ResNet(20)
    train(model, steps, lambda step: F.cross_entropy(model(batch(step)[0]), batch(step)[1]), 3e-3)
    model.eval()
    images = torch.stack([data[i][0] for i in range(samples)])
    found: dict[str, Tensor] = {}
    for name in ("stem.1", "stem", "layer1", "layer2", "layer2.2.bn2", "layer3"):
        model.get_submodule(name).register_forward_hook(
            lambda _module, _args, out, name=name: found.__setitem__(name, out.clone())
        )
    with torch.no_grad():
        model(images)
    for name, values in found.items():
        kind = "pre-relu" if name in ("stem.1", "layer2.2.bn2") else "post-relu"
        write(folder, f"resnet20-{name.replace('.', '_')}-{kind}", values)


def bert(folder: pathlib.Path, text: bytes, steps: int, samples: int) -> None:
    length = 128
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def sequences(count: int) -> Tensor:
        return torch.stack([tokens[i : i + length] for i in torch.randint(len(tokens) - length, (count,))])

    model = BertForMaskedLM(
        BertConfig(
            vocab_size=257,
            hidden_size=256,
            num_hidden_layers=6,
            num_attention_heads=4,
            intermediate_size=1024,
            max_position_embeddings=length,
        )
    )

    def loss(_step: int) -> Tensor:
        right = sequences(16)
        masked = torch.rand(right.shape) < 0.15
        return model(right.masked_fill(masked, _MASK), labels=right.masked_fill(~masked, -100)).loss

    train(model, steps, loss, 5e-4)
    model.eval()
    with torch.no_grad():
        states = model(sequences(samples), output_hidden_states=True).hidden_states
    for layer in (0, 2, 4, 6):
        write(folder, f"bert-hidden_{layer}", states[layer])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--cifar", type=pathlib.Path, required=True, help="CIFAR-10's binary version")
    parser.add_argument("--text", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--samples", type=int, default=256)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    resnet(arguments.folder, arguments.cifar, arguments.steps, arguments.samples)
    bert(arguments.folder, b"".join(file.read_bytes() for file in arguments.text), arguments.steps, arguments.samples)


if __name__ == "__main__":
    main()
