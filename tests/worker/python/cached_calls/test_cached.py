"""Calls that are served give what the network would, to the bit and to the type."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import io
import pickle
import weakref
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from cache_daemon import Daemon
from cached_networks import (
    BATCH,
    SAMPLES,
    ConvNet,
    Pair,
    Structured,
    batches,
    compare,
    conv_net,
    images,
    same,
    server_of,
    wait_until_kept,
)
from layered_models import OtherwiseInSmallBatches
from torch import Tensor, nn
from transformers import BertConfig, BertModel

import egeria
from egeria import EgeriaError
from egeria.cached_calls.recurrence import Recurrence

(IMAGES,) = images()
MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "neither": contextlib.nullcontext}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def by_rows(network: nn.Module, rows: list[int]) -> Any:
    return network(IMAGES[rows])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_images(mode: str, layout: torch.memory_format, patient_cache: Daemon) -> None:
    pictures = IMAGES.to(memory_format=layout)

    def call(network: nn.Module, rows: list[int]) -> Any:
        with MODES[mode]():
            return network(pictures[rows].contiguous(memory_format=layout))

    summary = compare(conv_net(), call, patient_cache.address)
    assert summary["served"] >= 8 and summary["audits"] >= 2, summary


@pytest.mark.parametrize("mode", MODES)
def test_all_kinds_of_results_and_arguments(mode: str, patient_cache: Daemon) -> None:
    weights = torch.randn(len(IMAGES), 5)

    def call(network: nn.Module, rows: list[int]) -> Any:
        with MODES[mode]():
            pictures = IMAGES[rows]
            value = network(pictures, scale=0.5, extra={"weights": weights[rows]})
            assert value["again"] is value["features"].high[1] and value["inputs"] is pictures
            return value

    summary = compare(Structured().eval().requires_grad_(False), call, patient_cache.address)
    assert summary["served"] >= 8, summary


def test_a_network_whose_parameters_require_gradients_is_served_where_none_are_recorded(patient_cache: Daemon) -> None:
    def call(network: nn.Module, rows: list[int]) -> Any:
        with torch.no_grad():
            return network(IMAGES[rows])

    assert compare(ConvNet().eval(), call, patient_cache.address)["served"] >= 8


def bert(attention: str, width: int = 16) -> BertModel:
    sizes = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 2 * width}
    return BertModel._from_config(BertConfig(vocab_size=50, **sizes), attn_implementation=attention).eval()


def read(network: nn.Module, rows: list[int], lengths: list[int], longest: int, padding: int = 0) -> Any:
    mask = torch.tensor([[int(place < lengths[sample]) for place in range(longest)] for sample in rows])
    ids = torch.tensor([[(7 * sample + 3 * place) % 49 + 1 for place in range(longest)] for sample in rows])
    with torch.no_grad():
        return network(input_ids=ids * mask + padding * (1 - mask), attention_mask=mask, output_hidden_states=True)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_text_encoder_with_padding_to_the_longest_of_a_batch(attention: str, patient_cache: Daemon) -> None:
    lengths = [3 + (5 * sample) % 9 for sample in range(16)]

    def call(network: nn.Module, rows: list[int]) -> Any:
        return read(network, rows, lengths, max(lengths[sample] for sample in rows))

    summary = compare(bert(attention), call, patient_cache.address, samples=16, epochs=16)
    assert summary["served"] >= 4, summary


def first_of(output: Any) -> Tensor:
    return output.last_hidden_state[:, 0]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("shortest", "step"), [(8, 1), (16, 16)])
def test_a_text_counts_as_the_same_with_more_padding_where_that_is_proven(
    attention: str, shortest: int, step: int, patient_cache: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    """Vectors of 16 numbers are added up: whether there are more of them makes no difference, their lengths do."""
    lengths = [3 + sample % 5 for sample in range(24)]
    absent = {}
    for name, keep in (("first", first_of), ("all", None)):
        numbers = iter(range(10_000))

        def call(network: nn.Module, rows: list[int]) -> Any:
            epoch = next(numbers) // 2 // 3  # three batches, each with both networks
            return read(network, rows, lengths, shortest + step * (epoch % 3))

        plain = (lambda value: value) if keep is None else keep
        network = bert(attention, width=64)
        summary = compare(network, call, patient_cache.address, samples=24, epochs=15, keep=keep, plain=plain)
        absent[name] = summary.get("miss_absent", 0)
        assert summary["served"] >= 20, summary
    # One batch of each length is kept by its proof. Some lengths may make no difference.
    assert absent["all"] >= 32 and (absent["first"] <= 16 if step == 16 else absent["first"] >= 32), absent
    assert "STORE_DIFFERS" not in caplog.text


@pytest.mark.parametrize("place", ["front", "holes", "garbage"])
def test_padding_that_looks_otherwise_counts(place: str, patient_cache: Daemon) -> None:
    def call(network: nn.Module, rows: list[int]) -> Any:
        mask = torch.tensor([[int(position < 3 + sample % 5) for position in range(10)] for sample in rows])
        ids = torch.tensor([[(7 * sample + 3 * position) % 49 + 1 for position in range(10)] for sample in rows])
        if place == "front":
            mask, ids = mask.flip(1), (ids * mask).flip(1)
        if place == "holes":
            mask[:, 1] = 0
        with torch.no_grad():
            return network(ids, attention_mask=mask)

    assert (
        compare(bert("sdpa"), call, patient_cache.address, samples=24, epochs=6, keep=first_of, plain=first_of)[
            "served"
        ]
        >= 8
    )


def test_autocast(patient_cache: Daemon) -> None:
    def call(network: nn.Module, rows: list[int]) -> Any:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return network(IMAGES[rows])

    assert compare(conv_net(), call, patient_cache.address)["served"] >= 8


def largest(logits: Tensor) -> dict[str, Tensor]:
    """The largest two, and the mass of the rest."""
    values, classes = logits.softmax(-1).topk(2)
    return {"values": values, "classes": classes, "rest": 1 - values.sum(-1)}


def test_keep_picks_what_is_kept_and_what_is_returned(patient_cache: Daemon) -> None:
    summary = compare(conv_net(), by_rows, patient_cache.address, keep=largest, plain=largest)
    assert summary["served"] >= 8, summary
    assert server_of(egeria.cached(conv_net(), keep=largest, cache="none")) is not None


def test_another_function_keeps_its_own(patient_cache: Daemon) -> None:
    temperatures = [1.0]

    def softened(logits: Tensor) -> Tensor:
        return (logits / temperatures[0]).softmax(-1)

    def before(number: int, network: nn.Module) -> None:
        temperatures[0] = 2.0 if 12 <= number < 14 else 1.0

    for factor in (1.0, 3.0):
        network = conv_net()
        torch.nn.init.constant_(network.head.bias, 0.5)
        kept = compare(
            network,
            by_rows,
            patient_cache.address,
            epochs=12,
            before=before,
            keep=lambda logits: softened(logits * factor),
            plain=lambda logits: softened(logits * factor),
        )
        assert kept["served"] >= 12, kept


def test_a_namespace_has_entries_of_its_own(patient_cache: Daemon) -> None:
    network = conv_net()
    found = [
        compare(copy.deepcopy(network), by_rows, patient_cache.address, namespace=name).get("miss_absent", 0)
        for name in ("sweep", "other", "sweep", None, "sweep")
    ]
    assert min(found[0], found[1], found[3]) >= 16 and found[2] == found[4] == 0, found


def test_several_times_a_step_and_by_several_names(patient_cache: Daemon) -> None:
    def call(network: nn.Module, rows: list[int]) -> Any:
        return (
            network(IMAGES[rows]),
            network(x=IMAGES[rows]),
            network.forward(IMAGES[rows][:, :, :, ::2].repeat(1, 1, 1, 2)),
        )

    assert compare(conv_net(), call, patient_cache.address)["served"] >= 24


def test_several_networks(patient_cache: Daemon) -> None:
    first, second = conv_net(), Structured().eval().requires_grad_(False)
    twins = copy.deepcopy(first), copy.deepcopy(second)
    for network in (first, second):
        egeria.cached(network, cache=patient_cache.address, use="always")
    for rows in batches(len(IMAGES), 5):
        assert same((first(IMAGES[rows]), second(IMAGES[rows])), (twins[0](IMAGES[rows]), twins[1](IMAGES[rows])))
        wait_until_kept(first)
        wait_until_kept(second)
    assert egeria.cache_summary(first)["served"] >= 8 and egeria.cache_summary(second)["served"] >= 8


def test_the_last_batch_of_an_epoch_is_kept_as_it_is_in_whole_batches(patient_cache: Daemon) -> None:
    network = nn.Sequential(OtherwiseInSmallBatches(BATCH), conv_net())
    summary = compare(network, by_rows, patient_cache.address)
    assert summary["miss_absent"] <= SAMPLES and summary["served"] + summary["audits"] == 4 * (SAMPLES // BATCH), (
        summary
    )


def distil(cache: str | None, epochs: int = 4, rate: float = 0.05) -> tuple[list[Tensor], Pair]:
    torch.manual_seed(1)
    pair = Pair()
    if cache is not None:
        egeria.cached(pair.teacher, cache=cache, use="always")
    optimizer = torch.optim.SGD(pair.student.parameters(), rate, momentum=0.9)
    for rows in batches(len(IMAGES), epochs):
        with torch.no_grad():
            target = pair.teacher(IMAGES[rows]).softmax(-1)
        loss = nn.functional.cross_entropy(pair.student(IMAGES[rows]), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if cache is not None:
            wait_until_kept(pair.teacher)
    return [parameter.detach() for parameter in pair.student.parameters()], pair


def test_a_distilled_student_has_the_same_weights(patient_cache: Daemon) -> None:
    weights, pair = distil(patient_cache.address)
    assert same(weights, distil(None)[0])
    assert egeria.cache_summary(pair.teacher)["served"] >= 4


def test_copies_and_pickles_are_plain(patient_cache: Daemon) -> None:
    _, pair = distil(patient_cache.address)
    plain = distil(None)[1]
    assert list(pair.state_dict()) == list(plain.state_dict()) and type(pair.teacher) is ConvNet
    assert inspect.signature(pair.teacher.forward) == inspect.signature(plain.teacher.forward)
    whole = io.BytesIO()
    torch.save(pair.teacher, whole)
    copies = [
        copy.deepcopy(pair).teacher,
        copy.copy(pair.teacher),
        pickle.loads(pickle.dumps(pair.teacher)),
        torch.load(io.BytesIO(whole.getvalue()), weights_only=False),
    ]
    assert b"egeria" not in whole.getvalue()
    calls = egeria.cache_summary(pair.teacher)["calls"]
    for copied in copies:
        assert vars(copied).keys() == vars(plain.teacher).keys()
        assert torch.equal(copied(IMAGES), plain.teacher(IMAGES))
    assert egeria.cache_summary(pair.teacher)["calls"] == calls


def test_replicas_of_data_parallel_compute_by_themselves(patient_cache: Daemon) -> None:
    network = egeria.cached(conv_net(), keep=largest, cache=patient_cache.address)
    replica = network._replicate_for_data_parallel()
    replica.head = nn.Linear(512, 10)  # as if it had weights of its own, on another device
    replica.stem, replica.drop = network.stem, network.drop
    assert same(list(replica(IMAGES)), ["values", "classes", "rest"])
    assert not same(replica(IMAGES), network(IMAGES))
    assert vars(egeria.uncached(network)).keys() == vars(conv_net()).keys()


class Encoder(nn.Module):
    """Has no forward pass of its own, as the autoencoders of diffusers are used."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = conv_net()

    def encode(self, x: Tensor) -> torch.distributions.Normal:
        mean, log_scale = self.inner(x).chunk(2, dim=1)
        return torch.distributions.Normal(mean, log_scale.exp())


class Encoding(nn.Module):
    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> torch.distributions.Normal:
        return self.encoder.encode(x)


def test_a_method_with_another_name_in_a_module_of_its_own(patient_cache: Daemon) -> None:
    def mean_of(distribution: torch.distributions.Normal) -> Tensor:
        return distribution.mean

    summary = compare(Encoding(Encoder()).eval(), by_rows, patient_cache.address, keep=mean_of, plain=mean_of)
    assert summary["served"] >= 8, summary
    whole = Encoding(Encoder()).eval()
    twin = copy.deepcopy(whole)
    egeria.cached(whole.encoder.inner, cache=patient_cache.address, use="always")  # a part, in its place
    for rows in batches(len(IMAGES), 5):
        assert same(whole(IMAGES[rows]).scale, twin(IMAGES[rows]).scale)
        wait_until_kept(whole.encoder.inner)
    assert egeria.cache_summary(whole.encoder.inner)["served"] >= 8


@pytest.mark.parametrize("first", ["accelerate", "egeria"])
def test_a_network_that_accelerate_prepares(first: str, patient_cache: Daemon) -> None:
    network, twin = conv_net(), conv_net()
    twin.load_state_dict(network.state_dict())
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    twin = accelerator.prepare_model(twin, evaluation_mode=True)
    if first == "egeria":
        egeria.cached(network, cache=patient_cache.address, use="always")
    network = accelerator.prepare_model(network, evaluation_mode=True)
    if first == "accelerate":
        egeria.cached(network, cache=patient_cache.address, use="always")
    for rows in batches(len(IMAGES), 5):
        with torch.no_grad():
            assert same(network(IMAGES[rows]), twin(IMAGES[rows]))
        wait_until_kept(network)
    assert egeria.cache_summary(network)["served"] >= 8


def test_workers_of_a_loader_compute(patient_cache: Daemon) -> None:
    network = egeria.cached(conv_net(), cache=patient_cache.address, use="always")
    expected = [copy.deepcopy(network)(picture[None])[0] for picture in IMAGES]
    for _ in range(3):
        network(IMAGES)
        wait_until_kept(network)

    class Computed(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(IMAGES)

        def __getitem__(self, index: int) -> Tensor:
            return network(IMAGES[index : index + 1])[0]

    loader = torch.utils.data.DataLoader(Computed(), 4, num_workers=2)
    calls = egeria.cache_summary(network)["calls"]
    assert torch.equal(torch.cat(list(loader)), torch.stack(expected))
    assert egeria.cache_summary(network)["calls"] == calls


def test_a_network_that_is_gone_leaves_nothing(patient_cache: Daemon) -> None:
    network = egeria.cached(conv_net(), cache=patient_cache.address, use="always")
    for _ in range(3):
        network(IMAGES)
    line, gone = server_of(network).line, weakref.ref(network)
    del network
    gc.collect()
    assert gone() is None and line._cache is None


def test_scripted_networks_and_default_devices(patient_cache: Daemon) -> None:
    scripted = torch.jit.script(conv_net())
    expected = scripted(IMAGES)
    egeria.cached(scripted, cache=patient_cache.address, use="always")
    assert all(torch.equal(scripted(IMAGES), expected) for _ in range(4))
    egeria.uncached(scripted)
    with torch.device("cpu"):
        assert compare(conv_net(), by_rows, patient_cache.address)["served"] >= 8


def test_inputs_that_require_gradients_are_computed(patient_cache: Daemon) -> None:
    gradients: list[Tensor] = []

    def call(network: nn.Module, rows: list[int]) -> Any:
        pictures = IMAGES[rows].requires_grad_()
        network(pictures).square().sum().backward()
        gradients.append(pictures.grad)
        return pictures.grad

    assert compare(conv_net(), call, patient_cache.address)["served"] == 0


def test_random_augmentation_is_computed_and_ends(patient_cache: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("egeria.cached_calls.recurrence._MOST_SAMPLES", 7)
    calls = iter(range(1000))
    noise = torch.Generator().manual_seed(0)
    shifts = torch.randn(40, 1, generator=noise).repeat_interleave(2).tolist()  # both models get the same

    def call(network: nn.Module, rows: list[int]) -> Any:
        return network(IMAGES[rows] + shifts[next(calls)])

    summary = compare(conv_net(), call, patient_cache.address, use="auto", epochs=10)
    assert summary["served"] == 0 and summary["miss_off"] > 0
    assert "do not come again" in summary["reason"] and summary["cache_offered"] <= 16, summary


def test_what_comes_again_shows_in_what_has_come_and_in_what_is_there() -> None:
    inputs = Recurrence()
    assert [inputs.note(range(begin, begin + 8)) for begin in range(0, 64, 8)] == [False] * 8
    assert inputs.known is None
    inputs.kept(1 << 21, 100)
    assert inputs.known is False
    assert [inputs.note(range(begin, begin + 8)) for begin in range(0, 64, 8)] == [False] * 7 + [True]
    assert inputs.known
    inputs.kept(1 << 19, 5 << 30)
    assert inputs.known is False
    inputs.found(16)
    assert inputs.known


class Tiny(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def test_what_is_computed_faster_than_fetched_is_computed(cache_daemon: Daemon) -> None:
    summary = compare(Tiny(), by_rows, cache_daemon.address, use="auto", epochs=12)
    assert summary["state"] != "on" and summary["served"] <= 16, summary


@pytest.mark.parametrize("change", ["in place", "through data"])
def test_changed_weights_are_computed_with_and_served_when_they_are_back(
    change: str, patient_cache: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    def before(number: int, network: nn.Module) -> None:
        if number in (12, 14):
            weight = network.head.weight if change == "in place" else network.head.weight.data
            with torch.no_grad():
                weight.mul_(2.0 if number == 12 else 0.5)

    summary = compare(conv_net(), by_rows, patient_cache.address, epochs=9, before=before)
    assert summary["state"] == "on" and summary["served"] >= 20, summary
    assert "WEIGHTS_CHANGED] frozen 'head.weight'" in caplog.text and caplog.text.count("calls are computed") == 1


def test_other_weights_that_stay_are_a_network_too(patient_cache: Daemon) -> None:
    def before(number: int, network: nn.Module) -> None:
        if number == 8:
            with torch.no_grad():
                network.head.weight.mul_(2.0)

    summary = compare(conv_net(), by_rows, patient_cache.address, epochs=12, before=before)
    assert summary["state"] == "on" and summary["served"] >= 20 and summary["proofs"] >= 2, summary


def test_without_a_cache_only_keep_is_done() -> None:
    network = egeria.cached(conv_net(), keep=largest, cache="none")
    assert same(network(IMAGES), largest(copy.deepcopy(network)(IMAGES)))
    assert egeria.cache_summary(network)["calls"] == 0


def test_uncached_gives_the_network_back(patient_cache: Daemon) -> None:
    network = egeria.cached(conv_net(), keep=largest, cache=patient_cache.address)
    assert isinstance(network(IMAGES), dict)
    assert egeria.uncached(network) is network
    assert isinstance(network(IMAGES), Tensor) and vars(network).keys() == vars(conv_net()).keys()
    with pytest.raises(EgeriaError, match="NOT_CACHED"):
        egeria.cache_summary(network)


@pytest.mark.parametrize(
    ("options", "name"),
    [({"use": "never"}, "BAD_CONFIG"), ({"keep": 3}, "BAD_CONFIG"), ({"cache": "here"}, "BAD_CONFIG")],
)
def test_what_does_not_fit_is_said(options: dict[str, Any], name: str) -> None:
    with pytest.raises(EgeriaError, match=name):
        egeria.cached(conv_net(), **options)
    with pytest.raises(EgeriaError, match="BAD_MODEL"):
        egeria.cached(lambda x: x)  # type: ignore[type-var]


def test_the_daemon_may_end_and_come_back(patient_cache: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("egeria.cache.gate.CacheGate.longest_patience", 0.25)
    network, twin = conv_net(), conv_net()
    twin.load_state_dict(network.state_dict())
    egeria.cached(network, cache=patient_cache.address, use="always")
    served = []
    for number, rows in enumerate(batches(len(IMAGES), 10)):
        assert same(network(IMAGES[rows]), twin(IMAGES[rows]))
        if number == 16:
            patient_cache.end(9)
        if number == 24:
            patient_cache.start()
        if not 16 <= number < 24:
            wait_until_kept(network)
        served.append(egeria.cache_summary(network)["served"])
    assert served[16] > 4 and served[23] - served[17] <= 1 and served[-1] - served[28] >= 4, served
