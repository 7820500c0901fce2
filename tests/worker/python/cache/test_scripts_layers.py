"""Frozen trunks with special layers, as strangers have them. Weights are the plain script's, to the bit."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frozen_trunk import Network, Run, Script, Trunk, changed, freeze, optimizer_of, trained
from torch import Tensor, nn
from torch.nn.utils import parametrizations


def test_a_frozen_trunk_and_a_head(run: Run):
    assert run(trained(Network)).served >= 20


# Hooks.


@pytest.mark.parametrize("where", ["trunk", "trunk.first", "trunk.second.0"])
def test_a_hook_that_changes_an_output(where: str, run: Run):
    def build() -> nn.Module:
        model = Network()
        model.get_submodule(where).register_forward_hook(lambda module, args, output: output * 1.5)
        return model

    outcome = run(trained(build))
    assert outcome.served == 0 and f"'{where}'" in outcome.text and "hook of" in outcome.text, outcome.text


def test_a_hook_that_comes_and_goes(run: Run):
    handles = []

    def change(step: int, model: nn.Module) -> None:
        if step == 10:
            handles.append(model.trunk.second.register_forward_hook(lambda module, args, output: output + 1))
        if step == 19:
            handles.pop().remove()

    assert run(changed(Network, change)).served >= 5


def test_a_pre_hook_that_changes_an_input_with_keywords(run: Run):
    def build() -> nn.Module:
        model = Network()
        model.trunk.register_forward_pre_hook(lambda module, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True)
        return model

    outcome = run(trained(build))
    assert "HOOKED" in outcome.names, outcome.text


def test_a_hook_that_steers_by_a_global(run: Run):
    factor = [1.0]

    def change(step: int, model: nn.Module) -> None:
        if step == 0:
            factor[0] = 1.0
            model.trunk.register_forward_hook(lambda module, args, output: output * factor[0])
        factor[0] += 0.5

    run(changed(Network, change))


def test_a_backward_hook_on_the_head_s_input(run: Run):
    def build() -> nn.Module:
        model = Network()
        model.head.register_full_backward_hook(lambda module, inputs, outputs: None)
        return model

    outcome = run(trained(build))
    assert outcome.served >= 15 or outcome.names, outcome.text


# Parametrizations.


@pytest.mark.parametrize("evaluate", [True, False])
@pytest.mark.parametrize(
    "wrap",
    [
        parametrizations.spectral_norm,
        parametrizations.weight_norm,
        torch.nn.utils.spectral_norm,
        torch.nn.utils.weight_norm,
    ],
    ids=["spectral", "weight", "old_spectral", "old_weight"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_norm_of_weights_in_the_trunk(wrap: Callable[[nn.Module], nn.Module], evaluate: bool, run: Run):
    def build() -> nn.Module:
        model = Network(holds_mode=evaluate)
        for block in (model.trunk.first, model.trunk.second):
            block[0] = wrap(block[0])
        freeze(model.trunk)
        if not evaluate:
            model.trunk.first[0].train()
            model.trunk.second[0].train()
        return model

    outcome = run(trained(build))
    assert outcome.served >= 15 or outcome.names, outcome.text


def test_an_orthogonal_parametrization(run: Run):
    def build() -> nn.Module:
        model = Network(nn.Sequential(nn.Flatten(), parametrizations.orthogonal(nn.Linear(432, 8))))
        freeze(model.trunk)
        return model

    outcome = run(trained(build))
    assert outcome.served >= 15 or outcome.names, outcome.text


# Modes and batch norms.


def test_a_trunk_that_model_train_puts_into_training_mode(run: Run):
    """The usual mistake: eval() once, and train() in each epoch."""

    def script(run_: Script) -> Any:
        model = Network(holds_mode=False)
        optimizer = optimizer_of(model)
        run_.attach(model, optimizer)
        run_.train(model, optimizer, each_epoch=lambda epoch: model.train())
        return [model]

    outcome = run(script)
    assert "BATCH_DEPENDENT" in outcome.names, outcome.text


def test_batch_norms_in_training_mode_in_the_last_epochs_only(run: Run):
    def script(run_: Script) -> Any:
        model = Network(holds_mode=False)
        optimizer = optimizer_of(model)
        run_.attach(model, optimizer)
        run_.train(model, optimizer, each_epoch=lambda epoch: model.trunk.train(epoch in (2, 4)))
        return [model]

    run(script)


def test_batch_norms_that_train_their_scale_alone(run: Run):
    def build() -> nn.Module:
        model = Network()
        for module in model.trunk.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.requires_grad_(True)
        return model

    outcome = run(trained(build))
    assert outcome.served >= 15 or outcome.names, outcome.text


def test_biases_alone_train(run: Run):
    def build() -> nn.Module:
        model = Network()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
        return model

    outcome = run(trained(build))
    assert outcome.served >= 15 or outcome.names, outcome.text


@pytest.mark.parametrize("evaluate", [True, False])
def test_sync_batch_norm(evaluate: bool, run: Run):
    def build() -> nn.Module:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(Network(holds_mode=evaluate))
        model.trunk.train(not evaluate)
        return model

    outcome = run(trained(build))
    assert outcome.served >= 15 if evaluate else outcome.names, outcome.text


def test_a_head_with_dropout_and_batch_norm(run: Run):
    def build() -> nn.Module:
        head = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        return Network(Trunk(0.5), head)

    assert run(trained(build)).served >= 20


def test_stochastic_depth_in_the_trunk(run: Run):
    class Skipping(Trunk):
        def forward(self, images: Tensor) -> Tensor:
            x = self.first(images)
            if torch.rand(()) > 0.3:
                x = x * 2
            return self.pool(self.second(x))

    outcome = run(trained(lambda: Network(Skipping())))
    assert outcome.served >= 15 or "RANDOM" in outcome.names, outcome.text


def test_augmentation_inside_the_model(run: Run):
    class Augmenting(Network):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images + 0.1 * torch.randn_like(images))

    outcome = run(trained(Augmenting))
    assert outcome.served == 0 and "RANDOM" in outcome.names, outcome.text


def test_fixed_position_in_a_random_order(run: Run):
    """Python's own random numbers are random numbers, too."""

    class Scaled(Network):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images * random.choice([1.0, 2.0]))

    run(trained(Scaled))


def test_an_affine_norm_without_running_statistics(run: Run):
    def build() -> nn.Module:
        trunk = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        return Network(trunk)

    outcome = run(trained(build))
    assert "BATCH_DEPENDENT" in outcome.names, outcome.text


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 8), nn.InstanceNorm2d(8), nn.LocalResponseNorm(2)])
def test_other_norms(norm: nn.Module, run: Run):
    def build() -> nn.Module:
        return Network(nn.Sequential(nn.Conv2d(3, 8, 3), copy.deepcopy(norm), nn.AdaptiveAvgPool2d(1), nn.Flatten()))

    assert run(trained(build)).served >= 20


# Who keeps state.


def test_a_trunk_that_counts_its_calls(run: Run):
    class Counting(Trunk):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, images: Tensor) -> Tensor:
            self.calls += 1
            self.seen += len(images)
            return super().forward(images) * (1 + 0.1 * self.calls)

    outcome = run(trained(lambda: Network(Counting())))
    assert outcome.served == 0 and outcome.names, outcome.text


def test_a_trunk_that_leaves_its_features_in_an_attribute(run: Run):
    class Leaving(Trunk):
        def forward(self, images: Tensor) -> Tensor:
            self.last = self.first(images)
            return self.pool(self.second(self.last))

    class Using(Network):
        def forward(self, images: Tensor) -> Tensor:
            out = super().forward(images)
            return out + self.trunk.last.mean(dim=(1, 2, 3))[:, None]

    outcome = run(trained(lambda: Using(Leaving())))
    assert outcome.served >= 15 or outcome.names, outcome.text


def test_features_collected_by_a_hook(run: Run):
    """As torchvision's feature extractors are written by hand."""

    class Collecting(Network):
        def __init__(self) -> None:
            super().__init__()
            self.kept: dict[str, Tensor] = {}
            self.trunk.first.register_forward_hook(lambda module, args, output: self.kept.update(first=output))

        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) + self.kept["first"].mean(dim=(1, 2, 3))[:, None]

    outcome = run(trained(Collecting))
    assert outcome.served >= 15 or outcome.names, outcome.text


def test_a_recurrent_trunk_that_carries_its_state(run: Run):
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(36, 8, batch_first=True)
            self.state: Tensor | None = None

        def forward(self, images: Tensor) -> Tensor:
            out, state = self.rnn(images.flatten(2).reshape(len(images), 12, 36), self.state)
            self.state = state.detach()
            return out[:, -1]

    outcome = run(trained(lambda: Network(Recurrent())))
    assert outcome.served >= 15 or outcome.names, outcome.text


def test_a_recurrent_trunk(run: Run):
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(36, 8, batch_first=True, bidirectional=True)

        def forward(self, images: Tensor) -> Tensor:
            return self.rnn(images.flatten(2).reshape(len(images), 12, 36))[0][:, -1, :8]

    outcome = run(trained(lambda: Network(Recurrent())))
    assert outcome.served >= 15 or outcome.names, outcome.text


def test_fake_quantization_that_observes(run: Run):
    from torch.ao.quantization import FakeQuantize

    def build() -> nn.Module:
        model = Network()
        model.trunk.first.append(FakeQuantize())
        freeze(model.trunk)
        return model

    outcome = run(trained(build))
    assert outcome.served >= 15 or outcome.names, outcome.text
