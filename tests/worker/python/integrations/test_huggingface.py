"""The callback for Hugging Face's Trainer: two ranks, accumulation, clipping, mixed precision, resume, loggers."""

from __future__ import annotations

import json
import logging
import pathlib
import shutil
import sys

import pytest
import torch
from cache_daemon import Daemon, wait_until_kept
from example_scripts import launch, run
from launching import HERE
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

from egeria import Config, EgeriaError
from egeria.integrations.huggingface import EgeriaCallback

JOB = HERE / "huggingface_job.py"
FROZEN = "bert.embeddings.word_embeddings.weight"  # in the first layer module
ACTIVE = "classifier.weight"  # in the last one


def train(output: pathlib.Path, *arguments: object) -> dict:
    launch(JOB, output, *arguments, folder=output.parent)
    return json.loads((output / "report.json").read_text())


def weights(output: pathlib.Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(output / f"checkpoint-{step}" / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict]:
    """A training of 20 steps with two layer modules frozen from step 4 to step 14."""
    output = tmp_path_factory.mktemp("whole") / "out"
    return output, train(output)


def test_the_trainer_freezes_and_unfreezes_under_ddp_with_accumulation_and_clipping(whole):
    output, report = whole
    assert report["world_size"] == 2 and report["wrapped"] == "DistributedDataParallel"
    assert report["switches"] == [[4, 2, True], [14, 0, True]] and report["steps"] == 20
    assert report["trainable"]
    assert torch.equal(weights(output, 4)[FROZEN], weights(output, 12)[FROZEN])
    assert not torch.equal(weights(output, 12)[FROZEN], weights(output, 16)[FROZEN])
    assert not torch.equal(weights(output, 4)[ACTIVE], weights(output, 12)[ACTIVE])


def test_numbers_go_to_the_trainers_loggers_on_rank_0_alone(whole):
    output, report = whole
    (folder,) = (output / "runs").iterdir()
    (file,) = folder.iterdir()
    events = EventAccumulator(str(file))
    events.Reload()
    prefixes = {event.step: event.value for event in events.Scalars("train/egeria/frozen_prefix")}
    assert prefixes == {step: 2.0 if 4 <= step < 14 else 0.0 for step in range(2, 21, 2)}
    logged = {entry["step"]: entry["egeria/frozen_prefix"] for entry in report["log_history"] if "loss" in entry}
    assert logged == prefixes


def test_a_resume_inside_a_frozen_phase_equals_the_uninterrupted_training(whole, tmp_path: pathlib.Path):
    output, report = whole
    resumed = train(tmp_path / "out", "--resume", output / "checkpoint-8")
    assert resumed["switches"] == report["switches"]
    for step in (12, 16, 20):
        assert same(weights(tmp_path / "out", step), weights(output, step))


def test_mixed_precision_resumes_as_exactly(tmp_path: pathlib.Path):
    train(tmp_path / "one", "--bf16", "--steps", 12, "--plans", "[[2, 3]]")
    train(
        tmp_path / "two", "--bf16", "--steps", 12, "--plans", "[[2, 3]]", "--resume", tmp_path / "one" / "checkpoint-4"
    )
    assert same(weights(tmp_path / "two", 12), weights(tmp_path / "one", 12))


def test_checkpoints_go_from_egeria_to_the_plain_trainer_and_back(whole, tmp_path: pathlib.Path):
    output, _ = whole
    plain = train(tmp_path / "plain", "--plain", "--steps", 12, "--resume", output / "checkpoint-8")
    assert plain["switches"] == []
    assert not torch.equal(weights(tmp_path / "plain", 12)[FROZEN], weights(output, 8)[FROZEN])
    # The plain trainer's file still holds the entry of the checkpoint that it began with: out of date.
    state = json.loads((tmp_path / "plain" / "checkpoint-12" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["egeria"]["session"]["frozen_prefix"] == 2
    back = train(tmp_path / "back", "--plans", "[[16, 1]]", "--resume", tmp_path / "plain" / "checkpoint-12")
    assert back["switches"] == [[16, 1, True]] and back["steps"] == 20
    assert not torch.equal(weights(tmp_path / "back", 16)[FROZEN], weights(tmp_path / "plain", 12)[FROZEN])
    assert torch.equal(weights(tmp_path / "back", 16)[FROZEN], weights(tmp_path / "back", 20)[FROZEN])


# In this process, on one rank.


class Net(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self) -> None:
        super().__init__(PretrainedConfig())
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
        self.head = torch.nn.Linear(8, 2)
        self.fail_at = -1
        self.head.calls = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.head.calls += 1
        if self.head.calls == self.fail_at:
            raise ValueError("out of memory, say")
        logits = self.head(self.layers(x))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Counting(Net):
    """Divides the loss by the number of labels that count, which the trainer gives and batches differ in."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor, **numbers: torch.Tensor) -> dict:
        logits = self.head(self.layers(x))
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / numbers["num_items_in_batch"]
        return {"loss": loss, "logits": logits}


DATA = [{"x": torch.randn(8, generator=torch.Generator().manual_seed(i)), "labels": i % 2} for i in range(32)]


def trainer_of(
    folder: pathlib.Path, callback: TrainerCallback, kind: type[Net] = Net, data: list[dict] = DATA, **options
) -> Trainer:
    options = {"max_steps": 6, "per_device_train_batch_size": 4, "logging_steps": 1, **options}
    arguments = TrainingArguments(
        str(folder), use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", **options
    )
    return Trainer(kind(), arguments, train_dataset=data, callbacks=[callback])


def test_a_callback_serves_one_training_after_another_and_one_that_failed(tmp_path: pathlib.Path):
    callback = EgeriaCallback(config=Config(plans=[(2, 1)]))
    trainer = trainer_of(tmp_path, callback)
    trainer.model.fail_at = 4
    with pytest.raises(ValueError, match="out of memory"):
        trainer.train()
    first = callback.session
    assert first.prefix == 1
    trainer.train()
    assert callback.session is not first
    assert callback.session.summary()["steps"] == 6
    assert [entry.step for entry in callback.session.switches] == [2]
    assert "training_step" not in vars(trainer)
    assert all(parameter.requires_grad for parameter in trainer.model.parameters())


def test_a_cache_skips_frozen_layers_and_changes_no_bit(tmp_path: pathlib.Path, patient_cache: Daemon):
    class UntilKept(TrainerCallback):
        def on_step_end(self, *_, **__) -> None:
            wait_until_kept(callback.session)

    found = {}
    for cache in ("none", patient_cache.address):
        callback = EgeriaCallback(config=Config(plans=[(2, 2)], cache=cache, cache_use="always"))
        torch.manual_seed(0)
        trainer = trainer_of(tmp_path, callback, max_steps=40, seed=5)
        trainer.add_callback(UntilKept())
        trainer.train()
        found[cache] = [value.clone() for value in trainer.model.state_dict().values()]
    assert all(map(torch.equal, *found.values()))
    counters = callback.session.cache_counters()
    assert counters["hits"] > 32 and counters["passes_skipped"] > 8, counters


@pytest.mark.parametrize("kind", [Net, Counting])
def test_what_the_script_has_frozen_is_skipped(kind: type[Net], tmp_path: pathlib.Path, patient_cache: Daemon):
    class UntilKept(TrainerCallback):
        def on_step_end(self, *_, **__) -> None:
            wait_until_kept(callback.session)

    # In each batch of four, some labels do not count.
    data = [{**entry, "labels": -100 if number % 3 == 1 else entry["labels"]} for number, entry in enumerate(DATA)]
    found = {}
    for cache in (None, patient_cache.address):
        config = Config(controller="none", policy="none", cache=cache or "none", cache_use="always")
        callback = EgeriaCallback(config=config)
        torch.manual_seed(0)
        trainer = trainer_of(tmp_path, callback if cache else TrainerCallback(), kind, data, max_steps=40, seed=5)
        trainer.model.layers[:2].requires_grad_(False)
        if cache:
            trainer.add_callback(UntilKept())
        trainer.train()
        found[cache] = [value.clone() for value in trainer.model.state_dict().values()]
    assert all(map(torch.equal, *found.values()))
    counters = callback.session.cache_counters()
    assert counters["hits"] > 32 and counters["passes_skipped"] > 8, counters
    assert callback.session.summary()["frozen_by_script"] == 2


def test_the_trainer_uses_the_gradients_of_what_is_in_no_optimizer(
    tmp_path: pathlib.Path, patient_cache: Daemon, caplog: pytest.LogCaptureFixture
):
    """It clips by the norm of all gradients, and logs that."""
    found, norms = {}, {}
    for cache in (None, patient_cache.address):
        config = Config(controller="none", policy="none", cache=cache or "none", cache_use="always")
        callback = EgeriaCallback(config=config)
        torch.manual_seed(0)
        trainer = trainer_of(tmp_path, callback if cache else TrainerCallback(), max_steps=20, seed=5)
        trainer.optimizer = torch.optim.SGD(trainer.model.head.parameters(), 1.0)
        trainer.train()
        found[cache] = [value.clone() for value in trainer.model.state_dict().values()]
        norms[cache] = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert all(map(torch.equal, *found.values())) and norms[None] == norms[patient_cache.address] != []
    assert callback.session.summary()["frozen_by_script"] == 3
    assert callback.session.cache_counters()["passes_skipped"] == 0
    assert "[PARAMETER_WITHOUT_OPTIMIZER] 'layers.0.weight' and 5 more parameters" in caplog.text
    assert "since transformers.trainer, called at test_huggingface.py" in caplog.text


def test_the_session_gets_the_mean_loss_of_each_step(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    callback = EgeriaCallback(config=Config(enabled=False))
    trainer = trainer_of(tmp_path, callback, gradient_accumulation_steps=2)
    seen = []
    monkeypatch.setattr("egeria.training.session.Session.step", lambda self, loss: seen.append(float(loss)))
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert seen == pytest.approx(logged, abs=1e-4) and len(seen) == 6


def test_steps_and_name_come_from_the_training_arguments(tmp_path: pathlib.Path):
    callback = EgeriaCallback(config=Config(plans=[(2, 1)]))
    trainer = trainer_of(tmp_path, callback, run_name="my run")
    trainer.train()
    config = callback._config_for(trainer.args, trainer.state)
    assert config.total_steps == 6 and config.training_job == "my run" and config.plans == [(2, 1)]
    callback = EgeriaCallback(config=Config(total_steps=9, training_job="mine"))
    own = callback._config_for(trainer.args, trainer.state)
    assert own.total_steps == 9 and own.training_job == "mine"


def test_restoring_callbacks_from_a_checkpoint_leaves_this_one_as_it_is(tmp_path: pathlib.Path):
    callback = EgeriaCallback(config=Config(plans=[(2, 1), (5, 0)]))
    trainer = trainer_of(tmp_path / "one", callback)
    trainer.args.save_strategy, trainer.args.save_steps = "steps", 3
    trainer.args.restore_callback_states_from_checkpoint = True
    trainer.train()
    trainer.train(resume_from_checkpoint=str(tmp_path / "one" / "checkpoint-3"))
    assert callback in trainer.callback_handler.callbacks
    assert [(entry.step, entry.frozen_prefix) for entry in callback.session.switches] == [(2, 1), (5, 0)]
    shutil.rmtree(tmp_path / "one")


def test_deepspeed_is_refused_before_the_first_step(tmp_path: pathlib.Path):
    trainer = trainer_of(tmp_path, EgeriaCallback())
    trainer.is_deepspeed_enabled = True
    callback = trainer.callback_handler.callbacks[-2]
    assert isinstance(callback, EgeriaCallback)

    class Calling(Trainer):
        def __init__(self) -> None:  # pylint: disable=super-init-not-called
            self.is_deepspeed_enabled = True

        def begin(self) -> None:
            callback.on_train_begin(trainer.args, trainer.state, trainer.control)

    with pytest.raises(EgeriaError, match=r"\[FOREIGN_WRAPPER\] the Trainer runs DeepSpeed.*use DDP or FSDP2"):
        Calling().begin()


def test_what_attach_refuses_is_said_before_the_first_step(tmp_path: pathlib.Path):
    trainer = trainer_of(tmp_path, EgeriaCallback())
    trainer.model.requires_grad_(False)
    with pytest.raises(EgeriaError, match="NOTHING_TRAINABLE"):
        trainer.train()
    assert trainer.model.head.calls == 0


def test_without_a_trainer_behind_it_the_callback_warns_and_goes_on(tmp_path: pathlib.Path, caplog):
    trainer = trainer_of(tmp_path, TrainerCallback())
    trainer.create_optimizer()
    callback = EgeriaCallback(config=Config(plans=[(1, 1)]))
    with caplog.at_level(logging.WARNING, logger="egeria"):
        callback.on_train_begin(
            trainer.args, trainer.state, trainer.control, model=trainer.model, optimizer=trainer.optimizer
        )
    assert "no Trainer was found behind this callback" in caplog.text
    trainer.model(**{"x": torch.ones(2, 8), "labels": torch.tensor([0, 1])})["loss"].backward()
    trainer.optimizer.step()
    callback.on_step_end(trainer.args, trainer.state, trainer.control)
    assert callback.session.prefix == 1
    logs = {"loss": 1.0}
    callback.on_log(trainer.args, trainer.state, trainer.control, logs=logs)
    assert logs["egeria/frozen_prefix"] == 1.0
    callback.on_train_end(trainer.args, trainer.state, trainer.control)


def test_without_transformers_the_import_says_what_to_install(tmp_path: pathlib.Path):
    code = "import sys; sys.modules['transformers'] = None; import egeria.integrations.huggingface"
    done = run([sys.executable, "-c", code], tmp_path)
    assert done.returncode != 0
    assert "egeria.integrations.huggingface needs Transformers and Accelerate: pip install" in done.stderr
    assert "egeria[huggingface]" in done.stderr
