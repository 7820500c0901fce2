"""Mistakes that are made where results are kept by hand: such calls are computed, and one sentence says why."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cache_daemon import Daemon
from cached_networks import ConvNet, batches, compare, conv_net, images, same, wait_until_kept
from torch import Tensor, nn

import egeria

(IMAGES,) = images()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def by_rows(network: nn.Module, rows: list[int]) -> Any:
    return network(IMAGES[rows])


class Wrapped(nn.Module):
    """Does something to the batch behind a network."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Any]):
        super().__init__()
        self.inner = conv_net()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.inner(x))


class Counting(ConvNet):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class Showing(ConvNet):
    """Leaves what it has seen for whoever looks."""

    def forward(self, x: Tensor) -> Tensor:
        self.features = self.stem(x)
        return super().forward(x)


class Listing(ConvNet):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return super().forward(x)


class Noisy(ConvNet):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.rand_like(x))


class Centred(ConvNet):
    """A sample's result depends on the others."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits - logits.mean(0)


class Averaged(ConvNet):
    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return logits, logits.mean()


class Opaque(ConvNet):
    def forward(self, x: Tensor) -> Any:
        return threading.local(), super().forward(x)


class Overwriting(ConvNet):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp_(-1, 1))


class Repeated(ConvNet):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).unsqueeze(1).expand(-1, 4, -1)


REFUSED = [
    (Counting, "KEEPS_STATE", "calls"),
    (Showing, "KEEPS_STATE", "features"),
    (Listing, "KEEPS_STATE", "container"),
    (Noisy, "RANDOM", "random numbers"),
    (Centred, "BATCH_DEPENDENT", ""),
    (Averaged, "BATCH_NOT_FIRST", "keep="),
    (Opaque, "NOT_A_TENSOR", "local"),
    (Overwriting, "NO_SHADOW", ""),
    (Repeated, "NOT_A_TENSOR", "share memory"),
]


@pytest.mark.parametrize(("kind", "name", "words"), REFUSED)
def test_what_cannot_be_served_is_computed_and_said_once(
    kind: type[ConvNet], name: str, words: str, patient_cache: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    def call(network: nn.Module, rows: list[int]) -> Any:
        value = network(IMAGES[rows])
        return value[1] if kind is Opaque else value

    network = kind().eval().requires_grad_(False)
    summary = compare(network, call, patient_cache.address, plain=lambda value: value)
    assert summary["served"] == 0 and summary["state"] == "refused" and f"[{name}]" in summary["reason"], summary
    assert words in summary["reason"] and caplog.text.count("calls are computed") == 1
    assert f"cached {kind.__name__}: calls are computed: [{name}]" in caplog.text


@pytest.mark.parametrize(("part", "named"), [("drop", "'drop' (Dropout)"), ("stem.1", "'stem.1' (BatchNorm2d)")])
def test_what_is_left_in_training_mode_is_named_and_served_from_eval_on(
    part: str, named: str, patient_cache: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    def before(number: int, network: nn.Module) -> None:
        network.get_submodule(part).train(number < 8)

    network = conv_net()
    network.get_submodule(part).train()
    summary = compare(network, by_rows, patient_cache.address, epochs=8, before=before)
    assert named in caplog.text and ".eval()" in caplog.text
    assert summary["served"] >= 16 and summary["state"] == "on", summary


def test_a_parameter_that_requires_a_gradient_is_named(patient_cache: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    def before(number: int, network: nn.Module) -> None:
        network.head.weight.requires_grad_(number < 8)

    summary = compare(conv_net(), by_rows, patient_cache.address, epochs=8, before=before)
    assert "NEEDS_GRADIENT] 'head.weight'" in caplog.text and caplog.text.count("calls are computed") == 1
    assert summary["served"] >= 16 and summary["state"] == "on", summary


def test_a_network_that_trains_is_never_served_what_it_was(patient_cache: Daemon) -> None:
    """A moving average of a student, which changes with each step."""

    def before(number: int, network: nn.Module) -> None:
        for parameter in network.parameters():
            parameter.data.mul_(0.99)

    summary = compare(conv_net(), by_rows, patient_cache.address, epochs=10, before=before)
    assert summary["served"] == 0 and "WEIGHTS_CHANGED" in summary["reason"]


def test_a_hook_inside_sees_every_call(patient_cache: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def before(number: int, network: nn.Module) -> None:
        if number == 12:
            handles.append(network.stem.register_forward_hook(lambda *_: seen.append(number)))
        if number == 20:
            handles.pop().remove()

    handles: list[Any] = []
    summary = compare(conv_net(), by_rows, patient_cache.address, epochs=8, before=before)
    assert len(seen) == 2 * 8 and "[HOOKED]" in caplog.text
    assert summary["served"] >= 12 and summary["state"] == "on", summary


def test_hooks_of_the_network_itself_see_what_is_served(patient_cache: Daemon) -> None:
    network = conv_net()
    network.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    network.register_forward_hook(lambda _, args, result: result + args[0].mean())
    assert compare(network, by_rows, patient_cache.address)["served"] >= 8


def test_a_mirrored_picture_has_features_of_its_own(patient_cache: Daemon) -> None:
    flips = iter(range(1000))

    def call(network: nn.Module, rows: list[int]) -> Any:
        flipped = (next(flips) // 2) % 3 == 0
        return network(IMAGES[rows].flip(-1) if flipped else IMAGES[rows])

    summary = compare(conv_net(), call, patient_cache.address, epochs=9)
    assert summary["served"] >= 8 and summary["misses"] > 2 * len(IMAGES), summary


def test_other_types_and_settings_have_results_of_their_own(patient_cache: Daemon) -> None:
    numbers = iter(range(1000))

    def call(network: nn.Module, rows: list[int]) -> Any:
        kind = (next(numbers) // 8) % 3
        network.to(torch.float64 if kind == 1 else torch.float32)
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == 2):
            return network(IMAGES[rows].to(network.head.weight.dtype))

    compare(conv_net(), call, patient_cache.address, epochs=12)


GAIN = 1.0


class Gained(ConvNet):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * GAIN


def test_a_global_that_the_code_names_counts(patient_cache: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def before(number: int, network: nn.Module) -> None:
        monkeypatch.setattr(f"{__name__}.GAIN", 2.0 if 12 <= number < 14 else 1.0)

    network = Gained().eval().requires_grad_(False)
    assert compare(network, by_rows, patient_cache.address, epochs=8, before=before)["served"] >= 12


def test_an_error_of_the_network_reaches_the_script(patient_cache: Daemon) -> None:
    network = egeria.cached(conv_net(), cache=patient_cache.address, use="always")
    for _ in range(4):
        with pytest.raises(RuntimeError, match="channels"):
            network(IMAGES[:, :2])
    assert network(IMAGES).shape == (len(IMAGES), 10)


def test_calls_in_other_threads_and_transforms_are_right(patient_cache: Daemon) -> None:
    network, twin = conv_net(), conv_net()
    twin.load_state_dict(network.state_dict())
    egeria.cached(network, cache=patient_cache.address, use="always")
    for rows in batches(len(IMAGES), 3):
        network(IMAGES[rows])
        wait_until_kept(network)
    wrong: list[int] = []

    def work() -> None:
        for number, rows in enumerate(batches(len(IMAGES), 6)):
            if not same(network(IMAGES[rows]), twin(IMAGES[rows])):
                wrong.append(number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and egeria.cache_summary(network)["failures"] == 0
    perturbed = torch.func.grad(lambda x: network(x).sum())(IMAGES)
    assert torch.equal(perturbed, torch.func.grad(lambda x: twin(x).sum())(IMAGES))
    assert torch.equal(torch.vmap(network)(IMAGES[:, None]), torch.vmap(twin)(IMAGES[:, None]))
    traced = torch.jit.trace(network, (IMAGES,))
    assert torch.equal(traced(IMAGES * 2), twin(IMAGES * 2))


def test_compiled_callers_compute(patient_cache: Daemon) -> None:
    network, twin = conv_net(), conv_net()
    twin.load_state_dict(network.state_dict())
    egeria.cached(network, cache=patient_cache.address, use="always")

    @torch.compile(backend="eager", fullgraph=True)
    def step(x: Tensor) -> Tensor:
        return network(x) * 2

    compiled = torch.compile(network, backend="eager")
    for rows in batches(len(IMAGES), 4):
        assert torch.equal(step(IMAGES[rows]), twin(IMAGES[rows]) * 2)
        assert torch.equal(compiled(IMAGES[rows]), twin(IMAGES[rows]))
        assert torch.equal(network(IMAGES[rows]), twin(IMAGES[rows]))
        wait_until_kept(network)
    assert egeria.cache_summary(network)["served"] >= 4


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_compiled_network_is_served_where_it_computes_what_it_does_uncompiled(
    backend: str, patient_cache: Daemon
) -> None:
    network = conv_net()
    compiled = torch.compile(network, backend=backend)
    twin = torch.compile(conv_net(), backend=backend)
    twin.load_state_dict(compiled.state_dict())
    assert egeria.cached(compiled, cache=patient_cache.address, use="always") is compiled
    for rows in batches(len(IMAGES), 5):
        assert same(compiled(IMAGES[rows]), twin(IMAGES[rows]))
        wait_until_kept(compiled)
    summary = egeria.cache_summary(compiled)
    assert summary["served"] >= 8 or "[OUTPUT_DIFFERS]" in summary["reason"], summary
    assert backend == "inductor" or summary["served"] >= 8
    assert torch.equal(network(IMAGES), twin._orig_mod(IMAGES))  # the module inside is as it was
