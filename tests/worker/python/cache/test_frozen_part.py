"""The part that a script has frozen is found, as deep as may be, and weights are the plain script's, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from skipped_models import IMAGES, LABELS, MASK, TOKENS, UNet, images, square, vectors
from skipping_runs import DictStore, Step, counters_of, epochs
from torch import Tensor, nn

import egeria
from egeria.cache.frozen_part import Part, PartSearch, resting
from egeria.cache.gate import CacheGate
from egeria.cache.model_call import Call
from egeria.cache.refused import Refused
from egeria.cache.repeated_samples import Repeats
from egeria.cache.skipper import Skipper
from egeria.model.isolation import device_of

Change = Callable[[int, nn.Module], None]


class Searched:
    """A source of parts as a training's Caching is one, with a store in memory."""

    def __init__(self, model: nn.Module, store: DictStore):
        self.told: list[str] = []
        self.cut: list[str] = []
        self._model = model
        self._store = store

    def deepest(self, call: Call) -> Part:
        self._search = PartSearch(self._model, call, self.told.append)
        return self._search.deepest()

    def shallower(self, error: Refused) -> Part | None:
        return self._search.shallower(error)

    def open(self, part: Part, form: bytes) -> DictStore:
        self.cut = list(part.frozen[0].unit_names)
        return self._store

    def shallower_prefixes(self):
        return ()

    def drop(self, prefix):
        raise AssertionError("there is none")


class Result:
    """A script of a user's ends with this."""

    def __init__(self, model: nn.Module, losses: list[float], skipper: Skipper | None, source: Searched | None):
        self.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.losses = losses
        self.random = torch.get_rng_state()
        self.skipped = counters_of(skipper)["passes_skipped"] if skipper is not None else 0
        self.refusal = skipper.refusal.name if skipper is not None and skipper.refusal is not None else None
        self.told = source.told if source is not None else []
        self.cut = source.cut if source is not None else []


def script(
    build: Callable[[], nn.Module],
    freeze: Callable[[nn.Module], None],
    steps: Sequence[Step],
    loss_of: Callable[[Any], Tensor] = square,
    *,
    cached: bool,
    before_step: Change = lambda number, model: None,
    warm: bool = False,
) -> Result:
    """A script that freezes by itself and trains the rest. `warm`: there was a pass before; some libraries set
    attributes in the first one."""
    torch.manual_seed(0)
    model = build().train()
    freeze(model)
    if warm:
        with torch.no_grad():
            model(*steps[0][1], **steps[0][2])
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    at_hand: list[list[int] | None] = [None]
    source = Searched(model, DictStore()) if cached else None
    skipper = None
    if source is not None:
        skipper = Skipper(
            model,
            source,
            take_ids=lambda batch: at_hand[0],
            upcoming=list,
            gate=CacheGate(device_of(model), Repeats(), always=True),
            own_forward_only=False,
            tell=lambda what, error: None,
        )
        skipper.gate.ledger.skippable = 65  # nothing is audited, so that mistakes show
    losses = []
    torch.manual_seed(1)
    for number, (ids, args, kwargs) in enumerate(steps):
        before_step(number, model)
        at_hand[0] = ids
        loss = loss_of(model(*args, **kwargs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if skipper is not None:
        skipper.close()
    return Result(model, losses, skipper, source)


def both(
    build: Callable[[], nn.Module], freeze: Callable[[nn.Module], None], steps: Any, *rest: Any, **more: Any
) -> Result:
    """Runs the script with the cache and without, and expects the same of both."""
    cached = script(build, freeze, steps, *rest, cached=True, **more)
    plain = script(build, freeze, steps, *rest, cached=False, **more)
    assert cached.losses == plain.losses and torch.equal(cached.random, plain.random)
    assert all(torch.equal(value, plain.weights[name]) for name, value in cached.weights.items())
    return cached


def still(*names: str, evaluate: bool = True) -> Callable[[nn.Module], None]:
    def freeze(model: nn.Module) -> None:
        for name in names:
            module = model.get_submodule(name).requires_grad_(False)
            if evaluate:
                module.eval()

    return freeze


class Trunk(nn.Module):
    """Three convolutions with what mostly comes with them, and a head."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        blocks = [
            nn.Sequential(nn.Conv2d(inputs, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(dropout))
            for inputs in (3, 8, 8)
        ]
        self.features = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.flatten(self.pool(self.features(x))))


STEPS = epochs(22, 8, 4, images)


def test_a_trunk_is_kept_behind_its_pooling():
    result = both(Trunk, still("features"), STEPS)
    assert result.refusal is None and result.skipped >= 6
    assert result.cut == ["features", "pool", "flatten"], "what is small crosses"


def test_the_cut_is_in_the_middle_of_a_layer_module():
    result = both(Trunk, still("features.0", "features.1"), STEPS)
    assert result.skipped >= 6 and result.cut == ["features.0", "features.1"]


def test_layers_that_do_not_train_behind_one_that_does_are_no_matter():
    result = both(Trunk, still("features.1", "features.2"), STEPS)
    assert result.refusal == "NEEDS_GRADIENT" and result.skipped == 0


@pytest.mark.parametrize("where", ["features", "features.2"])
def test_batch_norm_in_training_mode_ends_the_part_and_is_named(where: str):
    def freeze(model: nn.Module) -> None:
        still("features")(model)
        model.get_submodule(where).train()

    result = both(Trunk, freeze, STEPS)
    wanted = {"features": "features.0.1", "features.2": "features.2.1"}[where]
    assert len(result.told) == 1 and f"'{wanted}'" in result.told[0] and "BATCH_DEPENDENT" in result.told[0]
    assert ".eval()" in result.told[0] and "pin_frozen_modes" in result.told[0]
    assert result.cut[-1] == {"features": "features.0.0", "features.2": "features.2.0"}[where]


def test_dropout_in_training_mode_ends_the_part_and_is_named():
    def freeze(model: nn.Module) -> None:
        still("features")(model)
        model.features[1][3].train()

    result = both(lambda: Trunk(0.5), freeze, STEPS)
    assert len(result.told) == 1 and "'features.1.3'" in result.told[0] and "RANDOM" in result.told[0]
    assert result.skipped >= 6 and result.cut == ["features.0", "features.1.0", "features.1.1", "features.1.2"]


def test_dropout_before_the_head_is_nothing_to_speak_of():
    class Dropping(Trunk):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.drop(self.flatten(self.pool(self.features(x)))))

    result = both(Dropping, still("features"), STEPS)
    assert result.told == [] and result.skipped >= 6 and result.cut[-1] == "flatten"


def test_random_numbers_between_the_layers_end_the_part():
    class Noisy(Trunk):
        def forward(self, x: Tensor) -> Tensor:
            x = self.features[0](x)
            return self.head(self.flatten(self.pool(self.features[2](self.features[1](x + torch.rand(()))))))

    result = both(Noisy, still("features"), STEPS)
    assert result.skipped >= 6 and result.cut == ["features.0"]


def test_modes_of_what_does_not_train_are_held_where_that_is_asked_for():
    """A training ends as one of a script that calls eval() itself."""

    def train(pins: bool) -> nn.Module:
        torch.manual_seed(0)
        model = Trunk(0.5).train()
        still("features", evaluate=not pins)(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        config = egeria.Config(controller="none", policy="none", cache="none", pin_frozen_modes=pins)
        with egeria.attach(model, optimizer, modules=["features", "head"], config=config) as session:
            for _, args, _ in STEPS:
                model.train()
                if not pins:
                    model.features.eval()
                square(model(*args)).backward()
                optimizer.step()
                optimizer.zero_grad()
            assert session.summary()["frozen_by_script"] == 1 and "frozen 1/2, by the script" in session.progress()
            if pins:
                model.eval()
                model.train()
                assert not any(module.training for module in model.features.modules())
        assert model.features.training == pins, "the session leaves what the script asked for"
        return model

    one, other = train(pins=True), train(pins=False)
    assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def test_a_hook_ends_the_part_and_sees_what_it_saw():
    seen: list[float] = []

    def freeze(model: nn.Module) -> None:
        still("features")(model)
        model.features[1].register_forward_hook(lambda module, args, out: seen.append(float(out.sum())))
        model.features[1].register_forward_pre_hook(lambda module, args: seen.append(float(args[0].sum())))

    result = both(Trunk, freeze, STEPS)
    assert result.skipped >= 6 and result.cut == ["features.0"]
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :] and len(seen) == 4 * len(STEPS)


def test_a_hook_on_the_first_layer_is_refused():
    def freeze(model: nn.Module) -> None:
        still("features")(model)
        model.features.register_forward_hook(lambda module, args, out: None)

    assert both(Trunk, freeze, STEPS).refusal == "HOOKED"


class Nested(nn.Module):
    """A container, which may have hooks, behind a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 3, 1)
        self.trunk = Trunk()

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(self.stem(x))


def test_a_hook_of_a_container_around_the_part_sees_what_it_saw():
    """The container trains in its last layer; what comes into it is what a layer before it has made."""
    seen: list[float] = []

    def freeze(model: nn.Module) -> None:
        still("stem", "trunk.features")(model)
        model.trunk.register_forward_pre_hook(lambda module, args: seen.append(float(args[0].sum())))

    result = both(Nested, freeze, STEPS)
    assert result.skipped >= 6 and result.cut == ["stem"]
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


def test_a_hook_of_a_container_that_comes_later_sees_what_it_saw():
    seen: list[float] = []

    def watch(number: int, model: nn.Module) -> None:
        if number == 7:
            model.trunk.register_forward_pre_hook(lambda module, args: seen.append(float(args[0].sum())))

    result = both(Nested, still("stem", "trunk.features"), STEPS, before_step=watch)
    assert result.skipped > 0 and result.cut[:2] == ["stem", "trunk.features"]
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :] and len(seen) == 2 * (len(STEPS) - 7)


@pytest.mark.parametrize("through_data", [False, True])
def test_a_frozen_weight_that_the_script_changes_is_seen(through_data: bool):
    def change(number: int, model: nn.Module) -> None:
        if number == 7:
            weight = model.features[0][0].weight
            with torch.no_grad():
                (weight.data if through_data else weight).mul_(1.5)

    result = both(Trunk, still("features"), STEPS, before_step=change)
    assert result.refusal == "WEIGHTS_CHANGED" and result.skipped > 0


def test_a_parameter_that_trains_again_is_seen_at_once():
    """The optimizer has it; without its gradient it would stay."""

    def build() -> nn.Module:
        return Trunk()

    def freeze(model: nn.Module) -> None:
        still("features")(model)
        model.toggled = [model.features[0][0].weight]

    def change(number: int, model: nn.Module) -> None:
        if number in (6, 9):
            model.features.requires_grad_(number == 6)
        if number == 9:
            model.features[0][0].weight.grad = None

    def loss_of(output: Tensor) -> Tensor:
        return square(output)

    cached = script(build, freeze, STEPS, loss_of, cached=True, before_step=change)
    plain = script(build, freeze, STEPS, loss_of, cached=False, before_step=change)
    assert cached.losses == plain.losses and cached.refusal is None and cached.skipped > 3


class TwoBranches(nn.Module):
    """One trunk for two inputs, in one pass."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.trunk = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(torch.cat([self.trunk(x), self.trunk(x.flip(1))], 1))


def test_a_trunk_that_is_called_twice_ends_the_part():
    steps = epochs(22, 8, 6, vectors)
    assert both(TwoBranches, still("trunk", "stem"), steps).cut == ["stem"]
    assert both(TwoBranches, still("trunk"), steps).refusal == "NEEDS_GRADIENT"


def test_two_heads_on_one_trunk():
    class TwoHeads(TwoBranches):
        def __init__(self) -> None:
            super().__init__()
            self.second = nn.Linear(8, 3)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.trunk(self.stem(x))
            return self.head(x) + self.second(x)

    result = both(TwoHeads, still("trunk", "stem"), epochs(16, 8, 6, vectors))
    assert result.skipped >= 6 and result.cut == ["stem", "trunk"]


class Adapted(nn.Module):
    """A frozen Linear with a low-rank adapter, as peft puts it into a layer."""

    def __init__(self, base_layer: nn.Linear):
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.Linear(base_layer.in_features, 2, bias=False)
        self.lora_B = nn.Linear(2, base_layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Adapting(nn.Module):
    """Layers of a transformer, of which the later ones have adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.layers = nn.ModuleList([Residual() for _ in range(4)])
        for layer in self.layers[2:]:
            layer.inner[1] = Adapted(layer.inner[1])
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_adapters_inside_frozen_layers_end_the_part_where_the_first_one_acts():
    def freeze(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora" in name or "head" in name)

    result = both(Adapting, freeze, epochs(16, 8, 6, vectors))
    assert result.refusal is None and result.skipped >= 6
    assert result.cut[:3] == ["embed", "layers.0", "layers.1"] and not any("layers.3" in name for name in result.cut)


def test_a_prompt_that_trains_in_front_of_all_leaves_nothing():
    class Prompted(TwoBranches):
        def __init__(self) -> None:
            super().__init__()
            self.prompt = nn.Parameter(torch.randn(8))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.trunk(self.stem(x + self.prompt)).repeat(1, 2))

    result = both(Prompted, still("trunk", "stem"), epochs(22, 8, 6, vectors))
    assert result.refusal == "NEEDS_GRADIENT" and result.skipped == 0


def test_a_detach_behind_what_trains_is_no_border():
    """The layers behind it have no gradient, and their output changes all the same."""

    class Detached(TwoBranches):
        def forward(self, x: Tensor) -> Tensor:
            first = self.stem(x)
            return self.head(torch.cat([self.trunk(first.detach()), first], 1))

    result = both(Detached, still("trunk"), epochs(22, 8, 6, vectors))
    assert result.refusal == "NEEDS_GRADIENT" and result.skipped == 0


def test_a_detach_between_frozen_layers_and_those_that_train():
    class Detached(TwoBranches):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.trunk(self.stem(x))
            return self.head(x.detach().repeat(1, 2))

    result = both(Detached, still("stem", "trunk"), epochs(16, 8, 6, vectors))
    assert result.skipped >= 6 and result.cut == ["stem", "trunk"]


def test_a_setting_of_a_layer_between_two_kept_ones_counts():
    """It is called twice, so that it is not skipped itself, and what comes behind it depends on it."""

    class Scale(nn.Module):
        factor = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    class Scaled(TwoBranches):
        def __init__(self) -> None:
            super().__init__()
            self.scale = Scale()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.trunk(self.scale(self.stem(self.scale(x)))).repeat(1, 2))

    def change(number: int, model: nn.Module) -> None:
        if number == 7:
            model.scale.factor = 3.0

    result = both(Scaled, still("stem", "trunk"), epochs(16, 8, 6, vectors), before_step=change)
    assert result.refusal == "SETTING_CHANGED" and result.skipped > 0


def test_the_outermost_cut_of_a_u_net_is_found():
    result = both(UNet, still("down1", "down2", "down3"), STEPS)
    assert result.skipped >= 6 and result.cut == ["down1"]


def test_a_mode_that_the_script_changes_is_another_shape():
    def change(number: int, model: nn.Module) -> None:
        if number in (6, 9):
            model.features[1][3].train(number == 6)

    result = both(lambda: Trunk(0.5), still("features"), STEPS, before_step=change)
    assert result.refusal is None and result.skipped > 3


def test_every_process_finds_the_same():
    def part() -> Part:
        torch.manual_seed(0)
        model = Trunk(0.5).train()
        still("features")(model)
        model.features[2][3].train()
        return PartSearch(model, Call((IMAGES[:8],), {}, 8), lambda text: None).deepest()

    assert part().frozen[0].unit_names == part().frozen[0].unit_names
    assert part().fingerprint.text == part().fingerprint.text


def test_nothing_that_trains_rests():
    model = Trunk()
    assert resting(model) == []
    model.features[1].requires_grad_(False)
    model.features[0][1].requires_grad_(False)
    assert resting(model) == [model.features[0][1], model.features[1]]


transformers = pytest.importorskip("transformers")


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=200, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64
    )
    return transformers.BertForSequenceClassification(config)


def sentences(ids: list[int]) -> Any:
    return (), dict(input_ids=TOKENS[ids], attention_mask=MASK[ids], labels=LABELS[ids])


def test_the_encoder_of_a_text_model():
    result = both(bert, still("bert"), epochs(22, 8, 4, sentences), lambda output: output.loss, warm=True)
    assert result.skipped >= 6 and result.cut[0] == "bert"


def test_the_encoder_of_a_text_model_in_training_mode_names_its_dropout():
    result = both(
        bert, still("bert", evaluate=False), epochs(22, 8, 4, sentences), lambda output: output.loss, warm=True
    )
    assert len(result.told) == 1 and "'bert.embeddings.dropout'" in result.told[0]


def test_adapters_of_peft():
    """They are in the last two of four layers."""
    peft = pytest.importorskip("peft")

    def build() -> nn.Module:
        config = peft.LoraConfig(
            task_type="SEQ_CLS", r=2, target_modules=["query", "value"], layers_to_transform=[2, 3], lora_dropout=0.0
        )
        model = peft.get_peft_model(bert(), config)
        for name, module in model.named_modules():
            if "dropout" in name:
                module.p = 0.0
        return model

    result = both(build, lambda model: None, epochs(22, 8, 4, sentences), lambda output: output.loss, warm=True)
    assert result.refusal is None and result.skipped >= 6
    names = [name.removeprefix("base_model.model.bert.") for name in result.cut]
    assert names[:3] == ["embeddings", "encoder.layer.0", "encoder.layer.1"]


def test_half_of_the_encoder_of_a_text_model():
    names = "bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1"
    result = both(bert, still(*names), epochs(22, 8, 4, sentences), lambda output: output.loss, warm=True)
    assert result.skipped >= 6 and result.cut[:3] == list(names)
