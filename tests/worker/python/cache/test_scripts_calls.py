"""Frozen trunks that are called in special ways, as strangers do. Weights are the plain script's, to the bit."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frozen_trunk import BATCH, EPOCHS, IMAGES, LABELS, Network, Run, Script, Trunk, freeze, optimizer_of, trained
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclasses.dataclass
class Features:
    pooled: Tensor
    early: Tensor


class Returning(Trunk):
    """A trunk that returns more than one tensor, in some container."""

    def __init__(self, make: Callable[[Tensor, Tensor], Any]):
        super().__init__()
        self.make = make

    def forward(self, images: Tensor) -> Any:
        early = self.first(images)
        return self.make(self.pool(self.second(early)), early.mean((2, 3)))


def model_output(pooled: Tensor, early: Tensor) -> Any:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    return outputs.BaseModelOutputWithPooling(last_hidden_state=early, pooler_output=pooled)


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda pooled, early: (pooled, early), lambda out: out[0] + out[1]),
        (lambda pooled, early: [pooled, [early]], lambda out: out[0] + out[1][0]),
        (lambda pooled, early: {"pooled": pooled, "early": early}, lambda out: out["pooled"] + out["early"]),
        (Features, lambda out: out.pooled + out.early),
        (model_output, lambda out: out.pooler_output + out.last_hidden_state),
        (lambda pooled, early: (pooled, early, len(early), None), lambda out: out[0] * out[2]),
    ],
    ids=["tuple", "list", "dict", "dataclass", "ModelOutput", "and a number"],
)
def test_what_a_trunk_returns(make: Callable[..., Any], read: Callable[[Any], Tensor], run: Run):
    class Reading(Network):
        def forward(self, images: Tensor) -> Tensor:
            return self.head(read(self.trunk(images)))

    outcome = run(trained(lambda: Reading(Returning(make))))
    assert outcome.served >= 15, outcome.text


def test_a_trunk_with_keywords_and_a_dict(run: Run):
    class Keywords(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = Trunk()

        def forward(self, *, batch: dict[str, Tensor], scale: float = 1.0) -> Tensor:
            return self.trunk(batch["images"]) * scale

    class Calling(Network):
        def forward(self, batch: dict[str, Tensor], scale: float = 1.0) -> Tensor:
            return self.head(self.trunk(batch=batch, scale=scale))

    def script(run_: Script) -> Any:
        model = Calling(Keywords())
        optimizer = optimizer_of(model)
        run_.attach(model, optimizer)
        run_.train(model, optimizer, call=lambda images: model({"images": images, "others": images * 2}, scale=2.0))
        return [model]

    assert run(script).served >= 20


class LossInside(Network):
    """A model that computes its own loss, as those of transformers do. Its trunk may read the count by itself."""

    def __init__(self, read: Callable[[Tensor], Tensor | float] = lambda count: 1.0):
        super().__init__(Trunk())
        self.read = read
        self.reads = True

    def forward(self, images: Tensor, labels: Tensor, count: Tensor) -> Tensor:
        features = self.trunk(images * (self.read(count) if self.reads else 1.0))
        return F.cross_entropy(self.head(features), labels, reduction="sum") / count


def with_counts(
    model: Callable[[], LossInside], count: Callable[[int], float], noisy_labels: bool = False, reads_from: int = 1
) -> Callable[[Script], Any]:
    """A script that gives its model a number which depends on the step, and perhaps labels that do. From the step
    `reads_from` on the model looks at the number."""

    def script(run_: Script) -> Any:
        network = model()
        optimizer = optimizer_of(network)
        run_.attach(network, optimizer)
        step = 0
        for _ in range(EPOCHS):
            for images, labels in run_.loader():
                step += 1
                network.reads = step >= reads_from
                if noisy_labels:
                    labels = (labels + step) % 4
                loss = network(images, labels, torch.tensor(count(step)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run_.note(loss)
            run_.end_epoch()
        return [network]

    return script


@pytest.mark.parametrize("noisy_labels", [False, True])
def test_arguments_that_the_frozen_layers_do_not_see_may_change(noisy_labels: bool, run: Run):
    outcome = run(with_counts(LossInside, float, noisy_labels))
    assert outcome.served >= 20, outcome.text


@pytest.mark.parametrize(
    "read",
    [
        lambda count: count,
        lambda count: count.item(),
        lambda count: count.tolist(),
        lambda count: float(count.numpy()),
        lambda count: 2.0 if count > 20 else 1.0,
        lambda count: 2.0 if count.tolist() > 20 else 1.0,
    ],
    ids=["tensor", "item", "tolist", "numpy", "decides", "tolist decides"],
)
def test_a_number_that_goes_into_the_frozen_layers_counts(read: Callable[[Tensor], Any], run: Run):
    outcome = run(with_counts(lambda: LossInside(read), lambda step: 1.0 if step <= 18 else 30.0))
    assert 0 < outcome.served < 20, outcome.text


def test_a_number_that_goes_into_the_frozen_layers_from_some_step_on_counts(run: Run):
    outcome = run(with_counts(lambda: LossInside(lambda count: count.tolist()), float, reads_from=19))
    assert 0 < outcome.served < 20, outcome.text


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_of_the_trunk(reentrant: bool, run: Run):
    class Checkpointing(Trunk):
        def forward(self, images: Tensor) -> Tensor:
            x = checkpoint(self.first, images, use_reentrant=reentrant)
            return self.pool(checkpoint(self.second, x, use_reentrant=reentrant))

    outcome = run(trained(lambda: Network(Checkpointing())))
    assert outcome.served >= 15 or outcome.names, outcome.text


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_of_trunk_and_head(reentrant: bool, run: Run):
    class Checkpointing(Network):
        def forward(self, images: Tensor) -> Tensor:
            images = images.detach().requires_grad_(reentrant)
            return checkpoint(lambda x: self.head(self.trunk(x)), images, use_reentrant=reentrant)

    outcome = run(trained(Checkpointing))
    assert outcome.served >= 15 or outcome.names, outcome.text


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_trunk_without_gradients_inside_the_forward_function(context: Callable[[], Any], run: Run):
    class Quiet(Network):
        def forward(self, images: Tensor) -> Tensor:
            with context():
                features = self.trunk(images)
            return self.head(features.clone())

    outcome = run(trained(Quiet))
    assert outcome.served >= 15 or outcome.names, outcome.text


def test_a_decorated_trunk(run: Run):
    class Decorated(Trunk):
        @torch.no_grad()
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images)

    assert run(trained(lambda: Network(Decorated()))).served >= 20


def test_a_head_that_writes_to_what_the_trunk_gives(run: Run):
    class Writing(Network):
        def forward(self, images: Tensor) -> Tensor:
            features = self.trunk(images)
            features.mul_(2).sub_(features.mean())
            return self.head(F.relu_(features))

    assert run(trained(Writing)).served >= 20


def test_an_activation_in_place_between_trunk_and_head(run: Run):
    """As torchvision's DenseNet has it."""

    class Dense(Network):
        def forward(self, images: Tensor) -> Tensor:
            features = self.trunk.second(self.trunk.first(images))
            return self.head(self.trunk.pool(F.relu(features - 0.1, inplace=True)))

    assert run(trained(Dense)).served >= 20


def test_layers_in_place_that_train(run: Run):
    head = nn.Sequential(nn.ReLU6(inplace=True), nn.Dropout(0.3, inplace=True), nn.Linear(8, 4))
    assert run(trained(lambda: Network(head=copy.deepcopy(head)))).served >= 20


def test_a_trunk_that_returns_a_view_of_its_input(run: Run):
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(1, 1)

        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1)

    class Writing(Network):
        def forward(self, images: Tensor) -> Tensor:
            return self.head(self.trunk(images).mul_(2))

    run(trained(lambda: Writing(Viewing(), nn.Linear(432, 4))))


def test_a_trunk_whose_output_depends_on_the_batch(run: Run):
    class Centred(Trunk):
        def forward(self, images: Tensor) -> Tensor:
            features = super().forward(images)
            return features - features.mean(0)

    outcome = run(trained(lambda: Network(Centred())))
    assert outcome.served >= 15 or outcome.names, outcome.text


def test_a_trunk_that_decides_by_what_it_sees(run: Run):
    class Deciding(Trunk):
        def forward(self, images: Tensor) -> Tensor:
            x = self.first(images)
            return self.pool(self.second(x) if float(images.sum()) > 0 else x)

    outcome = run(trained(lambda: Network(Deciding())))
    assert outcome.served >= 15 or outcome.names, outcome.text


def test_an_embedding_with_sparse_gradients(run: Run):
    tokens = torch.randint(0, 50, (24, 6), generator=torch.Generator().manual_seed(1))

    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(50, 8, sparse=True)
            self.bag = nn.EmbeddingBag(50, 8, sparse=True)

        def forward(self, words: Tensor) -> Tensor:
            return self.embedding(words).mean(1) + self.bag(words)

    def script(run_: Script) -> Any:
        model = Network(Bags())
        optimizer = optimizer_of(model)
        run_.attach(model, optimizer)
        run_.train(model, optimizer, run_.loader(tokens, LABELS))
        return [model]

    assert run(script).served >= 20


def test_a_frozen_embedding_before_a_sparse_one_that_trains(run: Run):
    tokens = torch.randint(0, 50, (24, 6), generator=torch.Generator().manual_seed(1))

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Embedding(50, 8).requires_grad_(False)
            self.trained = nn.Embedding(50, 8, sparse=True)
            self.head = nn.Linear(8, 4)

        def forward(self, words: Tensor) -> Tensor:
            return self.head((self.frozen(words) + self.trained(words)).mean(1))

    def script(run_: Script) -> Any:
        model = Two()
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05)
        run_.attach(model, optimizer)
        run_.train(model, optimizer, run_.loader(tokens, LABELS))
        return [model]

    outcome = run(script)
    assert outcome.served >= 15 or outcome.names, outcome.text


def test_weights_that_trunk_and_head_share(run: Run):
    """A frozen layer that the head uses, too."""

    class Tied(Network):
        def __init__(self) -> None:
            super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(432, 8), nn.ReLU(), nn.Linear(8, 8)))

        def forward(self, images: Tensor) -> Tensor:
            features = self.trunk(images)
            return self.head(self.trunk[3](features))

    outcome = run(trained(Tied))
    assert outcome.served >= 15 or outcome.names, outcome.text


def test_a_lazy_head(run: Run):
    def script(run_: Script) -> Any:
        model = Network(head=nn.LazyLinear(4))
        model(IMAGES[:BATCH])
        optimizer = optimizer_of(model)
        run_.attach(model, optimizer)
        run_.train(model, optimizer)
        return [model]

    assert run(script).served >= 20


def test_a_trunk_compiled_by_the_script(run: Run):
    def script(run_: Script) -> Any:
        model = Network()
        model.trunk = torch.compile(model.trunk, backend="eager")
        optimizer = optimizer_of(model)
        run_.attach(model, optimizer)
        run_.train(model, optimizer)
        return [model.head]

    outcome = run(script)
    assert outcome.served >= 15 or "COMPILED" in outcome.names, outcome.text


def test_a_scripted_trunk(run: Run):
    def build() -> nn.Module:
        model = Network()
        model.trunk = torch.jit.script(model.trunk)
        return model

    outcome = run(trained(build))
    assert outcome.served >= 15 or outcome.names, outcome.text


def test_a_traced_trunk_of_fx(run: Run):
    def build() -> nn.Module:
        model = Network()
        model.trunk = torch.fx.symbolic_trace(model.trunk)
        freeze(model.trunk)
        return model

    assert run(trained(build)).served >= 20


def test_a_function_of_the_script_s_own_in_the_trunk(run: Run):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    class Own(Trunk):
        def forward(self, images: Tensor) -> Tensor:
            return Double.apply(super().forward(images))

    assert run(trained(lambda: Network(Own()))).served >= 20


def test_a_detour_through_numpy(run: Run):
    class Detour(Trunk):
        def forward(self, images: Tensor) -> Tensor:
            return torch.from_numpy(super().forward(images).numpy() * 2)

    outcome = run(trained(lambda: Network(Detour())))
    assert outcome.served >= 15 or outcome.names, outcome.text
