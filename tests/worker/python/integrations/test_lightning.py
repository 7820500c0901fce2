"""The callback for Lightning: two ranks, accumulation, clipping, mixed precision, resume, loggers."""

from __future__ import annotations

import csv
import json
import pathlib
import sys

import lightning as L
import pytest
import torch
import torchmetrics
from cache_daemon import Daemon, wait_until_kept
from example_scripts import launch, readings, run
from harness import Controller
from launching import HERE
from lightning_job import Module
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from egeria import Config, EgeriaError
from egeria.integrations.lightning import EgeriaCallback

JOB = HERE / "lightning_job.py"
FROZEN, STATISTICS, ACTIVE = "model.0.0.weight", "model.0.1.running_mean", "model.3.weight"


def fit(output: pathlib.Path, *arguments: object) -> dict:
    launch(JOB, output, *arguments, folder=output.parent)
    return json.loads((output / "report.json").read_text())


def checkpoint(output: pathlib.Path, step: int) -> dict:
    return torch.load(output / f"step={step}.ckpt", weights_only=False)


def weights(output: pathlib.Path, step: int) -> dict[str, torch.Tensor]:
    return checkpoint(output, step)["state_dict"]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict]:
    """A training of 20 steps, 4 an epoch, with two layer modules frozen from step 4 to step 14."""
    output = tmp_path_factory.mktemp("whole") / "out"
    return output, fit(output)


def test_a_fit_freezes_and_unfreezes_under_ddp_with_accumulation_and_clipping(whole):
    output, report = whole
    assert report["attached"] == "DistributedDataParallel"
    assert report["switches"] == [[4, 2, True], [14, 0, True]]
    assert report["steps"] == 20 and report["total_steps"] == 20
    for name in (FROZEN, STATISTICS):
        assert torch.equal(weights(output, 8)[name], weights(output, 12)[name])
        assert not torch.equal(weights(output, 12)[name], weights(output, 16)[name])
    assert not torch.equal(weights(output, 8)[ACTIVE], weights(output, 12)[ACTIVE])


def test_numbers_go_to_the_trainers_loggers(whole):
    with (whole[0] / "log" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    name = "egeria/frozen_prefix"
    prefixes = {int(row["step"]): float(row[name]) for row in rows if row[name]}
    assert prefixes == {step: 2.0 if 4 <= step < 14 else 0.0 for step in range(2, 21, 2)}


def test_a_resume_inside_a_frozen_phase_equals_the_uninterrupted_training(whole, tmp_path: pathlib.Path):
    output, report = whole
    resumed = fit(tmp_path / "out", "--resume", output / "step=8.ckpt")
    assert resumed["switches"] == report["switches"] and resumed["steps"] == 20
    for step in (12, 16, 20):
        assert same(weights(tmp_path / "out", step), weights(output, step))


def test_mixed_precision_resumes_as_exactly(tmp_path: pathlib.Path):
    options = ("--precision", "bf16-mixed", "--plans", "[[6, 3]]")
    fit(tmp_path / "one", *options)
    fit(tmp_path / "two", *options, "--resume", tmp_path / "one" / "step=8.ckpt")
    assert same(weights(tmp_path / "two", 20), weights(tmp_path / "one", 20))


def test_checkpoints_go_from_egeria_to_plain_lightning_and_back(whole, tmp_path: pathlib.Path):
    output, _ = whole
    fit(tmp_path / "plain", "--plain", "--resume", output / "step=8.ckpt")
    assert "EgeriaCallback" not in checkpoint(tmp_path / "plain", 12)["callbacks"]
    assert not torch.equal(weights(tmp_path / "plain", 12)[FROZEN], weights(output, 8)[FROZEN])
    back = fit(tmp_path / "back", "--plans", "[[16, 1]]", "--resume", tmp_path / "plain" / "step=12.ckpt")
    assert back["switches"] == [[16, 1, True]] and back["steps"] == 20
    assert torch.equal(weights(tmp_path / "back", 16)[FROZEN], weights(tmp_path / "back", 20)[FROZEN])


# In this process, on one rank.

DATA = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
LABELS = (DATA.sum(1) > 0).long()


def trainer_of(folder: pathlib.Path, callback: EgeriaCallback, **options) -> L.Trainer:
    options = {"max_epochs": 1, "logger": False, "enable_checkpointing": False, **options}
    return L.Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        callbacks=[callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def loader(batch: int = 8) -> DataLoader:
    return DataLoader(TensorDataset(DATA, LABELS), batch)


class Layers(Module):
    """A LightningModule that is the network itself."""

    def __init__(self) -> None:
        L.LightningModule.__init__(self)
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.fail_at = -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x).relu()).relu())

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        if index == self.fail_at:
            raise ValueError("out of memory, say")
        return nn.functional.cross_entropy(self(batch[0]), batch[1])


def test_a_callback_serves_one_fit_after_another_and_one_that_failed(tmp_path: pathlib.Path):
    callback = EgeriaCallback(config=Config(plans=[(2, 1)]))
    module = Layers()
    module.fail_at = 4
    with pytest.raises(ValueError, match="out of memory"):
        trainer_of(tmp_path, callback).fit(module, loader())
    first = callback.session
    assert first.prefix == 1 and all(parameter.requires_grad for parameter in module.parameters())
    module.fail_at = -1
    trainer_of(tmp_path, callback).fit(module, loader())
    assert callback.session is not first and callback.session.summary()["steps"] == 8


class Logging(Layers):
    """Lightning and its metrics note facts on the module at each step, which have nothing to do with its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torchmetrics.MeanMetric()

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = super().training_step(batch, index)
        self.mean(loss)
        self.log_dict({"loss": loss, "mean": self.mean})
        return loss


@pytest.mark.parametrize("kind", [Layers, Logging])
def test_a_cache_skips_frozen_layers_and_changes_no_bit(
    kind: type[Layers], tmp_path: pathlib.Path, patient_cache: Daemon
):
    class UntilKept(L.Callback):
        def on_train_batch_end(self, *_) -> None:
            wait_until_kept(callback.session)

    found = {}
    for cache in ("none", patient_cache.address):
        torch.manual_seed(0)
        module = kind()
        callback = EgeriaCallback(
            modules=["first", "second", "head"], config=Config(plans=[(2, 2)], cache=cache, cache_use="always")
        )
        trainer = trainer_of(tmp_path, callback, max_epochs=5)
        trainer.callbacks.append(UntilKept())
        trainer.fit(module, loader())
        found[cache] = [value.clone() for value in module.state_dict().values()]
    assert all(map(torch.equal, *found.values()))
    counters = callback.session.cache_counters()
    assert counters["hits"] > 64 and counters["passes_skipped"] > 8, counters


class Frozen(Layers):
    """At the module's level, so that no code which is still to run seems to make another optimizer."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.head.parameters(), 0.1)


@pytest.mark.parametrize("asks", [False, True])
def test_what_the_script_has_frozen_is_skipped(asks: bool, tmp_path: pathlib.Path, patient_cache: Daemon):
    """With `asks` what is frozen asks for gradients, and is in no optimizer."""

    class UntilKept(L.Callback):
        def __init__(self, callback: EgeriaCallback) -> None:
            self._callback = callback

        def on_train_batch_end(self, *_) -> None:
            wait_until_kept(self._callback.session)

    def fit(cache: str) -> tuple[Frozen, EgeriaCallback]:
        torch.manual_seed(0)
        module = Frozen()
        for layer in (module.first, module.second):
            layer.requires_grad_(asks)
        config = Config(controller="none", policy="none", cache=cache, cache_use="always")
        callback = EgeriaCallback(modules=["first", "second", "head"], config=config)
        trainer = trainer_of(tmp_path, L.Callback() if cache == "none" else callback, max_epochs=5)
        trainer.callbacks += [] if cache == "none" else [UntilKept(callback)]
        trainer.fit(module, loader())
        return module, callback

    plain, _ = fit("none")
    # No code behind this line makes an optimizer, which might get what gathers in the gradients.
    module, callback = fit(patient_cache.address)
    assert all(map(torch.equal, plain.state_dict().values(), module.state_dict().values()))
    counters = callback.session.cache_counters()
    assert counters["hits"] > 64 and counters["passes_skipped"] > 8, counters
    assert callback.session.summary()["frozen_by_script"] == 2


def test_the_progress_bar_shows_what_is_frozen_and_saved(tmp_path: pathlib.Path):
    callback = EgeriaCallback(config=Config(plans=[(2, 1)]))
    trainer = trainer_of(tmp_path, callback, log_every_n_steps=1)
    trainer.fit(Layers(), loader())
    shown = trainer.progress_bar_metrics
    assert 0 < shown["egeria/frozen_share"] < 1 and "egeria/net_saved_seconds" in shown


def test_the_session_gets_the_loss_of_each_step(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    seen = []
    monkeypatch.setattr("egeria.training.session.Session.step", lambda self, loss: seen.append(float(loss)))
    torch.manual_seed(0)
    module = Layers()
    with torch.no_grad():  # before any step; SGD with a rate of 0 then changes nothing
        expected = [nn.functional.cross_entropy(module(x), y).item() for x, y in zip(DATA.split(16), LABELS.split(16))]
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), 0.0)
    callback = EgeriaCallback(config=Config(enabled=False))
    trainer_of(tmp_path, callback, accumulate_grad_batches=2).fit(module, loader())
    assert seen == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [Module, Layers])
def test_the_controller_gets_readings_of_the_network(kind: type, tmp_path: pathlib.Path, controller: Controller):
    options = {"interval_steps": 2, "window": 3, "bootstrap": False, "batch_size": 8}
    callback = EgeriaCallback(
        config=Config(controller=controller.address, policy="plasticity", options=options, training_job="fit")
    )

    class UntilRead(L.Callback):
        """Goes on until some readings have arrived, however busy the machine is."""

        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if trainer.current_epoch % 25 == 24:
                trainer.should_stop = len(readings("fit", controller.address, tmp_path)) > 2

    trainer = trainer_of(tmp_path, callback, max_epochs=5000)
    trainer.callbacks.append(UntilRead())
    trainer.fit(kind(), loader())
    assert callback.session.modules[0].name == {Module: "0.0", Layers: "first"}[kind]
    assert trainer.should_stop


def test_a_checkpoint_after_the_fit_still_has_the_state(tmp_path: pathlib.Path):
    callback = EgeriaCallback(config=Config(plans=[(2, 1)]))
    trainer = trainer_of(tmp_path, callback)
    trainer.fit(Layers(), loader())
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    state = torch.load(tmp_path / "end.ckpt", weights_only=False)["callbacks"]["EgeriaCallback"]
    assert state["step"] == 8 and state["frozen_prefix"] == 1
    callback = EgeriaCallback(config=Config(plans=[(12, 0)]))
    trainer = trainer_of(tmp_path, callback, max_epochs=2)
    trainer.fit(Layers(), loader(), ckpt_path=tmp_path / "end.ckpt", weights_only=False)
    assert [(entry.step, entry.frozen_prefix) for entry in callback.session.switches] == [(2, 1), (12, 0)]


def fails(module: L.LightningModule, folder: pathlib.Path, **options) -> str:
    with pytest.raises(EgeriaError) as caught:
        trainer_of(folder, EgeriaCallback(**options)).fit(module, loader())
    return str(caught.value)


def test_what_cannot_be_attached_is_named_before_the_first_step(tmp_path: pathlib.Path):
    class Two(Layers):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    assert (
        fails(Two(), tmp_path, network="bdy")
        == "[BAD_NETWORK] the Two has no submodule 'bdy'; it has: first, second, head, body"
    )
    assert (
        fails(Two(), tmp_path, network="body")
        == "[BAD_NETWORK] the parameter 'first.weight' is trained but not in 'body'; give the submodule that holds "
        "all of them, or leave `network` out"
    )

    class Untrained(Layers):
        def configure_optimizers(self) -> None:
            return None

    assert "[NO_OPTIMIZER] configure_optimizers() returned none" in fails(Untrained(), tmp_path)


def test_without_lightning_the_import_says_what_to_install(tmp_path: pathlib.Path):
    code = (
        "import sys; sys.modules['lightning'] = sys.modules['lightning.pytorch'] = None; "
        "import egeria.integrations.lightning"
    )
    done = run([sys.executable, "-c", code], tmp_path)
    assert done.returncode != 0
    assert "egeria.integrations.lightning needs Lightning: pip install 'egeria[lightning]'" in done.stderr


def test_pytorch_lightning_under_its_older_name_is_served_too(tmp_path: pathlib.Path):
    code = (
        "import sys, pytorch_lightning as pl; sys.modules['lightning'] = None; "
        "from egeria.integrations.lightning import EgeriaCallback; "
        "assert issubclass(EgeriaCallback, pl.Callback)"
    )
    done = run([sys.executable, "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
