"""Readings of the gradients of single steps: norms without a trace, and what they estimate."""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gradient_models import MODULES, make_batch, make_model
from skipped_models import RESNET_LAYERS, images, resnet, square
from skipping_runs import DictStore, epochs, train
from torch import Tensor, nn

from egeria.freeze.replicas import Replicas
from egeria.gradients.cross_entropy import CrossEntropy
from egeria.gradients.gradient_readings import GradientReadings
from egeria.gradients.gradient_step import Squares
from egeria.model.isolation import restored
from egeria.model.modules import LayerModule, partition
from egeria.tell_once import TellOnce
from egeria.time_ledger import TimeLedger


class Reasons(TellOnce):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def __call__(self, what: str, error: Exception | None = None) -> None:
        self.told.append(f"{what}: {error}")


class Metered:
    """A model whose gradients are measured at every step, as a session would."""

    def __init__(self, model: nn.Module, modules: Any, frozen: int = 0):
        self.model = model
        self.modules: list[LayerModule] = partition(model, modules)
        self.frozen = frozen
        self.replicas = Replicas(model)
        self.optimizers = [torch.optim.SGD(model.parameters(), 0.0)]
        self.ranks = 1
        self.found: Squares | None = None
        reasons = Reasons()
        self.told = reasons.told
        # This object stands for the session's switcher, and for its link to the controller.
        self.readings = GradientReadings(self, model, TimeLedger(), reasons, contextlib.nullcontext)
        model.register_forward_pre_hook(self._before, with_kwargs=True)
        model.register_forward_hook(lambda _, __, output: self.readings.after_forward(output))
        for module in self.modules[:frozen]:
            for _, parameter in module.parameters():
                parameter.requires_grad_(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Metered:
        return self  # a copy of the model has the same hooks

    def unfrozen_by(self, first: int) -> list[nn.Parameter]:
        return [parameter for module in self.modules[first : self.frozen] for _, parameter in module.parameters()]

    def offer_gradients(self, request: Any, step: int, *reading: Any) -> None:
        self.found = Squares(*reading)

    def _before(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.readings.aside:
            self.readings.before_forward(args, kwargs)

    def step(self, passes: Callable[[], None], first: int = 0) -> Squares | None:
        """Measures what `passes` does."""
        self.optimizers[0].zero_grad()
        self.found = None
        self.readings.begin(types.SimpleNamespace(first_module=first))
        passes()
        self.readings.before_step()
        self.readings.offer(self, 0)
        return self.found


def by_module(modules: list[LayerModule], gradients: dict[str, Tensor]) -> list[float]:
    return [
        sum(float(gradients[name].double().square().sum()) for name, _ in module.parameters()) for module in modules
    ]


def gradients_of(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters())
    return dict(zip(names, torch.autograd.grad(loss, parameters, retain_graph=True)))


def halves_by_hand(model: nn.Module, inputs: Tensor, labels: Tensor) -> list[dict[str, Tensor]]:
    """Each with a forward pass, and so with statistics of batch normalisation, of its own."""
    middle = len(inputs) // 2
    return [
        gradients_of(model, F.cross_entropy(model(inputs[rows]), labels[rows]))
        for rows in (slice(0, middle), slice(middle, None))
    ]


def add(one: dict[str, Tensor], other: dict[str, Tensor], share: float = 1.0) -> dict[str, Tensor]:
    return {name: one[name] + share * other[name] for name in one}


@pytest.mark.parametrize("kind", ["resnet", "transformer"])
@pytest.mark.parametrize("samples", [16, 17])
def test_two_halves_of_a_batch_are_those_of_its_loss(kind: str, samples: int):
    model = make_model(kind)
    metered = Metered(model, MODULES[kind])
    inputs, labels = make_batch(kind, samples, 1)
    halves = halves_by_hand(copy.deepcopy(model), inputs, labels)
    found = metered.step(lambda: F.cross_entropy(model(inputs), labels).backward())
    assert found is not None and not metered.told
    assert (found.parts, found.samples) == (2, samples)
    squares = [by_module(metered.modules, half) for half in halves]
    assert found.mean_of_squares == pytest.approx([(a + b) / 2 for a, b in zip(*squares)], rel=1e-3)
    mean = {name: (halves[0][name] + halves[1][name]) / 2 for name in halves[0]}
    assert found.square_of_mean == pytest.approx(by_module(metered.modules, mean), rel=1e-3)


@pytest.mark.parametrize("kind", ["resnet", "transformer"])
def test_micro_batches_are_parts(kind: str):
    model = make_model(kind)
    metered = Metered(model, MODULES[kind])
    batches = [make_batch(kind, 8, seed) for seed in range(4)]
    twin = copy.deepcopy(model)
    parts = [gradients_of(twin, F.cross_entropy(twin(inputs), labels)) for inputs, labels in batches]

    def accumulate() -> None:
        for inputs, labels in batches:
            (F.cross_entropy(model(inputs), labels) / 4).backward()

    found = metered.step(accumulate)
    assert found is not None and not metered.told
    assert (found.parts, found.samples) == (4, 32)
    squares = [by_module(metered.modules, part) for part in parts]
    assert found.mean_of_squares == pytest.approx([sum(column) / 4 for column in zip(*squares)], rel=1e-3)
    mean = parts[0]
    for part in parts[1:]:
        mean = add(mean, part)
    assert found.square_of_mean == pytest.approx([value / 16 for value in by_module(metered.modules, mean)], rel=1e-3)


def test_a_frozen_prefix_is_probed_and_stays_as_it_is():
    model = make_model("resnet")
    metered = Metered(model, MODULES["resnet"], frozen=2)
    for module in metered.modules[:2]:
        for unit in module.units:
            unit.eval()
    inputs, labels = make_batch("resnet", 16, 1)
    model(inputs)  # running statistics of their own
    before = {name: value.clone() for name, value in model.state_dict().items()}
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.requires_grad_(True)
    halves = [by_module(metered.modules, half) for half in halves_by_hand(twin, inputs, labels)]
    found = metered.step(lambda: F.cross_entropy(model(inputs), labels).backward(), first=0)
    assert found is not None and not metered.told, metered.told
    assert found.mean_of_squares == pytest.approx([(a + b) / 2 for a, b in zip(*halves)], rel=1e-3)
    for name, parameter in model.named_parameters():
        frozen = name.startswith(("stem", "blocks.0"))
        assert parameter.requires_grad is not frozen and (parameter.grad is None) is frozen
        assert torch.equal(parameter, before[name])
    for name, buffer in model.named_buffers():
        if name.startswith(("stem", "blocks.0")):
            assert torch.equal(buffer, before[name]), name


class WithLoss(nn.Module):
    """Returns a loss and logits, as Hugging Face's models do, with dropout."""

    def __init__(self, penalty: float = 0.0) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(16, 3)
        self.penalty = penalty

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = self.front(x)
        logits = self.head(hidden)
        return {
            "loss": F.cross_entropy(logits, labels, label_smoothing=0.1) + self.penalty * hidden.square().mean(),
            "logits": logits,
        }


def test_dropout_is_drawn_again_as_it_was():
    torch.manual_seed(3)
    metered = Metered(WithLoss(), [["front.0"], ["head"]])
    inputs, labels = torch.randn(12, 6), torch.randint(3, (12,))

    def passes() -> None:
        metered.model(inputs, labels=labels)["loss"].backward()
        torch.rand(5)

    found = metered.step(passes)
    assert found is not None and not metered.told
    actual = by_module(metered.modules, {name: value.grad for name, value in metered.model.named_parameters()})
    assert found.square_of_mean == pytest.approx(actual, rel=1e-4)


def test_a_loss_that_takes_another_way_gives_no_reading():
    torch.manual_seed(3)
    metered = Metered(WithLoss(penalty=1.0), [["front.0"], ["head"]])
    inputs, labels = torch.randn(12, 6), torch.randint(3, (12,))
    assert metered.step(lambda: metered.model(inputs, labels=labels)["loss"].backward()) is None
    assert "other gradients" in metered.told[0]


def test_two_losses_of_one_batch_are_no_micro_batches():
    model = make_model("resnet")
    metered = Metered(model, MODULES["resnet"])
    inputs, labels = make_batch("resnet", 8, 1)

    def passes() -> None:
        F.cross_entropy(model(inputs) + model(inputs), labels).backward()

    assert metered.step(passes) is None and "no micro-batches" in metered.told[0]

    def twice() -> None:
        output = model(inputs)
        F.cross_entropy(output, labels).backward(retain_graph=True)
        (output.square().mean()).backward()

    assert metered.step(twice) is None and "several backward passes" in metered.told[1]


def test_nothing_of_a_step_is_changed():
    """Random states, buffers, gradients: to the bit."""
    inputs, labels = make_batch("transformer", 8, 1)
    seen = []
    for measured in (False, True):
        torch.manual_seed(0)
        model = make_model("transformer")
        for layer in model.layers:
            layer.dropout.p = layer.dropout1.p = 0.3
        metered = Metered(model, MODULES["transformer"])
        torch.manual_seed(5)
        backward = lambda: F.cross_entropy(model(inputs), labels).backward()  # noqa: E731
        if measured:
            assert metered.step(backward) is not None, metered.told
        else:
            backward()
        seen.append(
            [
                torch.get_rng_state(),
                *(value.grad for value in model.parameters()),
                *(value.clone() for value in model.buffers()),
            ]
        )
    assert all(torch.equal(one, other) for one, other in zip(*seen))


@pytest.mark.parametrize(
    "loss, known",
    [
        (lambda output, labels: F.cross_entropy(output, labels), True),
        (lambda output, labels: 512 * F.cross_entropy(output, labels, reduction="sum"), True),
        (lambda output, labels: F.cross_entropy(output, labels, ignore_index=2), True),
        (lambda output, labels: F.cross_entropy(output, labels, label_smoothing=0.2), False),
        (lambda output, labels: F.cross_entropy(output, labels, weight=torch.tensor([1.0, 2, 3, 4])), False),
        (lambda output, labels: F.mse_loss(output, F.one_hot(labels, 4).movedim(-1, 1).float()), False),
    ],
)
@pytest.mark.parametrize("shape", [(9, 4), (5, 4, 3, 2)], ids=["rows", "pixels"])
def test_cross_entropy_is_told_by_its_gradient(
    loss: Callable[[Tensor, Tensor], Tensor], known: bool, shape: tuple[int, ...]
):
    random = torch.Generator().manual_seed(7)
    output = torch.randn(shape, generator=random).requires_grad_()
    labels = torch.randint(4, (shape[0], *shape[2:]), generator=random)
    (gradient,) = torch.autograd.grad(loss(output, labels), output)
    found = CrossEntropy.recognised(output, gradient)
    assert (found is not None) is known
    if found is not None:
        assert torch.allclose(found.gradient(output, 0, shape[0]), gradient, rtol=1e-3, atol=1e-5)


def test_passes_on_the_side_are_never_skipped_nor_counted():
    """A frozen prefix whose activations are kept: its gradients are looked at in between."""
    steps = epochs(22, 8, 4, images)

    def look(_: int, model: nn.Module, skipper: Any) -> None:
        first = next(model.parameters())
        if first.requires_grad:
            return
        with contextlib.nullcontext() if skipper is None else skipper.aside(), restored(model):
            first.requires_grad_(True)
            (gradient,) = torch.autograd.grad(square(model(*steps[0][1])), [first])
            first.requires_grad_(False)
        assert float(gradient.norm()) > 0

    plain = train(resnet, RESNET_LAYERS, 3, steps, square)
    cached = train(resnet, RESNET_LAYERS, 3, steps, square, DictStore())
    looked = train(resnet, RESNET_LAYERS, 3, steps, square, DictStore(), each_step=look)
    assert looked.refusal is None and looked.same_as(plain) and dict(looked.counters) == dict(cached.counters)


def test_compiled_code_is_neither_broken_nor_made_anew():
    import torch._dynamo

    model = make_model("transformer")
    inputs, labels = make_batch("transformer", 8, 1)
    metered = Metered(model, MODULES["transformer"])
    compiled = torch.compile(model, backend="aot_eager")
    backward = lambda: F.cross_entropy(compiled(inputs), labels).backward()  # noqa: E731
    model._forward_hooks.clear()
    model._forward_pre_hooks.clear()  # as a session has them: on the wrapper
    compiled.register_forward_pre_hook(metered._before, with_kwargs=True)
    compiled.register_forward_hook(lambda _, __, output: metered.readings.after_forward(output))
    backward()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs > 0
    readings = [metered.step(backward) for _ in range(2)]
    backward()
    assert all(reading is not None and reading.parts == 2 for reading in readings), metered.told
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    assert not any(torch._dynamo.utils.counters["graph_break"].values())
