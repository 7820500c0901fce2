#!/usr/bin/env python3
"""Trains an image tower to agree with a frozen text encoder about CIFAR-10's images and captions.

    python captions.py FOLDER --encoder sentence-transformers/all-MiniLM-L6-v2

FOLDER holds the data set's binary version. --encoder is a model of transformers, with its tokenizer; without it a small
BERT with random weights reads the captions by characters. The loss is that of Radford et al., "Learning Transferable
Visual Models From Natural Language Supervision".
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

import egeria  # egeria

RECORD = 1 + 3 * 32 * 32  # bytes: the label, then the planes red, green, blue
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
PATTERNS = ["a photo of a {}", "a small picture of one {}", "a blurry {}", "this is a {} , seen from the front"]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="folder with CIFAR-10's binary files")
    parser.add_argument("--encoder", help="name or folder of a text encoder")
    parser.add_argument("--width", type=int, default=64, help="of the image tower (default 64)")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--train-samples", type=int, help="use only this number of images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", type=pathlib.Path, help="write the loss of every step there, as JSON lines")
    parser.add_argument("--save", type=pathlib.Path, help="write the trained weights there")
    return parser.parse_args()


def read_images(files: list[pathlib.Path], limit: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns images, float32 [n, 3, 32, 32], and labels."""
    try:
        records = torch.from_numpy(np.concatenate([np.fromfile(file, dtype=np.uint8) for file in files]))
    except OSError as error:
        sys.exit(f"captions.py: cannot read {error.filename} ({error.strerror}): give the binary version's folder")
    records = records.view(-1, RECORD)[:limit]
    return (records[:, 1:].reshape(-1, 3, 32, 32) / 255 - 0.47) / 0.25, records[:, 0].long()


class Characters:
    """Stands for a tokenizer."""

    def __call__(self, texts: list[str], **_: object) -> dict[str, torch.Tensor]:
        rows = [torch.tensor([ord(character) for character in text]) for text in texts]
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return {"input_ids": tokens, "attention_mask": (tokens > 0).long()}


def image_tower(width: int, features: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, width // 4), (width // 4, width // 2), (width // 2, width)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, features))


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    files = [arguments.data / f"data_batch_{i}.bin" for i in range(1, 6)]
    images, labels = read_images(files, arguments.train_samples)
    captions = [PATTERNS[index % len(PATTERNS)].format(NAMES[label]) for index, label in enumerate(labels.tolist())]
    dataset = TensorDataset(images, torch.arange(len(images)))
    loader = DataLoader(dataset, arguments.batch_size, shuffle=True, drop_last=True)

    if arguments.encoder:
        tokenizer = AutoTokenizer.from_pretrained(arguments.encoder)
        encoder = AutoModel.from_pretrained(arguments.encoder)
    else:
        small = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}
        tokenizer, encoder = Characters(), BertModel(BertConfig(vocab_size=128, **small))
    encoder = encoder.eval().requires_grad_(False)
    encoder = egeria.cached(encoder)  # egeria
    tower = image_tower(arguments.width, encoder.config.hidden_size)
    optimizer = torch.optim.AdamW(tower.parameters(), arguments.learning_rate)

    losses: list[float] = []
    for epoch in range(arguments.epochs):
        start = time.perf_counter()
        for pictures, rows in loader:
            words = tokenizer([captions[row] for row in rows], padding=True, return_tensors="pt")
            texts = F.normalize(encoder(**words).last_hidden_state[:, 0], dim=1)
            similarity = F.normalize(tower(pictures), dim=1) @ texts.T / 0.07
            wanted = torch.arange(len(rows))
            loss = (F.cross_entropy(similarity, wanted) + F.cross_entropy(similarity.T, wanted)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds = time.perf_counter() - start
        mean = sum(losses[-len(loader) :]) / len(loader)
        print(f"epoch {epoch + 1}: loss {mean:.4f}, {seconds:.1f} s", flush=True)

    if arguments.losses:
        lines = (json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses, 1))
        arguments.losses.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if arguments.save:
        torch.save(tower.state_dict(), arguments.save)


if __name__ == "__main__":
    main()
