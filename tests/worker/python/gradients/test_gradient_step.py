"""Readings of the gradients of single steps: norms without a trace, and what they estimate."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gradient_models import MODULES, make_batch, make_model
from torch import Tensor, nn

from egeria.freeze.replicas import Replicas
from egeria.gradients.gradient_norms import Norms, Squares
from egeria.gradients.gradient_readings import GradientReadings
from egeria.gradients.successive_steps import STEPS
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

    def __init__(self, model: nn.Module, modules: Any, prefix: int = 0):
        self.model = model
        self.modules: list[LayerModule] = partition(model, modules)
        self.prefix = prefix
        self.replicas = Replicas(model)
        self.optimizers = [torch.optim.SGD(model.parameters(), 0.0)]
        self.ranks = 1
        self.found: Squares | None = None
        reasons = Reasons()
        self.told = reasons.told
        # This object stands for the session's switcher, and for its link to the controller.
        self.readings = GradientReadings(self, TimeLedger(), reasons)
        model.register_forward_pre_hook(self._before, with_kwargs=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> Metered:
        return self  # a copy of the model has the same hooks

    def offer_gradients(self, request: Any, step: int, *reading: Any) -> None:
        self.found = Squares(*reading)

    def _before(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.readings.before_forward(args, kwargs)

    def step(self, passes: Callable[[], None], first: int = 0, asked: bool = True) -> Squares | None:
        """Measures what `passes` does, if it is asked for or a reading of steps is under way."""
        self.optimizers[0].zero_grad()
        self.found = None
        self.readings.begin(types.SimpleNamespace(first_module=first) if asked else None)
        passes()
        if self.readings._successive is not None:
            self.kept = list(self.readings._successive._kept.values())
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


def add(one: dict[str, Tensor], other: dict[str, Tensor], share: float = 1.0) -> dict[str, Tensor]:
    return {name: one[name] + share * other[name] for name in one}


@pytest.mark.parametrize("kind", ["resnet", "transformer"])
def test_three_steps_are_one_reading(kind: str):
    """It tells the products of neighbours less that of the outer two."""
    model = make_model(kind)
    metered = Metered(model, MODULES[kind])
    twin = copy.deepcopy(model)
    found, parts = [], []
    for seed in range(2 * STEPS):
        inputs, labels = make_batch(kind, 16, seed)
        parts.append(gradients_of(twin, F.cross_entropy(twin(inputs), labels)))
        found.append(metered.step(lambda: F.cross_entropy(model(inputs), labels).backward(), asked=seed % STEPS == 0))
    assert not metered.told and [reading is not None for reading in found] == [False, False, True] * 2
    for reading, (one, two, three) in zip(found[2::STEPS], (parts[:3], parts[3:])):
        assert (reading.parts, reading.samples) == (3, 48)
        squares = [sum(column) / 3 for column in zip(*(by_module(metered.modules, part) for part in (one, two, three)))]
        assert reading.mean_of_squares == pytest.approx(squares, rel=1e-3)
        signal = [
            sum(
                float((one[name] * two[name] + two[name] * three[name] - one[name] * three[name]).sum()) for name in own
            )
            for own in ([name for name, _ in module.parameters()] for module in metered.modules)
        ]
        told = [(3 * square - d) / 2 for square, d in zip(reading.square_of_mean, reading.mean_of_squares)]
        assert told == pytest.approx(signal, rel=1e-3, abs=1e-5 * max(squares))


def test_of_a_large_matrix_an_eighth_is_kept_and_stands_for_all():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512, bias=False), nn.Linear(512, 1))
    metered = Metered(model, [["0"], ["1"]])
    inputs = torch.randn(64, 512)
    for step in range(STEPS):
        found = metered.step(lambda: model(inputs).square().mean().backward(), asked=step == 0)
    assert metered.kept[0].sum.shape == (512, 64)
    assert found.mean_of_squares[0] == pytest.approx(float(model[0].weight.grad.square().sum()), rel=0.2)
    assert found.square_of_mean == pytest.approx(found.mean_of_squares, rel=1e-3)  # there is no noise


def test_a_reading_of_steps_ends_where_one_is_left_out_or_its_batch_differs():
    model = make_model("resnet")
    metered = Metered(model, MODULES["resnet"])

    def passes(samples: int) -> Callable[[], None]:
        inputs, labels = make_batch("resnet", samples, 1)
        return lambda: F.cross_entropy(model(inputs), labels).backward()

    assert not any(metered.step(passes(samples), asked=samples == 8) for samples in (8, 9, 9))
    metered.step(passes(8))
    metered.step(lambda: None, asked=False)  # an optimizer's step without a pass
    assert not any(metered.step(passes(8), asked=False) for _ in range(3))
    metered.step(passes(8))
    metered.step(passes(8), asked=False)
    metered.prefix = 1  # a switch
    assert metered.step(passes(8), asked=False) is None and metered.step(passes(8)) is None
    assert not metered.told


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


def test_steps_of_one_pass_are_not_measured_by_passes(monkeypatch: pytest.MonkeyPatch):
    """A norm of each gradient in the backward pass would be thrown away."""
    model = make_model("resnet")
    metered = Metered(model, MODULES["resnet"])
    inputs, labels = make_batch("resnet", 8, 1)
    taken: list[nn.Parameter] = []
    take = Norms.set
    monkeypatch.setattr(
        Norms, "set", lambda self, parameter, *rest: (taken.append(parameter), take(self, parameter, *rest))
    )

    def passes(count: int) -> None:
        for _ in range(count):
            F.cross_entropy(model(inputs), labels).backward()

    metered.step(lambda: passes(1))  # the first one tells how many passes a step has
    taken.clear()
    for _ in range(STEPS - 1):
        found = metered.step(lambda: passes(1), asked=False)
    assert found is not None and len(taken) == STEPS * len(list(model.parameters()))
    for _ in range(STEPS):  # the first one finds that there are two
        found = metered.step(lambda: passes(2))
    assert found.parts == 2 and not metered.told


def test_passes_that_are_no_micro_batches_are_one_part_of_a_reading_of_steps():
    model = make_model("resnet")
    metered = Metered(model, MODULES["resnet"])
    inputs, labels = make_batch("resnet", 8, 1)

    def passes() -> None:
        F.cross_entropy(model(inputs) + model(inputs), labels).backward()

    def twice() -> None:
        output = model(inputs)
        F.cross_entropy(output, labels).backward(retain_graph=True)
        (output.square().mean()).backward()

    for kind in (passes, twice):
        found = [metered.step(kind, asked=step == 0) for step in range(STEPS)]
        assert found[-1] is not None and found[-1].parts == STEPS and not metered.told


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
            assert metered.step(backward) is None and not metered.told
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
    backward()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs > 0
    readings = [metered.step(backward) for _ in range(STEPS)]
    backward()
    assert readings[-1] is not None and not metered.told
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    assert not any(torch._dynamo.utils.counters["graph_break"].values())
