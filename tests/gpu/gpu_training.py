"""A training on the device that the tests are about."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import egeria

if TYPE_CHECKING:
    from harness import Controller

DEVICE = torch.device(os.environ.get("TEST_DEVICE", "cuda"))
CLASSES = 10


class Convolutions(nn.Module):
    """Convolutions with batch normalisation and dropout."""

    def __init__(self, width: int = 32, blocks: int = 3):
        super().__init__()
        self.stem = self._block(3, width)
        self.blocks = nn.ModuleList(self._block(width, width) for _ in range(blocks))
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, CLASSES)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        images = self.stem(images)
        for block in self.blocks:
            images = block(images)
        return self.head(self.drop(images.mean((2, 3))))


class Encoder(nn.Module):
    """Attention over 16 tokens that are cut from the image."""

    def __init__(self, width: int = 64, layers: int = 3):
        super().__init__()
        self.embed = nn.Linear(48, width)
        self.layers = nn.ModuleList(_Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.embed(images.reshape(len(images), 16, 48))
        for layer in self.layers:
            tokens = layer(tokens)
        return self.head(tokens.mean(1))


class _Layer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        heads = self.into(self.norm(tokens)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        return tokens + self.out(mixed)


MODULES = {
    Convolutions: ["stem", "blocks.0", "blocks.1", r"blocks\.2|head"],
    Encoder: ["embed", "layers.0", "layers.1", r"layers\.2|head"],
}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-4),
    "sgd-foreach": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, foreach=True),
    "sgd-fused": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-3),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, 1e-3, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, 1e-3, fused=True),
    "adamw-capturable": lambda p: torch.optim.AdamW(p, 1e-3, capturable=True),
    "adamw-rate-on-the-gpu": lambda p: torch.optim.AdamW(p, torch.tensor(1e-3, device=DEVICE), capturable=True),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """How a training goes.

    Attributes:
      autocast: the type of torch.autocast; float16 comes with a GradScaler.
      compile: the mode of torch.compile, "" for none; "in-place" is model.compile().
      graphed: layers that torch.cuda.make_graphed_callables() is given.
      side_stream: batches are copied from pinned memory, on a stream of their own.
    """

    model: type[nn.Module] = Convolutions
    optimizer: str = "sgd"
    autocast: torch.dtype | None = None
    channels_last: bool = False
    compile: str = ""
    graphed: tuple[str, ...] = ()
    side_stream: bool = False


def cuda_options(**given: Any) -> Options:
    """Options, without what a CPU has not."""
    if DEVICE.type != "cuda":
        given = {name: value for name, value in given.items() if name not in ("graphed", "side_stream")}
        given["compile"] = given.get("compile", "").replace("reduce-overhead", "default")
        given["optimizer"] = given.get("optimizer", "sgd").replace("-capturable", "").replace("-rate-on-the-gpu", "")
    return Options(**given)


class Training:
    """Trains a small model; the data of a step depends on its number only."""

    def __init__(self, options: Options = Options(), batch: int = 16, device: torch.device = DEVICE):
        self.options, self.batch, self.device = options, batch, device
        torch.manual_seed(0)
        self.network = options.model().to(device)
        if options.channels_last:
            self.network.to(memory_format=torch.channels_last)
        self.step = 0
        self._stream = torch.cuda.Stream() if options.side_stream else None
        for name in options.graphed:
            self._graph(name)
        self.model: Any = self.network
        if options.compile == "in-place":
            self.network.compile()
        elif options.compile:
            self.model = torch.compile(self.network, mode=options.compile)
        self.optimizer = OPTIMIZERS[options.optimizer](self.network.parameters())
        self.scaler = torch.amp.GradScaler(device.type, enabled=options.autocast is torch.float16, init_scale=256.0)
        self.losses: list[Tensor] = []

    def _graph(self, name: str) -> None:
        """Replaces the forward of a layer by one that replays a CUDA graph, as its example input goes in."""
        example: list[Tensor] = []
        layer = self.network.get_submodule(name)
        handle = layer.register_forward_pre_hook(lambda _, args: example.append(args[0].detach().clone()))
        state = copy.deepcopy(self.network.state_dict())
        self.network(self.images())
        handle.remove()
        example[0].requires_grad_(name != "stem")
        torch.cuda.make_graphed_callables(layer, (example[0],))
        self.network.load_state_dict(state)  # passes of the warm-up have moved the statistics

    def attach(self, **config: Any) -> egeria.Session:
        if "controller" not in config and "plans" not in config:
            config["controller"] = "none"
        return egeria.attach(
            self.model, self.optimizer, modules=MODULES[self.options.model], config=egeria.Config(**config)
        )

    def images(self) -> Tensor:
        data = torch.Generator().manual_seed(self.step)
        images = torch.randn(self.batch, 3, 16, 16, generator=data)
        return self._to_device(images)

    def labels(self) -> Tensor:
        data = torch.Generator().manual_seed(1_000_000 + self.step)
        return self._to_device(torch.randint(0, CLASSES, (self.batch,), generator=data))

    def _to_device(self, tensor: Tensor) -> Tensor:
        if self._stream is None:
            moved = tensor.to(self.device)
        else:
            with torch.cuda.stream(self._stream):
                moved = tensor.pin_memory().to(self.device, non_blocking=True)
            torch.cuda.current_stream().wait_stream(self._stream)
            moved.record_stream(torch.cuda.current_stream())
        images = tensor.dim() == 4 and self.options.channels_last
        return moved.to(memory_format=torch.channels_last) if images else moved

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        kind = self.options.autocast
        context = torch.autocast(self.device.type, kind) if kind is not None else contextlib.nullcontext()
        with context:
            return F.cross_entropy(self.model(images).float(), labels)

    def train(self, steps: int, session: egeria.Session | None = None, pace: float = 0.0) -> None:
        """`pace`: seconds that a step takes at least, so that a controller can answer within few steps."""
        for _ in range(steps):
            self.step += 1
            images, labels = self.images(), self.labels()
            torch.manual_seed(10_000 + self.step)  # dropout
            if self.options.compile:
                torch.compiler.cudagraph_mark_step_begin()
            self.take_step(images, labels, session)
            time.sleep(pace)

    def take_step(self, images: Tensor, labels: Tensor, session: egeria.Session | None = None) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(images, labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if session is not None:
            session.step(loss)
        self.losses.append(loss.detach().clone())

    def train_until(
        self, happened: Callable[[], bool], session: egeria.Session, seconds: float = 60.0, pace: float = 0.02
    ) -> None:
        """Goes on until that is so."""
        deadline = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < deadline, "waited in vain"
            self.train(1, session, pace)

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(
            {
                "model": self.network.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "step": self.step,
            }
        )

    def restore(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)
        self.network.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.step = state["step"]


def readings(controller: Controller) -> list[dict[str, Any]]:
    """Returns the readings that the only job's policy has seen so far."""
    jobs = controller.egeria("list", "--json").splitlines()
    lines = controller.egeria("export", json.loads(jobs[0])["job_id"]).splitlines() if jobs else []
    return [line for line in map(json.loads, lines) if "plasticity" in line or "gradients" in line]


def trained(options: Options, steps: int) -> Training:
    """The training without Egeria."""
    training = Training(options)
    training.train(steps)
    return training


def tensors_of(units: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Copies of the parameters and buffers of layers."""
    return {
        f"{index}.{name}": value.detach().clone()
        for index, unit in enumerate(units)
        for name, value in unit.state_dict().items()
    }


def same(one: Any, other: Any) -> bool:
    """Equal to the bit, at any depth."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
