"""Samples whose frozen layers the cache answers for are not loaded; the training is the same to the bit, and whoever
looks at such a sample has it loaded."""

from __future__ import annotations

import copy
import json
import logging
import multiprocessing
import pathlib
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from cache_daemon import Daemon, wait_until_kept
from launching import HERE, Program
from torch import Tensor, nn
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, Subset, default_collate
from unloaded_runs import BATCH, EPOCHS, LAYERS, SAMPLES, Images, Net, Run, image, plain_step

import egeria
from egeria import Config, EgeriaError
from egeria.data import stand_in, wrap
from egeria.data.sample_memory import SampleMemory
from egeria.data.skip_loading import Part, Skip
from egeria.data.stand_in import StandIn
from egeria.integrations.lightning import EgeriaCallback


class Dicts(Images):
    def sample(self, index: int) -> Any:
        return {"images": image(index), "label": index % 10, "name": f"sample {index}", "where": (index, 0.5)}


def dict_step(model: nn.Module, batch: Any) -> Tensor:
    assert batch["name"] == [f"sample {index}" for index in batch["where"][0]]
    assert torch.equal(batch["where"][0] % 10, batch["label"])
    return nn.functional.cross_entropy(model(batch["images"]), batch["label"])


def counting(samples: list[Any]) -> Any:
    """A collate_fn that looks at its samples, and makes a batch as the usual one does."""
    assert samples
    return default_collate(samples)


class Drawing(Images):
    def sample(self, index: int) -> Any:
        return image(index) + torch.rand(()), index % 10


KINDS: dict[str, dict[str, Any]] = {
    "no workers": {},
    "workers": {"num_workers": 2, "multiprocessing_context": "fork"},
    "workers that persist": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True},
    "dicts": {"dataset": Dicts, "step": dict_step},
    "a collate_fn of the user's": {"collate_fn": counting, "num_workers": 1, "multiprocessing_context": "fork"},
    "a last batch that is smaller": {"dataset": lambda: Images(SAMPLES + 3)},
    "a batch_sampler": {"batch_sampler": lambda: BatchSampler(RandomSampler(range(SAMPLES)), BATCH, True)},
    "in order": {"shuffle": False},
    "a subset": {"dataset": lambda: Subset(Images(2 * SAMPLES), range(SAMPLES))},
    "two datasets": {"dataset": lambda: ConcatDataset([Images(), Images()])},
    "variants of random images": {"dataset": Drawing, "wrapping": {"variants": 2}, "epochs": 8},
    "accelerate": {"prepare": lambda loader: Accelerator(cpu=True).prepare(loader)},
    "ids of the user's": {"wrapping": {"sample_id": lambda index: 7 * index}},
    "pinned": {"pin_memory": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_trainings_are_the_same_and_load_less(kind: str, patient_cache: Daemon):
    def run(cache: str) -> Run:
        options = {
            name: value() if name in ("dataset", "batch_sampler") else value for name, value in KINDS[kind].items()
        }
        return Run(cache, **options)

    skipping, plain = run(patient_cache.address), run("none")
    assert skipping.same_as(plain)
    assert skipping.memory.off is None
    assert min(plain.loads) >= SAMPLES
    # The loader's audits load samples, and so do the cache's.
    assert skipping.loads[-1] < plain.loads[-1] / 2 and sum(skipping.loads[-2:]) < sum(plain.loads[-2:]) / 2
    assert skipping.memory.counts["left_out"] > SAMPLES
    assert skipping.counters["hits"] > SAMPLES
    assert skipping.counters["samples_left_out"] == skipping.memory.counts["left_out"]


def test_without_the_word_everything_is_loaded(patient_cache: Daemon):
    run = Run(patient_cache.address, skip=False)
    assert run.loads == [SAMPLES] * EPOCHS and set(run.kinds) == {"Tensor"}
    assert run.counters["hits"] > SAMPLES


def test_without_a_cache_batches_are_what_they_are():
    run = Run("none", skip=True)
    assert run.loads == [SAMPLES] * EPOCHS and set(run.kinds) == {"Tensor"}


class Lightning(L.LightningModule):
    def __init__(self, loader: DataLoader):
        super().__init__()
        torch.manual_seed(0)
        self.model, self.loader, self.kinds = Net(), loader, []

    def train_dataloader(self) -> DataLoader:
        return self.loader

    def training_step(self, batch: Any, index: int) -> Tensor:
        self.kinds.append(type(batch[0]).__name__)
        return plain_step(self.model, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), 0.05)


def test_a_loader_that_lightning_is_given_leaves_samples_out_too(patient_cache: Daemon):
    def fit(cache: str) -> tuple[Lightning, Images]:
        images = Images()
        loader = wrap(DataLoader(images, BATCH), skip_loading=cache != "none")
        settings = Config(controller="none", plans=[(1, 2)], cache=cache, cache_use="always")
        module = Lightning(loader)
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=6,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[EgeriaCallback(modules=LAYERS, config=settings), Patient()],
        )
        trainer.fit(module)
        return module, images

    (skipping, few), (plain, many) = fit(patient_cache.address), fit("none")
    assert all(torch.equal(one, other) for one, other in zip(skipping.parameters(), plain.parameters()))
    assert few.loads.value < many.loads.value / 2 and "StandIn" in skipping.kinds


class Patient(L.Callback):
    """Lets the cache keep what it was offered."""

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        wait_until_kept(trainer.callbacks[0].session, 20)


def test_two_ranks_leave_samples_out(patient_cache: Daemon, tmp_path: pathlib.Path):
    reports = []
    for cache in (patient_cache.address, "none"):
        folder = tmp_path / cache.replace("/", "-")
        folder.mkdir()
        with Program(folder, "run_script.py", HERE / "skip_loading_job.py", folder, cache, ranks=2) as job:
            job.succeed()
        reports.append([json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)])
    skipping, plain = reports
    assert [rank["weights"] for rank in skipping] == [rank["weights"] for rank in plain]
    for rank in range(2):
        assert plain[rank]["loads"][-1] == 24 and skipping[rank]["loads"][-1] < 16
        assert skipping[rank]["off"] is None and skipping[rank]["left_out"] > 24


def test_the_head_may_be_compiled(patient_cache: Daemon):
    class Compiled(Net):
        def __init__(self) -> None:
            super().__init__()
            self.head.compile(backend="eager")

    skipping, plain = (Run(cache, model=Compiled) for cache in (patient_cache.address, "none"))
    assert skipping.same_as(plain) and skipping.memory.counts["left_out"] > SAMPLES


@pytest.mark.parametrize("cached", [False, True])
def test_a_compiled_model_and_a_cached_network_get_real_samples(cached: bool, patient_cache: Daemon):
    """The cache refuses frozen layers that are compiled; a network beside the model looks at the samples."""

    class Whole(Net):
        def __init__(self) -> None:
            super().__init__()
            if not cached:
                self.compile(backend="eager")

    torch.manual_seed(3)
    teacher = Net().eval().requires_grad_(False)

    def step(model: nn.Module, batch: Any) -> Tensor:
        loss = plain_step(model, batch)
        return loss + (model(batch[0]) - teacher(batch[0])).square().mean() if cached else loss

    skipping, plain = (Run(cache, step=step, model=Whole) for cache in (patient_cache.address, "none"))
    assert skipping.same_as(plain)


# Whoever looks at a sample.


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[SampleMemory]:
    """One of a dataset, some of whose samples are known and need not be loaded."""
    made = SampleMemory(Images(), default_collate)
    server = Run

    def batch_of(indices: tuple[int, ...]) -> Any:
        return made.deliver(
            indices,
            default_collate([made._dataset.sample(index) for index in indices]),
            Part(tuple(range(len(indices))), (0,) * len(indices), (), False),
        )

    stand_in.serve(server, 4)
    for begin in range(0, 16, 4):
        images, _ = batch_of(tuple(range(begin, begin + 4)))
        images.source.hashes(b"", [0] * 4, lambda rows: [0] * len(rows))
        images.source.fetched([])
    yield made
    stand_in.stop_serving(server)


def left_out(memory: SampleMemory, indices: tuple[int, ...] = (3, 1, 5, 9)) -> Any:
    """A batch of which nothing is loaded."""
    return memory.deliver(indices, None, Part((), (), (), False))


LOOKS: dict[str, Callable[[Tensor], Any]] = {
    "mean": lambda x: x.mean(),
    "an element": lambda x: x[2, 1],
    "a mask": lambda x: x[x > 0],
    "arithmetic": lambda x: 2 * x + 1,
    "in place": lambda x: x.mul_(2),
    "written to": lambda x: (x.__setitem__(0, 0.0), x + 0)[1],
    "mixup": lambda x: 0.3 * x + 0.7 * x[torch.arange(3, -1, -1)],
    "rows": lambda x: torch.stack(list(x)),
    "cat": lambda x: torch.cat([x, torch.zeros_like(x)]),
    "interpolate": lambda x: nn.functional.interpolate(x, scale_factor=2),
    "halved": lambda x: x.half(),
    "as half": lambda x: x.to(torch.float16),
    "copied": lambda x: x.to("cpu", copy=True),
    "data": lambda x: x.data,
    "clone": lambda x: x.clone(),
    "numpy": lambda x: torch.from_numpy(x.numpy().copy()),
    "an array": lambda x: torch.from_numpy(np.asarray(x).copy()),
    "a list": lambda x: torch.tensor(x.tolist()),
    "item": lambda x: x[0, 0, 0, 0].item(),
    "text": str,
    "pickled": lambda x: pickle.loads(pickle.dumps(x)),
    "deepcopy": copy.deepcopy,
    "saved": lambda x: saved(x),
    "equal": lambda x: torch.equal(x, x + 0),
    "dlpack": lambda x: torch.from_dlpack(x).clone(),
    "a compiled function": lambda x: torch.compile(lambda y: y * 2 + y.mean(), backend="eager")(x),
    "a script": lambda x: torch.jit.script(doubled)(x),
    "a function of another process": lambda x: sent(x),
    "a C++ function": lambda x: egeria._native.fingerprint("", [x]),
    "widened, and looked at": lambda x: x.double() * 2,
    "channels last, and looked at": lambda x: x.to(memory_format=torch.channels_last) * 2,
    "detached, and written to": lambda x: (x.detach().zero_(), x + 0)[1],
}


def doubled(x: Tensor) -> Tensor:
    return x * 2


def sent(x: Tensor) -> Tensor:
    queue = multiprocessing.get_context("fork").Queue()
    queue.put(x)
    return queue.get(timeout=60)


def saved(x: Tensor) -> Tensor:
    import io

    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("look", LOOKS)
def test_whoever_looks_at_a_sample_sees_the_real_one(look: str, memory: SampleMemory):
    images, labels = left_out(memory)
    assert type(images) is StandIn and labels.tolist() == [3, 1, 5, 9] and type(labels) is Tensor
    real = torch.stack([image(index) for index in (3, 1, 5, 9)])
    states = torch.get_rng_state()
    assert memory._dataset.loads.value == 0
    found, expected = LOOKS[look](images), LOOKS[look](real)
    assert memory._dataset.loads.value == 4
    assert type(found) is type(expected)
    if isinstance(expected, Tensor):
        assert torch.equal(found, expected) and found.stride() == expected.stride() and found.dtype == expected.dtype
    else:
        assert found == expected
    assert torch.equal(torch.get_rng_state(), states)


def test_whoever_asks_for_the_gradient_of_a_sample_gets_it(memory: SampleMemory):
    images, _ = left_out(memory)
    images.requires_grad_()
    (images * 2).sum().backward()
    assert images.requires_grad and images.is_leaf and images.grad.unique().tolist() == [2.0]
    images, _ = left_out(memory)
    images.resize_(2, 3, 12, 12)
    assert images.shape == (2, 3, 12, 12) and len(images) == 2


def test_a_broadcast_gives_the_other_ranks_real_samples(memory: SampleMemory):
    images, _ = left_out(memory)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        dist.broadcast(images, 0)
        dist.all_reduce(images)
        gathered = [torch.zeros(4, 3, 12, 12)]
        dist.all_gather(gathered, images)
    finally:
        dist.destroy_process_group()
    real = torch.stack([image(index) for index in (3, 1, 5, 9)])
    assert torch.equal(images + 0, real) and torch.equal(gathered[0], real)


def test_memory_that_is_not_there_is_no_zeros(memory: SampleMemory):
    """torch asks nobody when a tensor takes over the memory of another one."""
    other = torch.zeros(4, 3, 12, 12)
    other.data, _ = left_out(memory)
    for look in (torch.Tensor.sum, torch.Tensor.tolist, torch.Tensor.zero_, lambda x: x + 1, torch.clone):
        with pytest.raises(RuntimeError, match="are not loaded"):
            look(other)


def test_a_sample_that_is_loaded_late_touches_no_generator(memory: SampleMemory):
    def sample(index: int) -> Any:
        shift = torch.rand(()) + random.random() + np.random.rand()
        return image(index) + shift, index % 10

    memory._dataset.sample = sample
    images, _ = left_out(memory)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2:]
    assert images.mean() > 0
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2:]
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    assert "draws random numbers" in memory.off


QUESTIONS: dict[str, Callable[[Tensor], Any]] = {
    "shape": lambda x: (x.shape, x.size(0), len(x), x.dim(), x.ndim, x.numel(), x.nbytes, x.stride()),
    "type": lambda x: (x.dtype, x.is_floating_point(), x.itemsize, isinstance(x, Tensor), torch.is_tensor(x)),
    "place": lambda x: (x.device, x.layout, x.is_cuda, x.get_device(), x.is_contiguous(), x.dim_order()),
    "gradient": lambda x: (x.requires_grad, x.grad, x.grad_fn, x.is_leaf),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_a_sample_is_like_is_known_without_loading_it(question: str, memory: SampleMemory):
    images, _ = left_out(memory)
    assert QUESTIONS[question](images) == QUESTIONS[question](image(0).expand(4, 3, 12, 12).contiguous())
    assert memory._dataset.loads.value == 0


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "to": lambda x: x.to("cpu"),
    "non_blocking": lambda x: x.to(torch.device("cpu"), non_blocking=True),
    "cpu": lambda x: x.cpu(),
    "float": lambda x: x.float(),
    "double": lambda x: x.double(),
    "widened": lambda x: x.to("cpu", torch.float64),
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "channels last, again": lambda x: x.contiguous(memory_format=torch.channels_last).to(torch.float64),
    "detached": lambda x: x.detach(),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_sample_may_be_moved_and_widened_without_loading_it(move: str, memory: SampleMemory):
    images, _ = left_out(memory)
    moved, expected = MOVES[move](images), MOVES[move](torch.stack([image(index) for index in (3, 1, 5, 9)]))
    assert type(moved) is StandIn and memory._dataset.loads.value == 0
    assert (moved.shape, moved.dtype, moved.stride()) == (expected.shape, expected.dtype, expected.stride())
    assert torch.equal(moved.pick([2, 0]), expected[[2, 0]]) and memory._dataset.loads.value == 2
    assert torch.equal(moved + 0, expected + 0) and memory._dataset.loads.value == 4


def test_what_somebody_has_written_to_is_what_the_model_gets(patient_cache: Daemon):
    def step(model: nn.Module, batch: Any) -> Tensor:
        images, labels = batch
        step.number += 1
        if step.number % 9 == 0:
            images.mul_(0.5)
        return nn.functional.cross_entropy(model(images), labels)

    runs = []
    for cache in (patient_cache.address, "none"):
        step.number = 0
        runs.append(Run(cache, step=step))
    assert runs[0].same_as(runs[1]) and runs[0].memory.off is None and runs[0].memory.counts["left_out"] > 0


# Loops and models that use the values.


class Masks(Images):
    """Images with a mask as large as they are, which the loss needs."""

    def sample(self, index: int) -> Any:
        return image(index), index % 10, image(index, 1.0)


def mask_step(model: nn.Module, batch: Any) -> Tensor:
    images, labels, masks = batch
    return nn.functional.cross_entropy(model(images), labels) * masks.mean().abs()


class UsesItsInput(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.mean()


class Preprocesses(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x - 0.5) / 0.25)


def metric_step(model: nn.Module, batch: Any) -> Tensor:
    assert batch[0].mean().abs() < 1
    return plain_step(model, batch)


def normalising_step(model: nn.Module, batch: Any) -> Tensor:
    return plain_step(model, ((batch[0] - 0.5) / 0.25, batch[1]))


def rare_metric_step(model: nn.Module, batch: Any) -> Tensor:
    if bool((batch[1] == 3).sum() > 2):
        assert batch[0].mean().abs() < 1
    return plain_step(model, batch)


def halves_step(model: nn.Module, batch: Any) -> Tensor:
    return sum(plain_step(model, (images, labels)) for images, labels in zip(batch[0].chunk(2), batch[1].chunk(2)))


def evaluating_step(model: nn.Module, batch: Any) -> Tensor:
    loss = plain_step(model, batch)
    model.eval()
    with torch.no_grad():
        model(batch[0])
    model.train()
    return loss


def copying_step(model: nn.Module, batch: Any) -> Tensor:
    """Keeps what it has seen, as a replay buffer does."""
    copying_step.kept = [part.clone() for part in batch]
    return plain_step(model, batch)


USES = {
    "a mask": (Masks, mask_step, Net, False),
    "a model that uses its input behind the frozen layers": (Images, plain_step, UsesItsInput, True),
    "a model that prepares its input": (Images, plain_step, Preprocesses, True),
    "a metric": (Images, metric_step, Net, True),
    "a loop that prepares its input": (Images, normalising_step, Net, True),
    "a metric now and then": (Images, rare_metric_step, Net, False),
    "halves of a batch": (Images, halves_step, Net, None),
    "an evaluation in between": (Images, evaluating_step, Net, None),
    "a loop that keeps batches": (Images, copying_step, Net, True),
}


@pytest.mark.parametrize("use", USES)
def test_loops_that_use_the_values_are_trained_as_without(
    use: str, patient_cache: Daemon, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING, "egeria")
    dataset, step, model, ends = USES[use]
    skipping, plain = (Run(cache, dataset(), step, model=model) for cache in (patient_cache.address, "none"))
    assert skipping.same_as(plain)
    if ends is False:
        assert skipping.memory.off is None and skipping.loads[-1] < SAMPLES / 2
    elif ends:
        assert "used besides the frozen layers" in skipping.memory.off
        assert sum("all samples are loaded from here on" in record.getMessage() for record in caplog.records) == 1
        assert skipping.loads[-1] == SAMPLES


# The user's word.


class Files(Images):
    """Images in files, as torchvision's ImageFolder has them."""

    def __init__(self, folder: pathlib.Path):
        super().__init__()
        self.samples = [(str(folder / f"{index}.pt"), index % 10) for index in range(SAMPLES)]
        for index, (path, _) in enumerate(self.samples):
            torch.save(image(index), path)

    def sample(self, index: int) -> Any:
        path, label = self.samples[index]
        return torch.load(path), label


@pytest.mark.parametrize("options", [{}, KINDS["workers that persist"], {"collate_fn": counting}], ids=str)
def test_a_file_that_changes_in_mid_run_is_found(options: Any, patient_cache: Daemon, tmp_path: pathlib.Path):
    def run(cache: str) -> Run:
        folder = tmp_path / cache.rpartition("/")[2]
        folder.mkdir()
        dataset = Files(folder)

        def change(epoch: int, _: nn.Module) -> None:
            if epoch == 4:
                torch.save(image(5, 3.0), dataset.samples[5][0])

        return Run(cache, dataset, between=change, epochs=7, **options)

    skipping, plain = run(patient_cache.address), run("none")
    assert skipping.same_as(plain) and skipping.memory.off is None
    assert skipping.memory.counts["changed"] == 1
    assert skipping.loads[4] < SAMPLES and skipping.loads[6] < SAMPLES / 2


class Lying(Images):
    """All of its images become others."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = multiprocessing.Value("d", 0.0)

    def sample(self, index: int) -> Any:
        return image(index, self.shift.value), index % 10


def test_a_word_that_is_broken_is_found_by_audits(patient_cache: Daemon, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, "egeria")
    dataset = Lying()

    def change(epoch: int, _: nn.Module) -> None:
        if epoch == 4:
            dataset.shift.value = 1.0

    run = Run(patient_cache.address, dataset, between=change, epochs=12, num_workers=1, multiprocessing_context="fork")
    assert run.loads[3] < SAMPLES / 2
    assert "has changed" in run.memory.off
    said = [record.getMessage() for record in caplog.records if "from here on" in record.getMessage()]
    assert len(said) == 1 and "sample " in said[0]
    assert run.loads[-1] == SAMPLES


def test_what_is_stored_is_dropped_where_the_word_is_broken(memory: SampleMemory):
    images, _ = left_out(memory)
    source = images.source
    assert source.hashes(b"", [0] * 4, lambda rows: [0] * len(rows)) == [0] * 4 and not source.was_outdated()
    assert source.fetched([1])  # sample 1 is loaded
    assert source.hashes(b"", [0] * 4, lambda rows: [5] * len(rows))[1] == 5
    assert source.was_outdated() and not source.was_outdated()
    assert memory.off.startswith("sample 1 ")
    assert source.hashes(b"", [0] * 4, lambda rows: [6] * len(rows)) == [6] * 4  # nothing is believed any more


class Labels(Lying):
    def sample(self, index: int) -> Any:
        return image(index), int(self.shift.value)


def test_a_label_that_changes_is_found_too(patient_cache: Daemon):
    dataset = Labels()

    def change(epoch: int, _: nn.Module) -> None:
        if epoch == 4:
            dataset.shift.value = 1.0

    run = Run(patient_cache.address, dataset, between=change, epochs=12)
    assert "has changed" in run.memory.off


def drawing_collate(samples: list[Any]) -> Any:
    images, labels = default_collate(samples)
    return images * (1 if random.random() < 2 else 0), labels


@pytest.mark.parametrize("options", [{"dataset": Drawing}, {"dataset": Images, "collate_fn": drawing_collate}], ids=str)
@pytest.mark.parametrize("workers", [0, 1])
def test_random_samples_are_refused_at_once(
    workers: int, options: Any, patient_cache: Daemon, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING, "egeria")
    runs = [
        Run(cache, **{**options, "dataset": options["dataset"]()}, num_workers=workers, epochs=3)
        for cache in (patient_cache.address, "none")
    ]
    assert runs[0].same_as(runs[1])
    assert "draws random numbers" in runs[0].memory.off and runs[0].memory.counts["left_out"] == 0
    assert any("variants=4" in record.getMessage() for record in caplog.records)


def test_a_transform_that_is_replaced_is_seen_at_the_next_epoch(patient_cache: Daemon):
    class Transformed(Images):
        transform: Any = staticmethod(lambda sample: sample)

        def sample(self, index: int) -> Any:
            return self.transform(image(index)), index % 10

    def run(cache: str) -> Run:
        dataset = Transformed()

        def change(epoch: int, _: nn.Module) -> None:
            if epoch == 4:
                dataset.transform = lambda sample: sample + 1

        return Run(cache, dataset, between=change, epochs=6)

    skipping, plain = run(patient_cache.address), run("none")
    assert skipping.same_as(plain) and skipping.loads[3] < SAMPLES / 2 and skipping.loads[4] == SAMPLES


# The cache, files and layers may change.


@pytest.mark.parametrize("options", [{}, KINDS["workers that persist"], {"collate_fn": counting}], ids=str)
def test_a_cache_that_goes_away_costs_time_only(options: Any, cache_daemon: Daemon):
    def end(epoch: int, _: nn.Module) -> None:
        if epoch == 3:
            cache_daemon.end()

    skipping = Run(cache_daemon.address, between=end, epochs=6, waits=False, **options)
    plain = Run("none", epochs=6, **options)
    assert skipping.same_as(plain)
    assert skipping.memory.off is None and skipping.loads[-1] >= SAMPLES


class Large(Images):
    def sample(self, index: int) -> Any:
        return image(index).repeat(1, 8, 8), index % 10


class Pooling(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.adaptive_avg_pool2d(self.layers(x), 2).flatten(1))


def test_what_the_cache_does_not_keep_is_loaded(patient_cache: Daemon):
    """It keeps less than a third of 48 x 72 KiB."""
    options = {"model": Pooling, "plans": ((1, 1),), "epochs": 8}
    skipping = Run(
        patient_cache.address, Large(), config={"cache_job_quota": 2**20, "cache_compression": "none"}, **options
    )
    assert skipping.same_as(Run("none", Large(), **options))
    assert skipping.memory.off is None and SAMPLES / 2 < skipping.loads[-1]


@pytest.mark.parametrize("plans", [((1, 2), (14, 3)), ((1, 2), (14, 0), (20, 2)), ((1, 3), (21, 1))], ids=str)
def test_other_layers_freeze(plans: Any, patient_cache: Daemon):
    skipping, plain = (Run(cache, plans=plans, epochs=7) for cache in (patient_cache.address, "none"))
    assert skipping.same_as(plain)
    assert skipping.loads[-1] < SAMPLES / 2 and skipping.memory.off is None


def test_a_frozen_weight_that_changes(patient_cache: Daemon):
    def change(epoch: int, model: nn.Module) -> None:
        if epoch == 3:
            with torch.no_grad():
                next(model.layers[0].parameters()).mul_(1.01)

    skipping, plain = (Run(cache, between=change, epochs=6) for cache in (patient_cache.address, "none"))
    assert skipping.same_as(plain)


def ragged(samples: list[Any]) -> Any:
    images, labels = zip(*samples)
    return [*images], torch.tensor(labels)


ODD: dict[str, Callable[[list[Any]], Any]] = {
    "a list of tensors": ragged,
    "a number for all": lambda samples: (*default_collate(samples), 3),
    "an order of its own": lambda samples: default_collate(sorted(samples, key=lambda sample: sample[1])),
    "other strides": lambda samples: (
        default_collate(samples)[0].to(memory_format=torch.channels_last),
        default_collate(samples)[1],
    ),
}


class InWorkersOnly(Images):
    """Opens its files in worker_init_fn."""

    opened = False

    def sample(self, index: int) -> Any:
        if not self.opened:
            raise OSError("the file is not open")
        return image(index), index % 10


def open_files(_: int) -> None:
    torch.utils.data.get_worker_info().dataset.opened = True


@pytest.mark.parametrize("persistent", [False, True])
def test_samples_that_only_a_worker_can_load_are_loaded_there(persistent: bool, patient_cache: Daemon):
    runs = []
    for cache in (patient_cache.address, "none"):
        options = {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": persistent}
        runs.append(Run(cache, InWorkersOnly(), worker_init_fn=open_files, **options))
    assert runs[0].same_as(runs[1])
    assert "only be loaded by workers" in runs[0].memory.off and runs[0].loads[-1] == SAMPLES


def test_a_batch_of_the_users_own_making_is_left_out_when_its_samples_came_out_the_same_elsewhere():
    """A collate_fn may sort samples, or make something of all of them."""
    memory = SampleMemory(Images(), counting)
    stand_in.serve(Run, 4)

    def load(*indices: int) -> None:
        samples = counting([memory._dataset.sample(index) for index in indices])
        images, _ = memory.deliver(indices, samples, Part(tuple(range(4)), (0,) * 4, (), False))
        images.source.hashes(b"", [0] * 4, lambda rows: [indices[row] for row in rows])
        images.source.fetched([])

    def is_left_out(*indices: int) -> bool:
        outcomes = {isinstance(memory.hand_out(list(indices), indices), Skip) for _ in range(8)}
        return True in outcomes  # some are audited

    load(0, 1, 2, 3)
    assert is_left_out(0, 1, 2, 3) and not is_left_out(3, 1, 2, 0)
    load(1, 0, 2, 4)
    assert not is_left_out(3, 1, 2, 0)
    load(3, 5, 6, 7)
    assert is_left_out(3, 1, 2, 0) and not is_left_out(4, 1, 2, 0)
    stand_in.stop_serving(Run)


def looking_twice_step(model: nn.Module, batch: Any) -> Tensor:
    """Calls the model a second time, which the cache does not serve."""
    return plain_step(model, batch) + model(batch[0]).square().mean()


def test_values_that_are_needed_all_the_same_end_it(patient_cache: Daemon):
    skipping, plain = (Run(cache, step=looking_twice_step, epochs=12) for cache in (patient_cache.address, "none"))
    assert skipping.same_as(plain)
    assert "needed all the same" in skipping.memory.off and skipping.kinds[-2] == "Tensor"


@pytest.mark.parametrize("odd", ODD)
def test_batches_that_cannot_be_taken_apart_are_loaded(odd: str, patient_cache: Daemon):
    def step(model: nn.Module, batch: Any) -> Tensor:
        images = torch.stack(batch[0]) if isinstance(batch[0], list) else batch[0]
        return nn.functional.cross_entropy(model(images), batch[1])

    def run(cache: str) -> Run:
        return Run(cache, step=step, collate_fn=ODD[odd], shuffle=False)

    skipping, plain = run(patient_cache.address), run("none")
    assert skipping.same_as(plain)


@pytest.mark.parametrize(
    "make",
    [
        lambda: wrap(DataLoader(Images(), batch_size=None), skip_loading=True),
        lambda: wrap(
            DataLoader(type("NoLength", (), {"__getitem__": lambda self, index: index})(), sampler=[0]),
            skip_loading=True,
        ),
    ],
)
def test_what_has_no_numbers_is_refused(make: Callable[[], Any]):
    with pytest.raises(EgeriaError, match=r"^\[NO_SKIP_LOADING\]"):
        make()


def test_a_wrapped_loader_keeps_its_word_when_it_is_wrapped_or_pickled():
    loader = wrap(DataLoader(list(range(9)), 3), skip_loading=True)
    for other in (wrap(loader), pickle.loads(pickle.dumps(loader)), wrap(loader, sample_id=abs)):
        assert other.__dict__["_egeria_identity"].memory is not None
        assert [batch.tolist() for batch in other] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
