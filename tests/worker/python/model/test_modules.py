"""Where models are cut into layer modules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from egeria.errors import EgeriaError
from egeria.model.modules import LayerModule, embedding_prefix, from_unit_names, partition
from egeria.model.wrappers import unwrap


class Block(nn.Module):
    def __init__(self, inner: int, outer: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3)


class ResNet(nn.Module):
    def __init__(self, blocks: int = 3):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        for stage, width in (("layer1", 16), ("layer2", 32), ("layer3", 64)):
            self.add_module(stage, nn.Sequential(*(Block(width, width) for _ in range(blocks))))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, 10)


class Language(nn.Module):
    """The shape of a small GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(65, 64),
                "wpe": nn.Embedding(64, 64),
                "drop": nn.Dropout(),
                "h": nn.ModuleList(nn.TransformerEncoderLayer(64, 4, batch_first=True) for _ in range(6)),
                "ln_f": nn.LayerNorm(64),
            }
        )
        self.lm_head = nn.Linear(64, 65)


class Vision(nn.Module):
    """Tensors that a container holds itself, and an encoder one level deeper."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 64))
        self.register_buffer("positions", torch.zeros(1, 10, 64), persistent=False)
        self.patch = nn.Conv2d(3, 64, 4)
        layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 10)


def names(modules: list[LayerModule]) -> list[str]:
    return [module.name for module in modules]


def check_complete(model: nn.Module, modules: list[LayerModule]) -> None:
    """Every parameter and buffer is in exactly one layer module, under its own name."""
    parameters = [name for module in modules for name, _ in module.parameters()]
    assert sorted(parameters) == sorted(name for name, _ in model.named_parameters())
    buffers = [name for module in modules for name, _ in module.buffers()]
    assert sorted(buffers) == sorted(name for name, _ in model.named_buffers())
    by_name = dict(model.named_parameters())
    assert all(by_name[name] is value for module in modules for name, value in module.parameters())


def refusal(model: nn.Module, modules: object) -> str:
    with pytest.raises(EgeriaError) as raised:
        partition(model, modules)
    assert raised.value.name == "BAD_PARTITION"
    return str(raised.value)


def test_a_resnet_is_cut_finer_where_it_is_large_and_its_stem_joins_the_first_stage():
    model = ResNet()
    modules = partition(model)
    check_complete(model, modules)
    assert names(modules) == [
        "conv1-layer1.2",
        "layer2.0-layer2.1",
        "layer2.2",
        "layer3.0",
        "layer3.1",
        "layer3.2",
        "fc",
    ]
    assert modules[0].unit_names[:3] == ("conv1", "bn1", "relu")
    assert modules[-2].unit_names == ("layer3.2", "pool")
    assert modules[0].parameter_count() == sum(p.numel() for _, p in modules[0].parameters()) > 0
    assert modules[0].parameter_bytes() == 4 * modules[0].parameter_count()


def test_a_language_models_embeddings_join_the_first_block_and_the_last_norm_the_last_one():
    model = Language()
    modules = partition(model)
    check_complete(model, modules)
    assert names(modules)[0] == "transformer.wte-transformer.h.0"
    assert modules[-2].unit_names == ("transformer.h.5", "transformer.ln_f")
    assert names(modules)[-1] == "lm_head" and len(modules) == 7


def test_tensors_that_a_container_holds_belong_to_its_last_layer_module_until_a_pass_has_shown_more():
    model = Vision()
    modules = partition(model)
    check_complete(model, modules)
    assert [name for name, _ in modules[-1].loose] == ["token", "positions"]
    assert names(modules)[1:] == [*(f"encoder.layers.{i}" for i in range(1, 6)), "head"]


def test_a_backbone_inside_a_model_is_entered():
    model = nn.ModuleDict({"backbone": ResNet(), "head": nn.Linear(10, 2)})
    assert names(partition(model))[:2] == ["backbone.conv1-backbone.layer1.2", "backbone.layer2.0-backbone.layer2.1"]


def test_an_encoder_without_a_head_keeps_its_last_layer_active():
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    modules = partition(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False))
    assert names(modules) == [f"layers.{i}" for i in range(4)]


def test_normalisations_and_activations_stay_with_the_layer_before_them():
    model = nn.Sequential(
        nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 32), nn.Dropout(), nn.Linear(32, 4)
    )
    assert [module.unit_names for module in partition(model)] == [("0", "1", "2"), ("3", "4"), ("5",)]


def test_calls_of_a_forward_pass_replace_the_order_of_definition():
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout()
            self.head = nn.Linear(8, 2)
            self.second = nn.Linear(8, 8)
            self.first = nn.Linear(8, 8)
            self.never = nn.Dropout()

    model = Backwards()
    calls = [model.first, model.drop, model.second, model.drop, model.head]
    modules = partition(model, None, calls)
    assert [module.unit_names for module in modules] == [("first",), ("second", "drop"), ("head", "never")]


def test_a_users_list_may_have_submodules_lists_names_and_patterns():
    model = ResNet()
    modules = partition(model, [[model.conv1, model.bn1], "layer1", r"layer[23]\..*", model.fc])
    check_complete(model, modules)
    assert names(modules) == ["conv1-bn1", "layer1", "layer2.0-layer3.2", "fc"]


def test_a_callable_gets_the_unwrapped_model():
    model = ResNet()
    modules = partition(
        torch.compile(model), lambda net: [[net.conv1, net.bn1, net.layer1], net.layer2, [net.layer3, net.fc]]
    )
    assert names(modules) == ["conv1-layer1", "layer2", "layer3-fc"]


def test_a_pattern_with_a_group_names_the_layer_modules():
    assert names(partition(ResNet(), r"(?:(layer\d)|(conv1|bn1)|(fc))")) == [
        "conv1",
        "bn1",
        "layer1",
        "layer2",
        "layer3",
        "fc",
    ]


def test_what_makes_no_partition_is_refused_with_what_to_do():
    model = ResNet()
    assert "belongs to no layer module" in refusal(model, [model.layer1, model.fc])
    assert "add the submodule" in refusal(model, [model.layer1, model.fc])
    assert "is in the layer modules 'layer1' and 'layer1.0'" in refusal(
        model, ["conv1", "bn1", "layer1", "layer1.0", "layer2", "layer3", "fc"]
    )
    assert "matches no submodule's whole name" in refusal(model, ["nothing"])
    assert "regular expression" in refusal(model, ["("])
    assert "no submodule of the model" in refusal(model, [nn.Linear(2, 2)])
    assert "at least two are needed" in refusal(model, [[child for child in model.children()]])
    assert "give a list" in refusal(model, 3)
    assert "empty" in refusal(model, [[], "fc"])
    assert "can be cut" in refusal(nn.Linear(3, 3), None)


def test_all_wrappers_come_off_in_any_order():
    model = ResNet()
    assert unwrap(model) is model
    assert unwrap(torch.compile(model)) is model
    wrapper = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper.module = torch.compile(model)
    assert unwrap(torch.compile(wrapper)) is model


def test_layer_modules_come_back_from_their_names():
    model = Vision()
    modules = partition(model)
    saved = [(module.name, module.unit_names, [name for name, _ in module.loose]) for module in modules]
    other = copy.deepcopy(model)
    again = from_unit_names(other, saved)
    assert [module.unit_names for module in again] == [module.unit_names for module in modules]
    check_complete(other, again)
    with pytest.raises(EgeriaError, match="CHECKPOINT_MISMATCH.*another model"):
        from_unit_names(ResNet(), saved)


def test_a_parameter_that_is_used_twice_counts_once():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    model[1].weight = model[0].weight
    modules = partition(model, [[model[0], model[1]], model[2]])
    assert [name for name, _ in modules[0].parameters()] == ["0.weight", "0.bias", "1.bias"]


def test_a_parameter_belongs_to_the_last_layer_module_that_has_it():
    model = Language()
    model.lm_head.weight = model.transformer["wte"].weight
    modules = partition(model)
    assert modules[0].elsewhere == {"transformer.wte.weight"} and len(modules[0].parameters()) > 1
    assert "transformer.wte.weight" not in dict(modules[0].parameters()) and modules[-1].parameters()
    assert dict(modules[0].tensors())["transformer.wte.weight"] is dict(modules[-1].parameters())["lm_head.weight"]
    owned = [id(parameter) for module in modules for _, parameter in module.parameters()]
    assert sorted(owned) == sorted(map(id, model.parameters()))
    again = from_unit_names(model, [module.names() for module in modules])
    assert [module.elsewhere for module in again] == [module.elsewhere for module in modules]


def test_a_submodule_with_two_names_belongs_to_the_last_layer_module_that_has_it():
    model = nn.ModuleDict({"shared": nn.Embedding(50, 16), "head": nn.Linear(16, 4)})
    for side in ("encoder", "decoder"):
        layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        model[side] = nn.ModuleDict({"embed": model["shared"], "layers": layers})
    modules = partition(model, ["shared", "encoder", "decoder", "head"])
    assert [len(module.parameters()) for module in modules] == [0, 6, 7, 2]
    calls = [model["shared"], *model["encoder"]["layers"], model["shared"], *model["decoder"]["layers"], model["head"]]
    found = partition(model, None, calls)
    owner = next(module for module in found if any(p is model["shared"].weight for _, p in module.parameters()))
    assert names(found) == ["shared", "decoder.embed", "decoder.layers", "head"], "a table alone is none"
    assert owner is found[1]


def test_front_modules_that_are_lookup_tables_are_known_as_such():
    tables = nn.ModuleDict({"words": nn.Embedding(1_000, 16), "places": nn.Embedding(64, 16), "norm": nn.LayerNorm(16)})
    model = nn.Sequential(tables, nn.Linear(16, 16), nn.Linear(16, 1_000))  # as many as the words have
    assert embedding_prefix(partition(model, [model[0], model[1], model[2]])) == 1
    assert embedding_prefix(partition(model, [[model[0], model[1]], model[2]])) == 0, (
        "mixed with a layer of 272 parameters"
    )
    assert embedding_prefix(partition(nn.Sequential(*model[1:]), ["0", "1"])) == 0
    bags = nn.Sequential(nn.EmbeddingBag(500, 8), nn.Embedding(500, 8))
    assert embedding_prefix(partition(bags, ["0", "1"])) == 1, "not the last one"
    recommender = nn.Sequential(nn.EmbeddingBag(500, 8), nn.Linear(8, 8), nn.Linear(8, 1))
    assert embedding_prefix(partition(recommender, ["0", "1", "2"])) == 0, "its table is what it learns"
