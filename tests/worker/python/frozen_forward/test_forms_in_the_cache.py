"""The cache keeps what frozen layers compute in inference form, apart from what they compute as they are."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cache_daemon import Daemon, wait_until_kept
from processors import HAS_BF16
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import egeria
from egeria.frozen_forward import inference_form
from egeria.frozen_forward.passes import Passes

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "worker" / "python" / "examples"))
from cifar_resnet import ResNet  # noqa: E402  pylint: disable=wrong-import-position

SAMPLES, BATCH, STEPS = 40, 8, 60


@pytest.fixture(autouse=True)
def time_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_form, "_WORTH", 1e9)
    monkeypatch.setattr(Passes, "may_build", lambda self: True)


class Images(Dataset):
    """Some of them are other ones each time."""

    def __init__(self, random: int):
        self.images = torch.randn(SAMPLES, 3, 16, 16, generator=torch.Generator().manual_seed(1))
        self.random = random

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        return (image * (1 + torch.rand(())) if index < self.random else image), index % 10


def block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class Head(nn.Module):
    def __init__(self, inputs: int):
        super().__init__()
        self.linear = nn.Linear(inputs, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((2, 3)))


def sequence() -> nn.Module:
    return nn.Sequential(block(3, 8), block(8, 8), block(8, 8), Head(8))


class Dictionaries(nn.Module):
    """Parts that no form can take stand between those that have one."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x: Any) -> Any:
            return {"x": x["x"] * self.scale[:, None, None], "kind": object}

    def __init__(self) -> None:
        super().__init__()
        self.first, self.odd, self.second, self.head = block(3, 8), self.Odd(), block(8, 8), Head(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.odd({"x": self.first(x)})["x"]))


def resnet() -> nn.Module:
    return ResNet(8)


MODELS: dict[Callable[[], nn.Module], list[str]] = {
    sequence: ["0", "1", "2", "3"],
    Dictionaries: ["first", "odd", "second", "head"],
    resnet: ["stem", "layer1", "layer2", "layer3", "fc"],
}


def train(
    make: Callable[[], nn.Module],
    form: str,
    cache: str,
    random: int = 0,
    job: str | None = None,
    steps: int = STEPS,
    use: str = "always",
    middle: Callable[[nn.Module, int], None] = lambda model, step: None,
) -> dict[str, Any]:
    torch.manual_seed(0)
    model, layers = make(), MODELS[make]
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    loader = egeria.data.wrap(DataLoader(Images(random), BATCH, shuffle=True))
    plans = [(6, len(layers) - 1)]
    config = egeria.Config(
        controller="none", plans=plans, cache=cache, cache_use=use, frozen_forward=form, training_job=job
    )
    losses, scores = [], []
    with egeria.attach(model, optimizer, modules=layers, config=config) as session:
        while len(losses) < steps:
            for images, labels in loader:
                middle(model, len(losses))
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                session.step(loss)
                wait_until_kept(session, 20)
                losses.append(loss.item())
            model.eval()
            with torch.no_grad():
                scores.append(model(torch.ones(3, 3, 16, 16)).sum().item())
            model.train()
        summary, counters = session.summary(), session.cache_counters()
    return {
        "losses": torch.tensor(losses),
        "scores": torch.tensor(scores),
        "weights": torch.cat([value.flatten().double() for value in model.state_dict().values()]),
        "form": summary["frozen_forward"],
        "cache": summary["cache"],
        "counters": counters,
    }


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in ("losses", "scores", "weights"))


@pytest.mark.parametrize("random", [0, 5])
@pytest.mark.parametrize("form", ["fused", "bf16"])
@pytest.mark.parametrize("make", MODELS)
def test_what_the_cache_serves_is_what_the_form_computes(make: Any, form: str, random: int, patient_cache: Daemon):
    """With and without the cache the same comes out to the bit, whether samples hit, miss or are computed alone."""
    cached, formed = (train(make, form, cache, random) for cache in (patient_cache.address, "none"))
    assert same(cached, formed), (cached["losses"] - formed["losses"], cached["form"], formed["form"])
    assert not same(formed, train(make, "exact", "none", random))
    counters = cached["counters"]
    assert counters["hits"] > 2 * SAMPLES and counters["failures"] == 0 and cached["cache"]["state"] != "refused"
    assert counters["audits"] > 0 and counters["passes_skipped"] > (0 if random else 10), counters


def test_passes_with_misses_run_in_form(patient_cache: Daemon, monkeypatch: pytest.MonkeyPatch):
    """All samples are other ones each time, so that nothing is ever served."""
    found = train(resnet, "fused", patient_cache.address, random=SAMPLES)
    assert found["counters"]["passes_skipped"] == 0 and found["counters"]["miss_other_input"] > SAMPLES
    assert found["form"]["calls"] > 4 * 30  # most of its four parts, in most of the steps behind the freeze
    assert same(found, train(resnet, "fused", "none", random=SAMPLES))


def test_entries_of_other_forms_are_never_used(patient_cache: Daemon):
    """The same network, the same samples and the same job."""
    found = {}
    for form in ("exact", "fused", "bf16", "exact", "fused"):
        run = train(sequence, form, patient_cache.address, job="one job")
        assert same(run, train(sequence, form, "none")), form
        found.setdefault(form, []).append(run)
        assert run["counters"]["audits"] > 0 and run["counters"]["failures"] == 0
    assert not same(found["exact"][0], found["fused"][0])
    assert same(found["fused"][0], found["bf16"][0]) == (not HAS_BF16)


def test_a_frozen_weight_that_changes_ends_what_is_kept_of_its_form(patient_cache: Daemon):
    def middle(model: nn.Module, step: int) -> None:
        if step == 30:
            with torch.no_grad():
                next(model[1].parameters()).mul_(1.5)

    cached = train(sequence, "fused", patient_cache.address, middle=middle, steps=80)
    formed = train(sequence, "fused", "none", middle=middle, steps=80)
    for name in ("losses", "scores", "weights"):  # forms are made anew a step or two earlier or later
        assert torch.allclose(cached[name], formed[name], rtol=1e-3, atol=1e-4), name
    assert cached["counters"]["hits"] > SAMPLES


def test_under_autocast_everything_is_as_without_forms(patient_cache: Daemon):
    def autocast(model: nn.Module, step: int) -> None:
        if step == 0:
            inner = model.forward
            model.forward = torch.autocast("cpu", torch.bfloat16)(inner)

    cached = train(sequence, "fused", patient_cache.address, middle=autocast, steps=90)
    exact = train(sequence, "exact", "none", middle=autocast, steps=90)
    assert torch.equal(cached["weights"], exact["weights"])
