"""Recordings of models: exact, cut in the right places, and made without a trace on the training model."""

from __future__ import annotations

import json
import os
import pathlib
import random
import subprocess

import pytest
import torch
from recorded_models import Branches, Encoder, Gpt, ResNet, UNet, call_of, random_statistics
from torch import Tensor, nn

from egeria import _native
from egeria.model.inputs import GraphError, RootInputs, ShapeMismatch
from egeria.model.isolation import undisturbed
from egeria.model.modules import LayerModule, partition
from egeria.reference.graph import ExportedModel, export_model
from egeria.reference.probing import record_calls

RUN_GRAPH = pathlib.Path(os.environ["EGERIA_BIN"]).parent / "tests" / "run_graph"
MODELS = {"ResNet": ResNet, "Gpt": Gpt, "Encoder": Encoder, "UNet": UNet}
SAMPLES = 8


def record(model: nn.Module, name: str, **options) -> tuple[list[LayerModule], ExportedModel, RootInputs]:
    random_statistics(model).train()
    inputs = RootInputs(*call_of(name), SAMPLES)
    modules = partition(model, None, record_calls(model, inputs))
    return modules, export_model(model, modules, inputs, **options), inputs


def outputs_of_units(model: nn.Module, modules: list[LayerModule], inputs: RootInputs) -> list[list[Tensor]]:
    """The outputs of the units of each layer module, in evaluation mode."""
    kept: list[list[Tensor]] = [[] for _ in modules]
    handles = [
        unit.register_forward_hook(lambda _, __, output, index=index: kept[index].append(output.clone()))
        for index, module in enumerate(modules)
        for unit in module.units
    ]
    with undisturbed(model):
        inputs.call(model)
    for handle in handles:
        handle.remove()
    return kept


def on_the_controller(exported: ExportedModel, index: int, inputs: list[Tensor], like: Tensor) -> Tensor:
    """The output that the reference engine computes from the layer module's graph."""
    module = exported.module(index)
    weights = exported.weights(index)
    graph = json.loads(module.graph_json)
    assert [spec["name"] for spec in graph["inputs"]] == list(module.input_names)
    kinds = {torch.float32: 1, torch.bfloat16: 4, torch.int64: 5, torch.bool: 9}
    header = {
        "graph": module.graph_json,
        "inputs": [{"dtype": kinds[value.dtype], "shape": list(value.shape)} for value in inputs],
    }
    tensors = [weights[spec["name"]] for spec in graph["weights"]] + list(inputs)
    data = b"".join(bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) for tensor in tensors)
    done = subprocess.run(
        [RUN_GRAPH, "aten"],
        input=json.dumps(header).encode() + b"\n" + data,
        capture_output=True,
        check=False,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
    )
    assert done.returncode == 0, done.stderr.decode()
    return torch.frombuffer(bytearray(done.stdout), dtype=torch.float32).view(like.shape)


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_module_computes_in_torch_and_on_the_controller_what_the_model_does(name: str):
    torch.manual_seed(0)
    model = MODELS[name]()
    modules, exported, inputs = record(model, name)
    with torch.no_grad():  # a step later
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    later = outputs_of_units(model, modules, inputs)
    exact = 0
    for index in range(len(modules)):
        assert exported.module(index).error is None
        assert _native.check_graph(exported.module(index).graph_json) is None
        values = exported.inputs_of(index, inputs)
        output = exported.run(index, values)
        assert output.size(0) == SAMPLES and not output.requires_grad
        assert torch.equal(on_the_controller(exported, index, values, output), output)
        # Where a functional activation or the sum of embeddings follows, the layer module ends behind that.
        exact += any(output.shape == other.shape and torch.equal(output, other) for other in later[index])
    assert exact >= len(modules) - 1


def test_what_lies_between_two_layers_belongs_to_the_first():
    torch.manual_seed(0)
    model = Gpt()
    modules, exported, inputs = record(model, "Gpt")
    assert [module.unit_names for module in modules] == [
        ("tokens",),
        ("positions", "drop"),
        ("blocks.0",),
        ("blocks.1",),
        ("blocks.2", "norm"),
        ("head",),
    ]
    assert [len(exported.module(index).input_names) for index in range(len(modules))] == [1] * len(modules)
    cut = partition(model, [["tokens", "positions", "drop"], ["blocks"], ["norm", "head"]])
    values = export_model(model, cut, inputs).run(0, inputs.tensors()[:1])
    ids = inputs.tensors()[0]
    assert torch.equal(values, model.tokens(ids) + model.positions(torch.arange(ids.shape[1])))


def test_masks_are_computed_anew_and_skips_are_inputs():
    _, exported, inputs = record(Encoder(), "Encoder")
    shapes = [tuple(value.shape) for value in exported.inputs_of(1, inputs)]
    assert shapes == [(SAMPLES, 10, 16), (SAMPLES, 10)]  # the activation, and the mask as the model was given it
    modules, exported, inputs = record(UNet(), "UNet")
    joins = [index for index, module in enumerate(modules) if "join" in module.name]
    assert joins and all(len(exported.module(index).input_names) == 2 for index in joins)


@pytest.mark.parametrize("name", MODELS)
def test_a_recording_leaves_no_trace(name: str):
    torch.manual_seed(0)
    model = random_statistics(MODELS[name]())
    model.train()
    next(model.children()).eval()
    inputs = RootInputs(*call_of(name), SAMPLES)
    modules = partition(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    identities = {key: id(value) for key, value in [*model.named_parameters(), *model.named_buffers()]}
    flags = {key: (module.training, sorted(module.__dict__)) for key, module in model.named_modules()}
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    states = (torch.get_rng_state(), random.getstate())
    torch.set_default_dtype(torch.float64)
    try:
        record_calls(model, inputs)
        exported = export_model(model, modules, inputs)
        exported.run(0, exported.inputs_of(0, inputs))
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    assert torch.backends.mha.get_fastpath_enabled()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert identities == {key: id(value) for key, value in [*model.named_parameters(), *model.named_buffers()]}
    assert flags == {key: (module.training, sorted(module.__dict__)) for key, module in model.named_modules()}
    assert hooks == [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_a_recording_does_not_touch_compiled_code():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = ResNet()
    compiled = torch.compile(model, backend="eager")
    images = torch.randn(12, 3, 16, 16)
    compiled(images).sum().backward()
    counted = {key: dict(value) for key, value in torch._dynamo.utils.counters.items()}
    inputs = RootInputs((images,), {}, SAMPLES)
    exported = export_model(model, partition(model, None, record_calls(model, inputs)), inputs)
    exported.run(1, exported.inputs_of(1, inputs))
    compiled(images).sum().backward()
    assert counted == {key: dict(value) for key, value in torch._dynamo.utils.counters.items()}


def test_a_submodule_that_is_compiled_inside_the_model_is_recorded_as_it_is_written():
    torch.manual_seed(0)
    model = ResNet()
    model.layer1.compile(backend="eager")
    model.layer2 = torch.compile(model.layer2, backend="eager")
    images = torch.randn(12, 3, 16, 16)
    model(images)
    inputs = RootInputs((images,), {}, SAMPLES)
    modules = partition(model, [["conv1", "bn1"], "layer1", "layer2", "fc"])
    exported = export_model(model, modules, inputs)
    with undisturbed(model):
        wanted = model.layer1(model.relu(model.bn1(model.conv1(images[:SAMPLES]))))
    assert torch.equal(exported.run(1, exported.inputs_of(1, inputs)), wanted)


def test_sizes_that_vary_are_dynamic_on_request():
    torch.manual_seed(0)
    model = Gpt()
    modules, exported, _ = record(model, "Gpt", dynamic=[(0, 1), (1, 1)])
    other = RootInputs(*call_of("Gpt", samples=9, length=23), SAMPLES)
    wanted = outputs_of_units(model, modules, other)
    for index in range(len(modules)):
        values = exported.inputs_of(index, other)
        output = exported.run(index, values)
        assert output.shape[:2] == (SAMPLES, 23)
        assert torch.equal(on_the_controller(exported, index, values, output), output)
    assert torch.equal(output, wanted[-1][-1])


def test_other_sizes_types_and_ways_to_call_are_told_apart():
    _, exported, inputs = record(Gpt(), "Gpt")
    for args, kwargs in [
        call_of("Gpt", length=11),
        (call_of("Gpt")[0], {}),
        ((inputs.tensors()[0].float(),), {"targets": inputs.tensors()[1]}),
    ]:
        with pytest.raises(ShapeMismatch):
            exported.inputs_of(1, RootInputs(args, kwargs, SAMPLES))
    with pytest.raises(ShapeMismatch):
        exported.inputs_of(1, RootInputs(*call_of("Gpt", samples=5), SAMPLES))


def test_what_cannot_be_recorded_says_why():
    with pytest.raises(GraphError, match="torch.export: .*data-dependent"):
        record(Branches(), "Branches")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    odd = RootInputs((torch.randn(4, 4), object()), {}, 2)
    with pytest.raises(GraphError, match="takes a object"):
        export_model(model, partition(model), odd)
    with pytest.raises(GraphError, match="without a tensor"):
        RootInputs((3,), {}, 2)


def test_one_layer_module_that_cannot_be_sent_does_not_spoil_the_others():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third, self.fourth, self.head = (nn.Linear(8, 8) for _ in range(5))
            self.register_buffer("mask", torch.full((8,), float("-inf")))

        def forward(self, x: Tensor) -> Tensor:
            x = self.third(torch.maximum(self.second(self.first(x)), self.mask))
            x = self.fourth(torch.dropout(x, 0.5, train=True))
            return self.head(x)

    model = Odd()
    inputs = RootInputs((torch.randn(8, 8),), {}, SAMPLES)
    exported = export_model(model, partition(model, ["first", "second", "third", "fourth", "head"]), inputs)
    errors = [exported.module(index).error for index in range(5)]
    assert errors[0] is None and errors[2] is None
    assert "'mask' has elements that are infinite" in errors[1]
    # Modules behind a random operator are not recorded either: its inputs could not be computed unnoticed.
    assert all("native_dropout draws random numbers" in error for error in errors[3:])


def test_autocast_inside_a_model_is_recorded_as_it_is():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                x = self.first(x)
            with torch.autocast("cpu", enabled=False):
                x = self.second(x.float())
            return self.head(x)

    torch.manual_seed(0)
    model = Mixed()
    inputs = RootInputs((torch.randn(8, 8),), {}, SAMPLES)
    modules = partition(model, ["first", "second", "head"])
    exported = export_model(model, modules, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        values = exported.inputs_of(1, inputs)
        output = exported.run(1, values)
    assert torch.equal(output, outputs_of_units(model, modules, inputs)[1][0])
    assert torch.equal(on_the_controller(exported, 1, values, output), output)


def test_layer_modules_out_of_order_are_refused():
    model = ResNet()
    inputs = RootInputs(*call_of("ResNet"), SAMPLES)
    with pytest.raises(GraphError, match="list them in forward order"):
        export_model(model, partition(model, ["layer1", ["conv1", "bn1"], "layer2", "fc"]), inputs)


def test_an_embedding_that_is_used_again_later_belongs_to_the_first_use():
    class Pair(nn.Module):
        """The shape of an encoder-decoder: two stacks, interleaved lists, one embedding for both."""

        def __init__(self) -> None:
            super().__init__()
            self.decode = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
            self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
            self.encode = nn.Linear(8, 8)
            self.shared = nn.Embedding(20, 8)
            self.head = nn.Linear(8, 20)

        def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
            memory = self.encode(self.shared(ids))
            x = self.shared(targets)
            for layer, norm in zip(self.decode, self.norms):
                x = norm(torch.relu(layer(x)) + memory)
            return self.head(x)

    torch.manual_seed(0)
    model = Pair()
    ids = torch.randint(0, 20, (12, 5))
    inputs = RootInputs((ids, ids.flip(1)), {}, SAMPLES)
    modules = partition(model, None, record_calls(model, inputs))
    assert [module.unit_names for module in modules] == [
        ("shared",),
        ("encode",),
        ("decode.0", "norms.0"),
        ("decode.1", "norms.1"),
        ("head",),
    ]
    exported = export_model(model, modules, inputs)
    wanted = outputs_of_units(model, modules, inputs)
    assert torch.equal(exported.run(0, exported.inputs_of(0, inputs)), wanted[0][0])
    for index in range(1, 5):
        assert torch.equal(exported.run(index, exported.inputs_of(index, inputs)), wanted[index][-1])


def test_inputs_are_copies_of_the_first_samples():
    images, table = torch.randn(12, 3), torch.randn(5, 3)
    inputs = RootInputs((images, [table, 3]), {"scale": torch.tensor(2.0), "more": images}, 4)
    assert inputs.batch == 12 and inputs.shapes() == ((4, 3), (5, 3), (4, 3), ())
    kept = images[:4].clone()
    images.zero_()
    assert torch.equal(inputs.tensors()[0], kept)
    assert inputs.narrowed(2).shapes() == ((2, 3), (5, 3), (2, 3), ())
    assert inputs.call(lambda *args, **kwargs: (len(args), sorted(kwargs), args[1][1])) == (2, ["more", "scale"], 3)
