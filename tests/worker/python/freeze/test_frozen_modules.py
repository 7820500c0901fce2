"""Frozen layers as modules: their modes, copies, checkpointing, kinds and compilation."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import random
import subprocess
import sys
import warnings
import weakref

import pytest
import torch
import torch._dynamo.testing
from layered_models import (
    Layered,
    backward,
    equal,
    freeze_by_hand,
    gradients,
    largest_relative_error,
    layer_modules,
    make,
)
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from egeria.freeze import wishes
from egeria.freeze.freezer import Freezer
from egeria.freeze.replicas import Replicas
from egeria.model.modules import LayerModule

# Modes.


def tell_all(model: nn.Module) -> None:
    model.train()


def tell_a_layer(model: nn.Module) -> None:
    model.blocks[0].train()


def tell_the_norm(model: nn.Module) -> None:
    model.blocks[0].norm.train()


def call_unbound(model: nn.Module) -> None:
    nn.Module.train(model.blocks[0])


def assign(model: nn.Module) -> None:
    model.blocks[0].norm.training = True
    model.blocks[0].dropout.training = True


def tell_by_apply(model: nn.Module) -> None:
    model.apply(lambda module: module.train(True))


def tell_twice(model: nn.Module) -> None:
    model.eval()
    model.train()


@pytest.mark.parametrize(
    "attack", [tell_all, tell_a_layer, tell_the_norm, call_unbound, assign, tell_by_apply, tell_twice]
)
def test_a_frozen_layer_computes_in_eval_mode_whatever_is_called(attack):
    model = make(norm=nn.BatchNorm1d, dropout=0.5)
    freezer = Freezer(layer_modules(model), [])
    freezer.apply(2)
    attack(model)
    x = torch.randn(6, 16)
    before = model.blocks[0].norm.running_mean.clone()
    assert torch.equal(model.blocks[0](x), model.blocks[0](x))
    assert torch.equal(before, model.blocks[0].norm.running_mean)
    active = model.blocks[1].norm.running_mean.clone()
    model.blocks[1](x)
    assert not torch.equal(active, model.blocks[1].norm.running_mean)


def test_an_unfrozen_layer_is_in_the_mode_that_was_asked_for_meanwhile():
    model = make(norm=nn.BatchNorm1d, dropout=0.5)
    model.blocks[1].norm.eval()  # held in eval by the user since before the freeze
    freezer = Freezer(layer_modules(model), [])
    freezer.apply(3)
    model.eval()
    model.train()
    model.blocks[0].norm.eval()  # asked for during it
    model.blocks[1].norm.eval()
    freezer.apply(0)
    modes = {name: module.training for name, module in model.named_modules()}
    assert [name for name, mode in modes.items() if not mode] == ["blocks.0.norm", "blocks.1.norm"]
    model.train()
    assert all(module.training for module in model.modules())
    assert not any("train" in module.__dict__ for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_model_in_eval_at_the_unfreeze_is_unfrozen_in_eval():
    model = make(dropout=0.5)
    freezer = Freezer(layer_modules(model), [])
    freezer.apply(3)
    model.eval()
    freezer.apply(0)
    assert not any(module.training for module in model.modules())


def test_modes_that_a_trainer_saves_and_assigns_again_are_not_taken_for_wishes():
    model = make(norm=nn.BatchNorm1d)
    model.blocks[1].norm.eval()
    freezer = Freezer(layer_modules(model), [])
    freezer.apply(3)
    for _ in range(2):  # two validations
        saved = {module: module.training for module in model.modules()}
        model.eval()
        for module, mode in saved.items():
            module.training = mode
    freezer.apply(0)
    assert [name for name, module in model.named_modules() if not module.training] == ["blocks.1.norm"]


def test_a_train_method_of_the_users_own_is_obeyed_and_kept():
    class Careful(Layered):
        def train(self, mode: bool = True):
            super().train(mode)
            self.blocks[0].norm.eval()
            return self

    torch.manual_seed(0)
    model = Careful(norm=nn.BatchNorm1d)
    calls = []
    model.blocks[1].train = lambda mode=True: calls.append(mode) or nn.Module.train(model.blocks[1], mode)
    own = model.blocks[1].train
    freezer = Freezer(layer_modules(model), [])
    freezer.apply(3)
    assert model.train() is model
    assert calls == [True] and not model.blocks[1].norm.training
    freezer.apply(0)
    assert model.blocks[1].train is own and model.blocks[1].norm.training
    assert not model.blocks[0].norm.training and model.blocks[0].up.training


def test_a_dropout_that_frozen_and_active_layers_share_stays_on():
    model = make(dropout=0.5)
    for block in model.blocks:
        block.dropout = model.blocks[0].dropout
    freezer = Freezer(layer_modules(model), [])
    freezer.apply(3)
    assert model.blocks[0].dropout.training and not model.blocks[0].norm.training


def test_lists_whose_entries_are_called_one_by_one_are_held_too():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 2))
    modules = [LayerModule(str(i), (unit,), (str(i),)) for i, unit in enumerate(model)]
    Freezer(modules, []).apply(1)
    model[0][1].training = True
    before = model[0][1].running_mean.clone()
    model[0][1](torch.randn(5, 4))
    assert torch.equal(before, model[0][1].running_mean)


# Copies.


def frozen_model() -> tuple[Layered, Freezer]:
    model = make(norm=nn.BatchNorm1d, dropout=0.5)
    freezer = Freezer(layer_modules(model), [])
    freezer.apply(3)
    return model, freezer


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), lambda model: copy.deepcopy(copy.deepcopy(model))],
    ids=["deepcopy", "pickle", "deepcopy twice"],
)
def test_a_copy_of_a_frozen_model_can_be_put_into_any_mode_and_leaves_the_original_alone(duplicate):
    model, _ = frozen_model()
    other = duplicate(model)
    assert [m.training for m in other.modules()] == [m.training for m in model.modules()]
    other.train()
    assert all(module.training for module in other.modules())
    mean = other.blocks[0].norm.running_mean.clone()
    other(torch.randn(5, 8))
    assert not torch.equal(mean, other.blocks[0].norm.running_mean)
    other.eval()
    assert not any(module.training for module in other.modules())
    assert not model.blocks[0].norm.training and model.blocks[3].norm.training
    model.train()
    assert not model.blocks[0].norm.training and not any(module.training for module in other.modules())


def test_an_averaged_model_made_while_layers_are_frozen_gets_batch_statistics():
    model, _ = frozen_model()
    averaged = AveragedModel(model)
    averaged.update_parameters(model)
    update_bn([torch.randn(16, 8) for _ in range(4)], averaged)
    assert averaged.module.blocks[0].norm.num_batches_tracked == 4
    assert model.blocks[0].norm.num_batches_tracked == 0


def test_a_copy_holds_neither_the_freezer_nor_does_the_model():
    model, freezer = frozen_model()
    other = copy.deepcopy(model)
    gone = weakref.ref(freezer)
    del freezer
    gc.collect()
    assert gone() is None
    other.train()
    model.train()
    assert not model.blocks[0].norm.training  # still frozen: nobody unfroze it


def test_a_pickled_frozen_model_loads_where_egeria_is_not_installed():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 2))
    Freezer([LayerModule(str(i), (unit,), (str(i),)) for i, unit in enumerate(model)], []).apply(1)
    written = pickle.dumps(model)
    assert b"egeria" not in written
    program = (
        "import pickle, sys, torch; model = pickle.loads(sys.stdin.buffer.read()); model.train(); "
        "model(torch.ones(3, 4)); print(model[0][1].num_batches_tracked.item())"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], input=written, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "1"


def test_a_copy_compiles_into_one_graph():
    model, _ = frozen_model()
    torch._dynamo.reset()
    other = torch.compile(copy.deepcopy(model), backend="eager", fullgraph=True)
    assert other(torch.randn(5, 8)).shape == (5, 4)


# Checkpointing.


class Checkpointed(Layered):
    """Checkpoints its blocks in one of the ways that are seen in the wild."""

    def __init__(self, way: str, **options):
        super().__init__(**options)
        self.way = way

    def forward(self, x):
        x = self.stem(x)
        if self.way == "segments":
            return self.head(checkpoint_sequential(list(self.blocks), 2, x, use_reentrant=True))
        for block in self.blocks:
            x = checkpoint(self.function(block), x, use_reentrant=self.way != "not reentrant")
        return self.head(x)

    def function(self, block):
        def custom_forward(*inputs):
            return block(*inputs)

        return {
            "module": block,
            "not reentrant": block,
            "closure": custom_forward,
            "method": block.forward,
            "lambda of self": lambda x: self.run(block, x),
            "partial": functools.partial(block.__call__),
            "callable object": Caller(block),
        }[self.way]

    @staticmethod
    def run(block, x):
        return block(x)


class Caller:
    """Nobody can see what it calls."""

    def __init__(self, block):
        self.block = block

    def __call__(self, x):
        return self.block(x)


@pytest.mark.parametrize(
    "way", ["module", "not reentrant", "closure", "method", "lambda of self", "partial", "callable object", "segments"]
)
def test_layers_behind_frozen_ones_get_their_gradients_however_they_are_checkpointed(way):
    torch.manual_seed(0)
    model, twin = Checkpointed(way), make()
    twin.load_state_dict(model.state_dict())
    freezer = Freezer(layer_modules(model), [])
    rng = random.Random(1)
    for toggle in range(20):
        prefix = rng.randrange(6)
        freezer.apply(prefix)
        freeze_by_hand(layer_modules(twin), prefix)
        model.zero_grad()
        twin.zero_grad()
        backward(model, toggle)
        backward(twin, toggle)
        assert largest_relative_error(gradients(model), gradients(twin)) < 1e-6, (toggle, prefix)
    freezer.apply(0)


@pytest.mark.parametrize("way", ["module", "closure", "method", "partial"])
def test_frozen_layers_are_not_recomputed_and_nobody_is_warned(way):
    model = Checkpointed(way)
    freezer = Freezer(layer_modules(model), [])
    calls = []
    for index, block in enumerate(model.blocks):
        block.norm.register_forward_hook(lambda *_, index=index: calls.append(index))
    freezer.apply(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backward(model, 0)
    freezer.apply(0)
    assert calls == [0, 1, 2, 3, 3, 2]  # blocks 0 and 1 once, 2 and 3 again in the backward pass


@pytest.fixture(params=[True, False])
def fastpath(request):
    """Whether the user lets attention take its fast path."""
    torch.backends.mha.set_fastpath_enabled(request.param)
    yield request.param
    torch.backends.mha.set_fastpath_enabled(True)


def test_torch_is_left_as_it_was_found_when_nothing_is_frozen(fastpath):
    original = torch.utils.checkpoint.CheckpointFunction
    first, second = Freezer(layer_modules(make()), []), Freezer(layer_modules(make()), [])
    first.apply(1)
    assert torch.utils.checkpoint.CheckpointFunction is not original
    second.apply(1)
    first.apply(0)
    assert torch.utils.checkpoint.CheckpointFunction is not original
    assert not torch.backends.mha.get_fastpath_enabled()
    del second  # while frozen
    gc.collect()
    assert torch.utils.checkpoint.CheckpointFunction is original
    assert torch.backends.mha.get_fastpath_enabled() == fastpath


@pytest.fixture
def no_automatic_collection():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_automatic_collection")
def test_layers_thaw_though_an_older_frozen_model_was_collected_while_they_froze(monkeypatch):
    model = make()
    freezer = Freezer(layer_modules(model), [])
    older = Freezer(layer_modules(make()), [])
    older.apply(1)
    older.itself = older  # garbage that only a collection finds
    del older
    follow = wishes.follow

    def follow_and_collect(parameter: nn.Parameter) -> wishes.Wish:
        wish = follow(parameter)
        gc.collect()
        return wish

    monkeypatch.setattr(wishes, "follow", follow_and_collect)
    for prefix in (3, 1, 3, 0):
        freezer.apply(prefix)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_other_models_are_checkpointed_as_ever_while_one_is_frozen():
    freezer = Freezer(layer_modules(make()), [])
    freezer.apply(2)
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        out = checkpoint(nn.Linear(4, 4), torch.randn(2, 4), use_reentrant=True)
    assert not out.requires_grad
    freezer.apply(0)


# Kinds of layers.


class Translator(nn.Module):
    """torch's own transformer encoder, which takes a fast path where its first layer is in eval mode."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Linear(8, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(16, 4)

    def forward(self, x, mask):
        return self.head(self.encoder(self.embedding(x), src_key_padding_mask=mask))


def test_torchs_transformer_encoder_with_padding_freezes_layer_by_layer():
    torch.manual_seed(0)
    model = Translator()
    names = ["embedding", "encoder.layers.0", "encoder.layers.1", "encoder.layers.2", "head"]
    modules = [LayerModule(name, (model.get_submodule(name),), (name,)) for name in names]
    freezer = Freezer(modules, [])
    x, mask = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    model(x, mask).square().mean().backward()
    wanted = gradients(model)
    for prefix in (1, 2, 3, 4, 2, 0):
        freezer.apply(prefix)
        model.zero_grad()
        model(x, mask).square().mean().backward()
        active = {name for module in modules[prefix:] for name, _ in module.parameters()}
        assert largest_relative_error(gradients(model), {name: wanted[name] for name in active}) < 1e-6


def test_parametrized_layers_freeze_and_are_copied():
    torch.manual_seed(0)
    model = make()
    nn.utils.parametrizations.weight_norm(model.blocks[0].up)
    nn.utils.parametrizations.spectral_norm(model.blocks[1].up)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    freezer = Freezer(layer_modules(model), [optimizer])
    backward(model, 0)
    optimizer.step()
    freezer.apply(3)
    frozen = [t for module in layer_modules(model)[:3] for _, t in (*module.parameters(), *module.buffers())]
    before = [tensor.detach().clone() for tensor in frozen]
    for number in range(5):
        model.train()
        optimizer.zero_grad()
        backward(model, number)
        optimizer.step()
    assert equal(before, frozen) and len(frozen) > 12
    other = copy.deepcopy(model).train()
    other(torch.randn(4, 8))
    assert not torch.equal(other.blocks[1].up.parametrizations.weight[0]._u, before[-1])
    assert equal(before, frozen)
    freezer.apply(0)
    backward(model, 9)
    assert model.blocks[0].up.parametrizations.weight.original0.grad is not None


# Compilation.


def test_each_frozen_prefix_is_compiled_once_and_never_runs_uncompiled():
    torch._dynamo.reset()
    model = make(blocks=12, norm=nn.BatchNorm1d, dropout=0.1)
    modules = layer_modules(model)
    limit = torch._dynamo.config.recompile_limit
    assert limit < len(modules)  # or this test would show nothing
    try:
        Replicas(model).allow_recompiles(len(modules))
        freezer = Freezer(modules, [])
        graphs = torch._dynamo.testing.CompileCounterWithBackend("eager")
        compiled = torch.compile(model, backend=graphs, fullgraph=True)
        prefixes = [*range(len(modules)), *range(len(modules))]
        random.Random(0).shuffle(prefixes)
        for number, prefix in enumerate(prefixes):
            freezer.apply(prefix)
            model.train()
            means = [block.norm.running_mean.clone() for block in model.blocks]
            model.zero_grad()
            backward(compiled, number)
            for index, module in enumerate(modules):
                assert all((p.grad is not None) == (index >= prefix) for _, p in module.parameters())
            for index, (mean, block) in enumerate(zip(means, model.blocks)):
                assert torch.equal(mean, block.norm.running_mean) == (index + 1 < prefix)
        assert graphs.frame_count == len(modules)
        assert not torch._dynamo.utils.counters["graph_break"]
    finally:
        torch._dynamo.config.recompile_limit = limit
