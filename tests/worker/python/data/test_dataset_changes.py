"""Somebody changes what an index stands for while samples are left out: their files, lists, transforms, versions."""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cache_daemon import Daemon
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset
from unloaded_runs import SAMPLES, Images, Run, image

from egeria.data import Variants, wrap
from egeria.data.dataset_look import DatasetLook
from egeria.data.sample_stamp import read, stamp_of

SIZE = 6


class Listing(Dataset):
    """Has SIZE samples in files, and the attributes that it is given."""

    def __init__(self, path_of: Callable[[Any, int], Any], **attributes: Any):
        self.__dict__.update(attributes)
        self._path_of = path_of

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> bytes:
        return pathlib.Path(self._path_of(self, index)).read_bytes()


@dataclasses.dataclass
class Entry:
    file: pathlib.Path
    label: int = 0


class Table:
    """Looks like a DataFrame of pandas."""

    class Row(list):
        iloc = None

    def __init__(self, rows: list[Any]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def iloc(self) -> list[Any]:
        return [Table.Row(row) for row in self.rows]


class Around(Dataset):
    """Somebody's dataset around another one."""

    def __init__(self, dataset: Any):
        self.inner = dataset

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


class Batched(Listing):
    def __getitems__(self, indices: list[int]) -> list[bytes]:
        return [self[index] for index in indices]


def names(folder: pathlib.Path, *parts: str) -> list[str]:
    return [str(folder.joinpath(*parts, f"{index}.jpg")) for index in range(SIZE)]


def image_folder(folder: pathlib.Path) -> Listing:
    samples = [(path, 0) for path in names(folder)]
    return Listing(lambda self, index: self.samples[index][0], root=str(folder), samples=samples, imgs=samples)


def by_number(folder: pathlib.Path, kind: type = Listing) -> Listing:
    return kind(lambda self, index: self.root / f"{index}.jpg", root=folder)


IN_FILES: dict[str, Callable[[pathlib.Path], Any]] = {
    "samples and imgs": image_folder,
    "paths": lambda folder: Listing(
        lambda self, index: self.files[index], files=list(map(pathlib.Path, names(folder)))
    ),
    "names in a folder": lambda folder: Listing(
        lambda self, index: os.path.join(self.root, self.names[index]),
        root=str(folder),
        names=[f"{index}.jpg" for index in range(SIZE)],
    ),
    "an array of text": lambda folder: Listing(lambda self, index: str(self.all[index]), all=np.array(names(folder))),
    "dicts": lambda folder: Listing(
        lambda self, index: self.rows[index]["image"], rows=[{"image": path, "label": 0} for path in names(folder)]
    ),
    "objects": lambda folder: Listing(
        lambda self, index: self.rows[index].file, rows=[Entry(pathlib.Path(path)) for path in names(folder)]
    ),
    "by number in a dict": lambda folder: Listing(
        lambda self, index: self.paths[index], paths=dict(enumerate(names(folder)))
    ),
    "a table": lambda folder: Listing(
        lambda self, index: self.table.rows[index][0], table=Table([[path, 0] for path in names(folder)])
    ),
    "no list": by_number,
    "no list, by batches": lambda folder: by_number(folder, Batched),
    "a subset": lambda folder: Subset(image_folder(folder), range(SIZE)),
    "a subset of a subset": lambda folder: Subset(Subset(image_folder(folder), range(SIZE)), list(range(SIZE))),
    "several": lambda folder: ConcatDataset([image_folder(folder), by_number(folder)]),
    "somebody's dataset around": lambda folder: Around(image_folder(folder)),
    "around a subset of several": lambda folder: Around(
        Subset(ConcatDataset([image_folder(folder), image_folder(folder)]), range(2 * SIZE))
    ),
    "variants": lambda folder: Variants(Around(image_folder(folder)), 1),
    "around no list": lambda folder: Around(Around(by_number(folder))),
}


def rewrite(path: pathlib.Path) -> None:
    path.write_bytes(b"another picture")


def rewrite_with_size_and_time(path: pathlib.Path) -> None:
    before = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_with_size_and_time(path: pathlib.Path) -> None:
    before, other = path.stat(), path.with_suffix(".new")
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [rewrite, rewrite_with_size_and_time, replace_with_size_and_time, os.unlink])
@pytest.mark.parametrize("kind", IN_FILES)
def test_a_file_that_changes_is_seen_without_loading_it(kind: str, change: Any, tmp_path: pathlib.Path):
    for index in range(SIZE):
        (tmp_path / f"{index}.jpg").write_bytes(b"picture %d" % index)
    dataset = IN_FILES[kind](tmp_path)
    reading = read(dataset, list(range(SIZE)))
    assert reading.samples == [b"picture %d" % index for index in range(SIZE)]
    assert [stamp_of(dataset, index, reading.files[index]) for index in range(SIZE)] == list(reading.stamps)
    change(tmp_path / "2.jpg")
    stamps = [stamp_of(dataset, index, reading.files[index]) for index in range(SIZE)]
    others = [index for index in range(SIZE) if stamps[index] != reading.stamps[index]]
    assert others == (list(range(SIZE)) if "batches" in kind else [2])


def test_files_beside_those_that_are_listed_count(tmp_path: pathlib.Path):
    for index in range(SIZE):
        (tmp_path / f"{index}.jpg").write_bytes(b"picture")
        (tmp_path / f"{index}.png").write_bytes(b"mask")
    dataset = image_folder(tmp_path)
    dataset._path_of = lambda self, index: self.samples[index][0].replace(".jpg", ".png")
    reading = read(dataset, [1, 2])
    assert reading.files == ((str(tmp_path / "1.png"),), (str(tmp_path / "2.png"),))
    rewrite(tmp_path / "2.png")
    assert [stamp_of(dataset, index, files) for index, files in zip([1, 2], reading.files)][0] == reading.stamps[0]
    assert stamp_of(dataset, 2, reading.files[1]) != reading.stamps[1]


def test_a_file_that_changes_while_it_is_read_counts_as_changed(tmp_path: pathlib.Path):
    for index in range(SIZE):
        (tmp_path / f"{index}.jpg").write_bytes(b"picture")

    class Late(Listing):
        def __getitem__(self, index: int) -> bytes:
            sample = super().__getitem__(index)
            rewrite(tmp_path / f"{index}.jpg")
            return sample

    for kind in (image_folder, by_number):
        dataset = kind(tmp_path)
        dataset.__class__ = Late
        reading = read(dataset, [3])
        assert stamp_of(dataset, 3, reading.files[0]) != reading.stamps[0]


def set_label(dataset: Any, index: int) -> None:
    dataset.targets[index] = 7


IN_MEMORY: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "an array": (
        lambda: Listing(print, data=np.zeros((SIZE, 4)), targets=[0] * SIZE),
        lambda dataset: dataset.data[2].fill(1),
    ),
    "labels": (lambda: Listing(print, targets=[0] * SIZE), lambda dataset: set_label(dataset, 2)),
    "a tensor": (lambda: Listing(print, x=torch.zeros(SIZE, 2)), lambda dataset: dataset.x[2].fill_(1)),
    "tensors": (
        lambda: TensorDataset(torch.zeros(SIZE, 3), torch.zeros(SIZE, dtype=torch.bfloat16)),
        lambda dataset: dataset.tensors[1][2:3].fill_(1),
    ),
    "bytes": (
        lambda: Listing(print, pictures=[b"picture"] * SIZE),
        lambda dataset: dataset.pictures.__setitem__(2, b"another"),
    ),
    "a subset's numbers": (
        lambda: Subset(Listing(print, targets=list(range(2 * SIZE))), list(range(SIZE))),
        lambda dataset: dataset.indices.__setitem__(2, SIZE - 1),
    ),
    "a table": (
        lambda: Listing(print, table=Table([[index, 0.5] for index in range(SIZE)])),
        lambda dataset: dataset.table.rows[2].__setitem__(1, 0.25),
    ),
}


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_a_sample_in_memory_that_changes_is_seen(kind: str):
    make, change = IN_MEMORY[kind]
    dataset = make()
    before = [stamp_of(dataset, index) for index in range(SIZE)]
    change(dataset)
    assert [index for index in range(SIZE) if stamp_of(dataset, index) != before[index]] == [2]


def test_a_stamp_is_the_same_in_another_process(tmp_path: pathlib.Path):
    """Workers that are spawned have other hashes of texts."""
    (tmp_path / "0.jpg").write_bytes(b"picture")
    loader = DataLoader(Stamping(str(tmp_path / "0.jpg")), 1, num_workers=1, multiprocessing_context="spawn")
    assert next(iter(loader)).tolist() == [stamp_of(Stamping(str(tmp_path / "0.jpg")), 0)]


class Stamping(Dataset):
    def __init__(self, path: str):
        self.paths = [(path, "a text")]

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return stamp_of(self, index)


# The dataset as a whole.


class Scale:
    def __init__(self, factor: float):
        self.factor = factor
        self.steps = [self.__class__.__name__]


def shifted_by(value: float) -> Callable[[float], float]:
    return lambda x: x + value


def dataset_with(**attributes: Any) -> Listing:
    return Listing(print, **attributes)


def shards(folder: pathlib.Path) -> Listing:
    (folder / "shard.tar").write_bytes(b"shard")
    return dataset_with(shards=[str(folder / "shard.tar")])


CHANGES: dict[str, tuple[Callable[[pathlib.Path], Any], Callable[[Any], Any], str]] = {
    "a size": (lambda _: dataset_with(size=160), lambda d: setattr(d, "size", 224), "size"),
    "a transform": (lambda _: dataset_with(transform=Scale(1)), lambda d: setattr(d, "transform", None), "transform"),
    "inside a transform": (
        lambda _: dataset_with(transform=[Scale(1), Scale(2)]),
        lambda d: setattr(d.transform[1], "factor", 3),
        "transform[1].factor",
    ),
    "a module's buffer": (
        lambda _: dataset_with(transform=nn.Sequential(nn.BatchNorm1d(3))),
        lambda d: d.transform[0].running_mean.fill_(2),
        "transform._modules['0']._buffers['running_mean']",
    ),
    "a function": (
        lambda _: dataset_with(transform=shifted_by(1)),
        lambda d: setattr(d, "transform", shifted_by(2)),
        "transform()[2][0]",
    ),
    "inside several": (
        lambda _: ConcatDataset([dataset_with(size=1), dataset_with(size=1)]),
        lambda d: setattr(d.datasets[1], "size", 2),
        "datasets[1].size",
    ),
    "inside a subset": (
        lambda _: Subset(Around(dataset_with(size=1)), range(3)),
        lambda d: setattr(d.dataset.inner, "size", 2),
        "dataset.inner.size",
    ),
    "the fingerprint of a datasets.Dataset": (
        lambda _: dataset_with(_fingerprint="a"),
        lambda d: setattr(d, "_fingerprint", "b"),
        "_fingerprint",
    ),
    "a file for all": (shards, lambda d: rewrite(pathlib.Path(d.shards[0])), "shards[0]"),
    "statistics": (lambda _: dataset_with(mean=np.zeros(3)), lambda d: d.mean.fill(1), "mean"),
    "a longer subset": (lambda _: Subset(range(9), [1, 2]), lambda d: d.indices.append(3), ""),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_dataset_that_becomes_another_one_is_seen(what: str, tmp_path: pathlib.Path):
    make, change, name = CHANGES[what]
    dataset = make(tmp_path)
    look = DatasetLook(dataset)
    assert look.change() is None
    change(dataset)
    assert look.change() == name and look.change() is None


def test_what_says_nothing_about_samples_is_no_change():
    dataset = dataset_with(
        transform=Scale(2), generator=torch.Generator(), other=random.Random(0), rows=list(range(SIZE)), log=print
    )
    dataset.itself = dataset
    look = DatasetLook(dataset)
    dataset.transform = Scale(2)  # another object that is the same
    dataset.generator.manual_seed(7)
    dataset.other.random()
    dataset.rows[0] = 7  # a sample's stamp sees that
    assert look.change() is None
    dataset.loads = 1
    look.settle()
    assert look.change() is None


# Trainings.


class Files(Images):
    """Images in files whose names it makes itself."""

    def __init__(self, folder: pathlib.Path):
        super().__init__()
        self.root = folder
        for index in range(SAMPLES):
            torch.save(image(index), folder / f"{index}.pt")

    def sample(self, index: int) -> Any:
        return torch.load(self.root / f"{index}.pt"), index % 10


FORKING = {"num_workers": 2, "multiprocessing_context": "fork"}


@pytest.mark.parametrize("options", [{}, FORKING, {**FORKING, "persistent_workers": True}], ids=str)
def test_a_file_whose_name_nobody_lists_is_found_when_it_changes(
    options: Any, patient_cache: Daemon, tmp_path: pathlib.Path
):
    def run(cache: str) -> Run:
        folder = tmp_path / cache.rpartition("/")[2]
        folder.mkdir()
        dataset = Files(folder)

        def change(epoch: int, _: nn.Module) -> None:
            if epoch == 4:
                torch.save(image(5, 3.0), folder / "5.pt")

        return Run(cache, dataset, between=change, epochs=7, **options)

    skipping, plain = run(patient_cache.address), run("none")
    assert skipping.same_as(plain) and skipping.memory.off is None
    assert skipping.memory.counts["changed"] == 1
    assert skipping.loads[4] < SAMPLES and skipping.loads[6] < SAMPLES / 2


class Growing(Images):
    """Its samples depend on a number, and it counts them."""

    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def sample(self, index: int) -> Any:
        self.count += 1
        return image(index) * self.scale, index % 10


@pytest.mark.parametrize("options", [{}, FORKING], ids=str)
def test_a_dataset_that_is_changed_between_epochs_is_learned_anew(options: Any, patient_cache: Daemon):
    def run(cache: str) -> Run:
        dataset = Growing()

        def change(epoch: int, _: nn.Module) -> None:
            if epoch == 4:
                dataset.scale = 2.0

        return Run(cache, dataset, between=change, epochs=7, **options)

    skipping, plain = run(patient_cache.address), run("none")
    assert skipping.same_as(plain) and skipping.memory.off is None
    assert skipping.loads[3] < SAMPLES / 2 and skipping.loads[4] == SAMPLES and skipping.loads[6] < SAMPLES / 2


def test_a_dataset_that_the_loop_changes_in_an_epoch_is_seen_at_the_next_batch(patient_cache: Daemon):
    def run(cache: str) -> Run:
        dataset, steps = Growing(), collections.Counter()

        def step(model: nn.Module, batch: Any) -> Tensor:
            steps["made"] += 1
            dataset.scale = 2.0 if steps["made"] > 33 else 1.0  # within the sixth epoch
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        return Run(cache, dataset, step, epochs=8)

    skipping, plain = run(patient_cache.address), run("none")
    assert skipping.same_as(plain) and skipping.memory.counts["left_out"] > SAMPLES


def test_another_version_loads_everything_once(patient_cache: Daemon):
    """Nothing else shows that these samples are others."""
    shift, version = [0.0], ["1"]

    class Remote(Images):
        def sample(self, index: int) -> Any:
            return image(index, shift[0]), index % 10

    def run(cache: str, wrapping: Any) -> Run:
        shift[0], version[0] = 0.0, "1"

        def change(epoch: int, _: nn.Module) -> None:
            if epoch == 4:
                shift[0], version[0] = 1.0, "2"

        return Run(cache, Remote(), between=change, epochs=7, wrapping=wrapping)

    skipping = run(patient_cache.address, {"version": lambda: version[0]})
    assert skipping.same_as(run("none", {})) and skipping.memory.off is None
    assert skipping.loads[3] < SAMPLES / 2 and skipping.loads[4] == SAMPLES and skipping.loads[6] < SAMPLES / 2


def test_a_loader_that_is_wrapped_with_another_version_knows_nothing_yet():
    loader = wrap(DataLoader(Images(), 8), skip_loading=True, version="1")
    memory = loader.__dict__["_egeria_identity"].memory
    assert wrap(loader, version="1", skip_loading=True).__dict__["_egeria_identity"].memory is memory
    other = wrap(loader, version="2").__dict__["_egeria_identity"]
    assert other.memory is not memory and other.options.skip_loading and other.options.version == "2"
    assert wrap(loader, sample_id=abs).__dict__["_egeria_identity"].options.version == "1"


def test_a_dataset_that_changes_time_and_again_is_named(patient_cache: Daemon, caplog: pytest.LogCaptureFixture):
    dataset = Growing()
    dataset.epoch = 0

    def change(epoch: int, _: nn.Module) -> None:
        dataset.epoch = epoch

    Run(patient_cache.address, dataset, between=change, epochs=7)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sum("'epoch' of the dataset has changed" in line for line in said) == 1
