"""Trainings whose frozen layers are skipped end with the bits of those whose are not."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layered_models import Layered
from skipped_models import IMAGES, RESNET_LAYERS, Masked, ThreeLayers, images, resnet, square, vectors
from skipping_runs import DictStore, Run, counters_of, epochs, skipper_of, train
from torch import Tensor, nn

from egeria.cache.prefix_cut import Cut
from egeria.cache.repeated_samples import Repeats
from egeria.cache.skipper import Skipper
from egeria.freeze.freezer import Freezer
from egeria.model.modules import partition

STEPS = epochs(22, 8, 4, images)


def run(store: Any = None, prefix: int = 3, steps: Any = None, **options: Any) -> Run:
    return train(resnet, RESNET_LAYERS, prefix, STEPS if steps is None else steps, square, store, **options)


@pytest.mark.parametrize("prefix", range(1, len(RESNET_LAYERS)))
def test_resnet_shuffled_with_a_partial_batch(prefix: int) -> None:
    cached = run(DictStore(), prefix, audit=True)
    assert cached.refusal is None
    assert cached.same_as(run(None, prefix))
    # The first epoch and two audits are computed.
    assert cached.counters["passes_skipped"] + cached.counters["audits"] == 9
    assert cached.counters["hits"] > 40


def test_a_training_that_is_resumed_with_a_partial_batch_finds_what_whole_batches_have_stored() -> None:
    store = DictStore()
    run(store, steps=STEPS[:6])  # 8, 8 and 6 samples an epoch
    whole = {id for ids, *_ in STEPS[:6] if len(ids) == 8 for id in ids}
    asked: list[tuple[list[int], list[Any]]] = []

    class Watching(DictStore):
        def find(self, ids: Any, input_hashes: Any) -> Any:
            asked.append((list(ids), super().find(ids, input_hashes)))
            return asked[-1][1]

    watching = Watching()
    watching.rows = store.rows
    resumed = run(watching, steps=STEPS[2:7])
    assert resumed.same_as(run(steps=STEPS[2:7]))
    ids, found = next((ids, found) for ids, found in reversed(asked) if len(ids) == 8)
    assert all(row is not None for id, row in zip(ids, found) if id in whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    cached = run(DictStore(), autocast=dtype)
    assert cached.same_as(run(autocast=dtype))
    assert cached.counters["passes_skipped"] >= 6


def test_other_memory_formats() -> None:
    steps = [(ids, (args[0].to(memory_format=torch.channels_last),), {}) for ids, args, _ in STEPS]
    store = DictStore()
    cached = run(store, steps=steps)
    assert cached.same_as(run(steps=steps))
    assert cached.counters["passes_skipped"] >= 6
    stored = len(store.rows)
    run(store)
    assert len(store.rows) > stored  # activations of the other format are not taken


@pytest.mark.parametrize(("forgotten", "alone"), [({0}, {1, 2}), ({0, 2, 4}, {6})])
def test_misses_are_computed_alone(forgotten: set[int], alone: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(DictStore):
        def find(self, ids: Any, input_hashes: Any) -> Any:
            rows = super().find(ids, input_hashes)
            return [None if id % 5 in forgotten else row for id, row in zip(ids, rows)]

    store, sizes, compute = Forgetful(), [], Cut.compute

    def noting(cut: Cut, shadow: Any, call: Any, check: Any = None) -> Any:
        sizes.append(call.batch)
        return compute(cut, shadow, call, check)

    def watch(number: int, model: nn.Module, skipper: Skipper | None) -> None:
        if number == 6 and skipper is not None:
            monkeypatch.setattr(Cut, "compute", noting)

    cached = run(store, each_step=watch)
    assert cached.same_as(run())
    assert cached.counters["passes_skipped"] >= 6
    assert cached.counters["hits"] > 0 and cached.counters["miss_absent"] > 22
    assert alone & set(sizes), "no fewer samples than a batch were ever computed"


def test_a_hook_for_all_modules_sees_what_frozen_layers_give() -> None:
    def watched_by(store: DictStore | None) -> tuple[Any, list[tuple[bool, float]]]:
        seen: list[tuple[bool, float]] = []
        handles: list[Any] = []

        def watch(number: int, model: nn.Module, _: Skipper | None) -> None:
            if number == 6:
                handles.append(
                    nn.modules.module.register_module_forward_hook(
                        lambda module, _, output: seen.append((module is model.layer1, float(output.detach().norm())))
                    )
                )
            if number == 9:
                handles.pop().remove()

        return run(store, each_step=watch), seen

    (cached, seen), (plain, wanted) = watched_by(DictStore()), watched_by(None)
    assert seen == wanted and len(seen) > 0
    assert cached.same_as(plain) and cached.counters["passes_skipped"] > 0
    assert cached.counters["miss_unusual_call"] > 0


def test_a_sample_that_changes_is_a_miss() -> None:
    generator = torch.Generator().manual_seed(3)

    def augmented(ids: list[int]) -> Any:
        return (IMAGES[ids] + 0.1 * torch.randn(len(ids), 3, 16, 16, generator=generator),), {}

    steps = epochs(16, 8, 4, augmented)
    cached = run(DictStore(), steps=steps)
    assert cached.same_as(run(steps=steps))
    assert cached.counters["hits"] == 0


def test_a_model_that_is_not_told_ids_trains_as_usual() -> None:
    steps = [(None, args, kwargs) for _, args, kwargs in STEPS]
    cached = run(DictStore(), steps=steps)
    assert cached.same_as(run())
    assert cached.counters["miss_no_ids"] == len(STEPS)
    assert cached.counters["passes_skipped"] == 0


# In these tests everything that can go wrong does.


def test_without_input_hashes_wrong_activations_would_be_used() -> None:
    """Guards the test of augmented samples: the store alone does not tell samples apart."""

    class ByIdOnly(DictStore):
        def find(self, ids: Any, input_hashes: Any) -> Any:
            return super().find(ids, [0] * len(ids))

        def put(self, ids: Any, input_hashes: Any, tensors: Any) -> None:
            super().put(ids, [0] * len(ids), tensors)

    generator = torch.Generator().manual_seed(3)
    steps = epochs(16, 8, 4, lambda ids: ((IMAGES[ids] + torch.randn(len(ids), 3, 16, 16, generator=generator),), {}))
    assert not run(ByIdOnly(), steps=steps).same_as(run(steps=steps))


def test_shifted_ids_miss() -> None:
    """Ids of other samples come with other inputs, so that nothing wrong is used whatever the loader says."""
    steps = [(ids[number % 2 :] + ids[: number % 2], *inputs) for number, (ids, *inputs) in enumerate(STEPS)]
    cached = run(DictStore(), steps=steps)
    assert cached.same_as(run())


def test_an_audit_finds_a_store_that_mixes_samples_up() -> None:
    class Mixing(DictStore):
        def find(self, ids: Any, input_hashes: Any) -> Any:
            rows = super().find(ids, input_hashes)
            return rows[1:] + rows[:1]

    cached = run(Mixing(), audit=True)
    assert cached.refusal == "STORE_DIFFERS"
    assert cached.same_as(run())


@pytest.mark.parametrize(
    "spoil", [lambda row: (row[0][:-1],), lambda row: (row[0].double(),), lambda row: (), lambda row: (*row, *row)]
)
def test_activations_that_do_not_fit_are_misses(spoil: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]) -> None:
    class Spoiled(DictStore):
        def find(self, ids: Any, input_hashes: Any) -> Any:
            return [None if row is None else spoil(row) for row in super().find(ids, input_hashes)]

    cached = run(Spoiled())
    assert cached.same_as(run())
    assert cached.counters["miss_unfit"] > 0 and cached.counters["hits"] == 0


def test_whether_samples_repeat() -> None:
    steps = epochs(64, 8, 2, lambda ids: ((torch.tensor(ids).float()[:, None],), {}))
    repeats = Repeats()
    for ids, args, kwargs in steps[:8]:
        repeats.note(args, kwargs, ids)
    assert repeats.known is None
    for ids, args, kwargs in steps[8:]:
        repeats.note(args, kwargs, ids)
    assert repeats.known is True
    random = Repeats()
    for ids, args, kwargs in steps:
        random.note((args[0] + torch.rand(len(ids), 1),), kwargs, ids)
    assert random.known is False
    for _ in range(2):  # augmentation has ended
        assert random.known is False
        for ids, args, kwargs in steps[8:]:
            random.note(args, kwargs, ids)
    assert random.known is True


@pytest.mark.parametrize(("share", "known"), [(0.15, False), (0.4, True)])
def test_samples_repeat_where_a_part_comes_as_it_was(share: float, known: bool) -> None:
    """Such as with padding to the longest sample of a batch."""
    repeats = Repeats()
    for epoch in range(2):
        for first in range(0, 256, 8):
            ids = list(range(first, first + 8))
            rows = torch.tensor([[float(id), epoch * (id % 20 >= 20 * share)] for id in ids])
            repeats.note((rows,), {}, ids)
    assert repeats.known is known


# Failures.


@pytest.mark.parametrize("method", ["get", "put"])
def test_a_store_that_raises_is_left_alone_after_three_failures(method: str) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no space left")

    store = DictStore()
    setattr(store, method, fail)
    told = []
    steps = epochs(16, 8, 4, images)
    cached = run(
        store,
        steps=steps,
        each_step=lambda number, _, skipper: (
            number or skipper is None or setattr(skipper, "_tell", lambda what, error: told.append(str(error)))
        ),
    )
    assert cached.same_as(run(steps=steps))
    assert cached.counters["failures"] == 3 and cached.refusal == "FAILED"
    assert len(told) == 1 and "no space left" in told[0]


def expect_ended(name: str, change: Callable[[int, nn.Module, Skipper | None], None]) -> None:
    """By a change that somebody makes before a step, after which nothing is skipped, and nothing wrong was used."""
    cached = run(DictStore(), each_step=change)
    assert cached.refusal == name
    assert cached.same_as(run(each_step=change))
    assert cached.counters["passes_skipped"] > 0


def test_changed_weights_end_it() -> None:
    def change(number: int, model: nn.Module, _: Skipper | None) -> None:
        if number == 8:
            with torch.no_grad():
                model.layer1[0].conv1.weight.mul_(1.5)

    expect_ended("WEIGHTS_CHANGED", change)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_weights_that_are_changed_behind_the_back_of_torch_end_it(name: str) -> None:
    def change(number: int, model: nn.Module, _: Skipper | None) -> None:
        if number == 8:
            parameter = getattr(model.layer1[0].bn1, name)
            version = parameter._version
            parameter.data.add_(0.5)
            assert parameter._version == version

    expect_ended("WEIGHTS_CHANGED", change)


def test_a_changed_attribute_ends_it() -> None:
    def change(number: int, model: nn.Module, _: Skipper | None) -> None:
        if number == 8:
            model.layer1[0].bn1.eps = 0.1

    expect_ended("SETTING_CHANGED", change)


@pytest.mark.parametrize("name,value", [("running_mean", 1.0), ("running_var", 2.0)])
def test_changed_buffers_end_it_but_not_those_that_are_written_to(name: str, value: float) -> None:
    def change(number: int, model: nn.Module, _: Skipper | None) -> None:
        buffer = getattr(model.layer1[0].bn1, name)
        buffer.copy_(buffer.clone())  # as DistributedDataParallel does before each pass
        if number == 9:
            buffer.fill_(value)

    expect_ended("WEIGHTS_CHANGED", change)


def test_settings_that_change_are_another_shape_of_call() -> None:
    """A container of frozen layers that goes into another mode, autocast that begins."""

    def change(number: int, model: nn.Module, _: Skipper | None) -> None:
        model.layer3.train(number % 4 < 2)

    cached = run(DictStore(), each_step=change)
    assert cached.same_as(run(each_step=change))
    assert cached.counters["passes_skipped"] > 0


def test_a_regular_batch_does_not_hide_roundings() -> None:
    """Zeros sum to the same in any order; the single row that is missing later does not."""
    rows = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    rows[:6] = 0
    steps = [(ids, (rows[ids],), {}) for ids in ([0, 1, 2, 3, 4, 5], *([0, 1, 2, 3, 4, i] for i in range(6, 20)))]
    plain = train(ThreeLayers, ["a", "b", "c"], 1, steps, square)
    assert train(ThreeLayers, ["a", "b", "c"], 1, steps, square, DictStore()).same_as(plain)


def test_a_sample_is_computed_otherwise_in_other_company() -> None:
    """A model that asks whether a whole batch is free of padding rounds otherwise then."""
    mask = torch.ones(24, 8, dtype=torch.long)
    mask[:4, 5:] = 0
    rows = torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
    steps = epochs(24, 4, 8, lambda ids: ((rows[ids], mask[ids]), {}))
    cached = train(Masked, ["a", "c"], 1, steps, square, DictStore())
    assert cached.refusal is None
    assert cached.same_as(train(Masked, ["a", "c"], 1, steps, square))
    assert cached.counters["passes_skipped"] > 20


# Nothing stays on the model.


def frozen_resnet(prefix: int = 3) -> tuple[nn.Module, Skipper, DictStore, list[Any]]:
    torch.manual_seed(0)
    model = resnet().train()
    layers = partition(model, RESNET_LAYERS)
    Freezer(layers, []).apply(prefix)
    store, at_hand = DictStore(), [list(range(8))]
    skipper = skipper_of(model, layers, prefix, store, lambda batch: at_hand[0])
    skipper.gate.ledger.skippable = 65
    return model, skipper, store, at_hand


def replaced(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if "forward" in module.__dict__]


def test_nothing_is_replaced_between_passes() -> None:
    model, skipper, _, _ = frozen_resnet()
    during = []
    model.fc.register_forward_pre_hook(lambda module, args: during.append(replaced(model)))
    for _ in range(3):
        model(IMAGES[:8])
        assert replaced(model) == []
    assert counters_of(skipper)["passes_skipped"] == 2 and during[-1]
    skipper.close()
    model(IMAGES[:8])
    assert during[-1] == []
    assert not model._forward_hooks


def test_copies_and_pickles_of_a_model_that_is_about_to_skip_are_whole() -> None:
    model, skipper, _, _ = frozen_resnet()
    model(IMAGES[:8])
    wanted = copy.deepcopy(model).eval()(IMAGES[:4])
    original = model.stem.forward
    skipper.before_forward((IMAGES[:8],), {}, list(range(8)))
    assert replaced(model) == ["stem", "layer1", "layer2"]
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        assert torch.equal(other.eval()(IMAGES[:4]), wanted)
        assert other.stem.forward.__self__ is other.stem
    skipper.disarm()
    assert replaced(model) == [] and model.stem.forward == original


def test_state_dict_and_random_states_know_nothing_of_it() -> None:
    model, skipper, _, _ = frozen_resnet()
    keys, random = list(model.state_dict()), torch.get_rng_state()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    skipper.before_forward((IMAGES[:8],), {}, list(range(8)))  # the proof
    assert skipper.refusal is None
    assert list(model.state_dict()) == keys
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_pass_that_is_broken_off_leaves_nothing_to_the_next(error: type[BaseException]) -> None:
    model, skipper, _, at_hand = frozen_resnet()
    for _ in range(2):
        model(IMAGES[:8])
    at_hand[0] = list(range(8))

    def fail(*_: Any) -> None:
        raise error

    handle = model.stem[0].register_forward_pre_hook(fail)
    stem = model.stem.register_forward_pre_hook(fail)  # before the first stand-in returns
    with pytest.raises(error):
        model(IMAGES[:8])
    handle.remove()
    stem.remove()
    with torch.no_grad():
        wanted = copy.deepcopy(model).eval()(IMAGES[8:16])
        assert torch.equal(model.eval()(IMAGES[8:16]), wanted)
    model.train()
    skipped = counters_of(skipper)["passes_skipped"]
    model(IMAGES[:8])
    assert counters_of(skipper)["passes_skipped"] >= skipped and skipper.refusal is None


def test_validation_and_passes_without_gradients_are_computed() -> None:
    model, skipper, _, _ = frozen_resnet()
    for _ in range(2):
        model(IMAGES[:8])
    passes = counters_of(skipper)["passes"]
    with torch.no_grad():
        model(IMAGES[:8])
    model.eval()
    model(IMAGES[:8])
    assert counters_of(skipper)["passes"] == passes
    model.train()
    model(IMAGES[:8])
    assert counters_of(skipper)["passes"] == passes + 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers(reentrant: bool) -> None:
    steps = epochs(22, 8, 4, vectors)
    layers = ["stem", *(rf"blocks\.{number}" for number in range(4)), "head"]

    def build() -> nn.Module:
        return Layered(dropout=0.1, reentrant=reentrant)

    for prefix in (1, 3):
        cached = train(build, layers, prefix, steps, square, DictStore())
        assert cached.same_as(train(build, layers, prefix, steps, square))
        assert cached.counters["passes_skipped"] >= 6
