"""doctor: what it finds in good and in bad models, from code and from the command line."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

import pytest
import torch
from example_scripts import BIN, EXAMPLES, environment
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import egeria
from egeria import EgeriaError
from egeria.doctor import examine
from egeria.doctor.command import load_build, main, run_build


def network(*, width: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(*blocks, nn.Linear(width, 4))


def batch(width: int = 16) -> torch.Tensor:
    return torch.randn(8, width, generator=torch.Generator().manual_seed(1))


class Branching(nn.Module):
    """Cannot be exported: its path depends on what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.head(self.second(x) if x.sum() > 0 else self.second(-x))


def test_a_good_model_is_cut_exported_and_measured():
    model = network()
    report = egeria.doctor(model, batch(), optimizer=torch.optim.SGD(model.parameters(), 0.1), rounds=2)
    assert report.model == "Sequential" and report.parameters == sum(p.numel() for p in model.parameters())
    assert [module.name for module in report.modules] == ["0.0", "1.0", "2.0", "3"]
    assert sum(module.parameters for module in report.modules) == report.parameters
    assert sum(module.share for module in report.modules) == pytest.approx(1)
    assert all(module.reference == "controller" and module.reason is None for module in report.modules)
    assert [saving.frozen_prefix for saving in report.savings] == [1, 2, 3]
    assert all(0 < saving.least <= saving.ratio <= saving.most for saving in report.savings)
    assert [saving.frozen_share for saving in report.savings] == sorted(s.frozen_share for s in report.savings)
    assert report.refusal is None
    text = str(report)
    assert "attach() would take this model." in text and "controller, " in text


def test_the_backends_of_a_layer_module_are_measured_on_its_own_inputs():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)), nn.Linear(64, 4))
    for backends in (module.backends for module in egeria.doctor(model, torch.randn(32, 64), rounds=1).modules):
        able = [backend for backend in backends if backend.refusal is None]
        assert {"aten", "bf16", "int8"} <= {backend.name for backend in backends}
        assert [backend.ratio for backend in able] == sorted(backend.ratio for backend in able)
        known = {backend.name: backend for backend in able}
        assert known["aten"].ratio == 1 and known["aten"].noise == 0
        # A layer of random inputs in few bits is not what it is in many.
        assert 0 < known["int8"].noise < 1e-2 and known["int8"].ratio > 0
        assert all(backend.ratio is None and backend.noise is None for backend in backends if backend.refusal)


def test_each_round_measures_every_frozen_prefix_against_none(monkeypatch: pytest.MonkeyPatch):
    taken = []

    def seconds(loss_of, parameters) -> float:
        """Takes as long as there are parameters to train, and longer in every other step."""
        loss_of().backward()
        active = sum(parameter.requires_grad for parameter in parameters)
        assert sum(parameter.grad is not None for parameter in parameters) == active
        for parameter in parameters:
            parameter.grad = None
        taken.append(active)
        return float(active)

    monkeypatch.setattr("egeria.doctor.step_costs.step_seconds", seconds)
    report = examine(network(), batch(), rounds=2)
    # The first round warms up. It measures the cache too; the network has no convolution, so that no form is made.
    assert [active for active in taken if active == 14] == [14] * 9
    assert [saving.ratio for saving in report.savings] == [10 / 14, 6 / 14, 2 / 14]


def test_of_many_layer_modules_some_prefixes_are_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("egeria.doctor.step_costs.step_seconds", lambda loss_of, parameters: 1.0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(60)))
    report = examine(model, torch.ones(2, 4), modules=[str(i) for i in range(60)], rounds=1)
    prefixes = [saving.frozen_prefix for saving in report.savings]
    assert len(prefixes) == 16 and prefixes[-1] == 59 and prefixes == sorted(set(prefixes))


def convolutions(frozen: int = 0) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(3)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    for layer in layers[:frozen]:
        layer.requires_grad_(False)
    return model


def operations(loss_of, parameters) -> float:
    """Stands for step_seconds(): a step takes as long as it has floating-point operations to do."""
    for parameter in parameters:
        parameter.grad = None
    with FlopCounterMode(display=False) as counter:
        loss_of().backward()
    return float(counter.get_total_flops())


def test_what_a_step_costs_from_the_cache_and_what_it_keeps_are_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("egeria.doctor.step_costs.step_seconds", operations)
    images = torch.randn(8, 8, 24, 24, generator=torch.Generator().manual_seed(1))
    labels = torch.zeros(8, dtype=torch.long)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), 4)
    report = examine(convolutions(), images, loader=loader, modules=["0", "1", "2", "5"], rounds=3)
    assert [saving.sample_bytes for saving in report.savings] == [8 * 24 * 24 * 4] * 2 + [8 * 4], "pooled at the end"
    assert all(saving.cached is not None and saving.reason is None for saving in report.savings)
    # Frozen convolutions leave a third of a step, since nothing goes backward through them. From the cache they cost
    # nothing.
    assert 0.3 < report.savings[2].ratio < 0.4 and report.savings[2].cached < 0.01
    assert report.loading is not None and report.loading.samples == 8 and report.loading.batch > 0
    text = str(report)
    assert "18 KiB" in text and "144 KiB" in text and "32 B" in text and "Loading a batch takes" in text
    assert re.search(r" \d+ % \(\d+ to \d+\) ", text)


def test_what_the_script_has_frozen_has_a_row_of_its_own():
    model = convolutions(frozen=2)
    report = examine(model, torch.randn(8, 8, 24, 24), modules=["0", "1", "2", "5"], rounds=3)
    first = report.savings[0]
    assert (first.frozen_prefix, first.frozen_share) == (0, 0) and first.sample_bytes == 8 * 24 * 24 * 4
    assert [saving.frozen_prefix for saving in report.savings] == [0, 1, 2, 3]
    assert egeria.reinvest(100, egeria.Config(policy="none"), report) == 100


def test_why_the_cache_cannot_keep_a_prefix_is_said():
    model = nn.Sequential(BatchMean(), nn.Linear(8, 8), nn.Linear(8, 2))
    report = examine(model, torch.randn(8, 8), modules=["0", "1", "2"], rounds=1)
    assert all(saving.cached is None and "[BATCH_DEPENDENT]" in saving.reason for saving in report.savings)
    assert "the cache cannot keep k = 1, 2: [BATCH_DEPENDENT]" in str(report)


class BatchMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * (x - x.mean(0))


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(*network(), nn.Dropout(0.5)).eval()
    model[0][0].weight.requires_grad_(False)
    model(batch()).sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradient = model[3].weight.grad.clone()
    state = torch.get_rng_state()
    examine(model, batch(), rounds=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model[3].weight.grad, gradient)
    assert not model[0][0].weight.requires_grad and model[1][0].weight.requires_grad
    assert not any(module.training or module._forward_pre_hooks for module in model.modules())


def test_what_cannot_be_exported_runs_in_the_training_process_and_has_a_reason():
    report = examine(Branching(), torch.randn(8, 8), rounds=1)
    assert {module.reference for module in report.modules} == {"worker"}
    assert all("torch.export" in module.reason for module in report.modules)
    assert "training process, bf16" in str(report)
    assert "not on the controller: 0, 1, 2: torch.export" in str(report)


def test_a_model_that_fails_in_evaluation_mode_is_named():
    class Moody(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.training:
                raise ValueError("no evaluation today")
            return super().forward(x)

    report = examine(Moody(nn.Linear(8, 8), nn.Linear(8, 2)), torch.randn(8, 8), rounds=1)
    assert report.modules[0].reason == "in evaluation mode the model raises ValueError: no evaluation today"


def test_what_attach_would_refuse_is_reported_with_what_to_do():
    model = nn.Sequential(nn.Embedding(8, 8, max_norm=1.0), nn.Linear(8, 8), nn.Linear(8, 8))
    report = examine(model)
    assert "[EMBEDDING_MAX_NORM]" in report.refusal and "leave max_norm out" in report.refusal
    assert "attach() would refuse: [EMBEDDING_MAX_NORM]" in str(report)
    model = network()
    report = examine(model, optimizer=torch.optim.SGD(network().parameters(), 0.1))
    assert "[MODEL_NOT_IN_OPTIMIZER]" in report.refusal
    report = examine(nn.Linear(4, 4), torch.ones(2, 4))
    assert "[BAD_PARTITION]" in report.refusal and report.modules == () and report.savings == ()
    report = examine(network(), modules=["0", "9"])
    assert "[BAD_PARTITION] '9' matches no submodule's whole name" in report.refusal


def test_what_is_not_known_is_said():
    assert "no example batch: what exports and what a step costs is not known" in examine(network()).notes
    assert "no optimizer: whether it holds all parameters is not checked" in examine(network()).notes
    assert {module.reference for module in examine(network()).modules} == {"unknown"}

    class Unique(nn.Sequential):
        def __deepcopy__(self, memo: dict) -> None:
            raise TypeError("there can be only one")

    report = examine(Unique(*network()), batch())
    assert any("cannot be copied (TypeError: there can be only one)" in note for note in report.notes)

    def around(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return model[3](model[2](model[1](model[0](inputs)))).sum()

    report = examine(network(), batch(), around, rounds=1)
    assert any("does not call the model itself" in note for note in report.notes) and len(report.savings) == 3


def test_batches_of_all_kinds_are_taken():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
            out = self.head(self.two(self.one(left) + right))
            return {"loss": out.square().mean(), "logits": out}

    left, right = torch.randn(8, 8), torch.randn(8, 8)
    for example in ((left, right), {"left": left, "right": right}):
        assert {module.reference for module in examine(Two(), example, rounds=1).modules} == {"controller"}
    report = examine(network(), {"anything": batch()}, lambda model, b: model(b["anything"]).sum(), rounds=1)
    assert report.modules[0].reference == "controller"


@pytest.mark.parametrize(
    "example,loss_fn,message",
    [
        (torch.randn(8, 3), None, "RuntimeError"),
        (batch(), lambda model, inputs: model(inputs), "the loss must be a tensor with one number"),
        (batch(), lambda model, inputs: model(inputs).sum().detach(), "that has a gradient"),
        (batch(), lambda model, inputs: 1.0, "the loss must be a tensor"),
    ],
)
def test_a_batch_on_which_the_model_fails_is_an_error(example, loss_fn, message: str):
    with pytest.raises(EgeriaError, match=r"(?s)\[BAD_BATCH\] the model fails.*give a batch as in") as caught:
        examine(network(), example, loss_fn)
    assert message in str(caught.value)


class _Graph:
    """A batch whose tensors nobody sees."""

    def __init__(self) -> None:
        self.nodes = torch.randn(6, 8)


class _OfGraphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))

    def forward(self, graph: _Graph) -> torch.Tensor:
        return self.layers(graph.nodes)


@pytest.mark.parametrize(
    "model, example, why",
    [
        (_OfGraphs(), _Graph(), "no reading can be taken"),
        (_OfGraphs().layers, torch.randn(1, 8), "the example batch has one sample"),
    ],
    ids=["no tensors", "one sample"],
)
def test_what_gives_no_reading_is_measured_all_the_same(model: nn.Module, example: object, why: str):
    report = examine(model, example, lambda model, batch: model(batch).square().mean(), rounds=1)
    assert report.refusal is None and report.savings
    assert any(why in note for note in report.notes), report.notes


def test_a_model_that_returns_no_number_is_an_error():
    class Silent(nn.Sequential):
        def forward(self, x: torch.Tensor) -> None:
            super().forward(x)

    with pytest.raises(EgeriaError, match="returns no floating-point tensor; give a loss_fn"):
        examine(Silent(nn.Linear(8, 8), nn.Linear(8, 2)), torch.ones(2, 8))


# The command.

SOURCE = """
import helper_of_the_model, torch
from torch import nn
def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
def full():
    model = build()
    batch = torch.randn(16, 8), torch.zeros(16, dtype=torch.long)
    loss_of = lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])
    return model, batch, loss_of, torch.optim.AdamW(model.parameters())
def bad_batch():
    return build(), torch.randn(16, 9)
def scripted():
    model = build()
    model[2] = torch.jit.script(nn.Linear(*model[2].weight.shape[::-1]))
    return model
def nothing(): return None
def too_many(): return build(), None, None, None, None, None
def strange(): return build(), None, "loss"
def needs(argument): return build()
text = "not a function"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("models")
    (path / "some_model.py").write_text(SOURCE)
    (path / "helper_of_the_model.py").write_text("")
    (path / "broken_model.py").write_text("raise RuntimeError('starts training')")
    return path


def doctor(*arguments: object, folder: pathlib.Path) -> subprocess.CompletedProcess:
    """`egeria doctor`, as it is installed."""
    return subprocess.run(
        [BIN / "egeria", "doctor", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment(EGERIA_PYTHON=sys.executable),
        timeout=200,
        check=False,
    )


def test_the_command_prints_a_report_or_json(folder: pathlib.Path):
    done = doctor("some_model.py:full", "--rounds", 2, folder=folder)
    assert done.returncode == 0, done.stderr
    assert "Sequential: 162 parameters, 3 layer modules" in done.stdout
    assert "attach() would take this model." in done.stdout
    done = doctor("some_model.py:full", "--json", "--rounds", 2, "--modules", "0", "2|3", "4", folder=folder)
    report = json.loads(done.stdout)
    assert [module["name"] for module in report["modules"]] == ["0", "2-3", "4"]
    assert report["refusal"] is None and len(report["savings"]) == 2 and "no optimizer" not in str(report["notes"])


def test_the_command_looks_at_an_example_script(folder: pathlib.Path):
    (folder / "resnet.py").write_text(
        f"import sys, torch; sys.path.insert(0, {str(EXAMPLES)!r})\n"
        "def build():\n    from cifar_resnet import ResNet\n    return ResNet(20), torch.randn(8, 3, 32, 32)\n"
    )
    done = doctor("resnet.py:build", "--json", "--rounds", 1, folder=folder)
    report = json.loads(done.stdout)
    assert report["parameters"] == 272_474 and len(report["modules"]) == 7
    assert {module["reference"] for module in report["modules"]} == {"controller"}


def test_the_exit_code_tells_a_refusal_from_bad_input(folder: pathlib.Path, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["some_model.py:build"]) == 0
    assert main(["some_model.py:scripted"]) == 1
    assert "attach() would refuse: [SCRIPTED_MODULE]" in capsys.readouterr().out
    assert main(["some_model.py:bad_batch"]) == 2
    assert "egeria doctor: [BAD_BATCH]" in capsys.readouterr().err
    for arguments in (["some_model.py:build", "--rounds", "0"], ["some_model.py:build", "--samples", "1"], []):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2


@pytest.mark.parametrize(
    "target,message",
    [
        ("some_model.py", "does not name a function; give model.py:build or package.module:build"),
        ("some_model.py:a-b", "does not name a function"),
        ("no_such_file.py:build", "no_such_file.py cannot be loaded: FileNotFoundError: there is no such file"),
        ("broken_model.py:build", "RuntimeError: starts training; it is run as an import, so keep the training"),
        ("no_such_package.model:build", "ModuleNotFoundError"),
        ("some_model.py:missing", "has no function 'missing'; define missing() so that it returns the model, or"),
        ("some_model.py:text", "has no function 'text'"),
        (
            "some_model.py:needs",
            "TypeError: needs() missing 1 required positional argument: 'argument'; it is called without arguments",
        ),
        ("some_model.py:nothing", "returned (); it must return the model, or (model, batch)"),
        ("some_model.py:too_many", "returned (Sequential); it must return"),
        ("some_model.py:strange", "returned (Sequential, str); it must return"),
    ],
)
def test_a_build_function_that_cannot_be_used_is_named(target: str, message: str, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(EgeriaError, match=r"^\[BAD_BUILD\]") as caught:
        run_build(target)
    assert message in str(caught.value)


def test_a_function_in_an_installed_package_is_found():
    assert load_build("torch.nn:Linear") is nn.Linear
