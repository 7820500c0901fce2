"""Whole programs on a GPU: the examples, the callbacks, the doctor, and the native trainer."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from gpu_training import DEVICE, Convolutions, Training
from harness import BIN, ROOT

import egeria

EXAMPLES = ROOT / "worker" / "python" / "examples"


LAUNCHERS = {
    "egeria-run": [
        *(BIN / "egeria-run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
        *("--local-addr", "127.0.0.1", "--nproc-per-node", "1"),
    ],
    "python": [sys.executable],  # the job brings its own daemons
}


def launch(folder: pathlib.Path, launcher: str, *command: Any, **variables: str) -> str:
    """Runs it on one rank; returns what it printed. There is a cache where a folder for it is given."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EGERIA_")}
    environment |= {"OMP_NUM_THREADS": "1", **variables}
    if "XDG_CACHE_HOME" not in variables:
        environment["EGERIA_CACHE"] = "none"
    done = subprocess.run(
        list(map(str, [*LAUNCHERS[launcher], *command])),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout + done.stderr


@pytest.mark.only_cuda
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_example_of_a_gpt(launcher: str, tmp_path: pathlib.Path) -> None:
    """Compiled, in bfloat16."""
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question. " * 400, encoding="utf-8")
    out = launch(
        tmp_path, launcher, EXAMPLES / "char_gpt.py", text, "--steps", 60, "--layers", 3, "--eval-interval", 30
    )
    assert re.search(r"egeria: 60 steps.*, Egeria took .*, nothing froze", out), out[-3000:]


@pytest.mark.only_cuda
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_example_of_a_resnet(launcher: str, tmp_path: pathlib.Path) -> None:
    records = torch.randint(0, 256, (640, 3073), dtype=torch.uint8)
    records[:, 0] %= 10
    for name in ["test_batch.bin", *(f"data_batch_{number}.bin" for number in range(1, 6))]:
        (tmp_path / name).write_bytes(records.numpy().tobytes())
    freeze = {"entries": [{"fraction": 0.2, "frozen_prefix": 2}]}
    out = launch(
        tmp_path,
        launcher,
        EXAMPLES / "cifar_resnet.py",
        tmp_path,
        "--epochs",
        20,  # a plan needs a second to come
        "--depth",
        8,
        EGERIA_POLICY="schedule",
        EGERIA_POLICY_OPTIONS=json.dumps(freeze),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert re.search(r"egeria: 1,000 steps.*, frozen share [1-9]\d? %, 1 freeze", out), out[-3000:]


def native(folder: pathlib.Path, name: str, device: str, *options: Any) -> dict[str, Any]:
    """The summary of a training of the digits by egeria-train."""
    digits = folder / "digits.bin"
    if not digits.exists():
        subprocess.run([sys.executable, ROOT / "deploy" / "digits" / "export_digits.py", digits], check=True)
    summary = folder / f"{name}.json"
    epochs = [] if "--epochs" in options else ["--epochs", 4]
    arguments = ["--task", "digits", "--data", digits, "--device", device, "--summary", summary, *epochs]
    launch(folder, "egeria-run", "--no-python", BIN / "egeria-train", *arguments, *options)
    return json.loads(summary.read_text())["runs"][0]


def test_the_native_trainer(tmp_path: pathlib.Path) -> None:
    if not (BIN / "egeria-train").exists():
        pytest.skip("egeria-train is not built")
    pytest.importorskip("sklearn")
    plans = tmp_path / "plans.json"
    plans.write_text(json.dumps([{"step": 20, "frozen_prefix": 2}, {"step": 140, "frozen_prefix": 0}]))
    freezing = ["--controller", "none", "--plans", plans]
    mine = native(tmp_path, "device", DEVICE.type, *freezing)
    theirs = native(tmp_path, "cpu", "cpu", *freezing)
    assert [[entry["step"], entry["frozen_prefix"]] for entry in mine["decisions"]] == [[20, 2], [140, 0]]
    assert abs(mine["accuracy"] - theirs["accuracy"]) < 0.03
    reading = ["--policy", "plasticity", "--interval", 2, "--bootstrap", "off", "--observe"]
    watched = native(tmp_path, "watched", DEVICE.type, *reading, "--epochs", 30)
    assert watched["samples_sent"] > 0 and watched["accuracy"] > 0.9


def test_the_doctor() -> None:
    model, batch = Convolutions().to(DEVICE), torch.randn(8, 3, 16, 16, device=DEVICE)
    report = egeria.doctor(model, batch, lambda model, batch: model(batch).square().mean())
    print(report)
    assert len(report.modules) > 1


def test_the_callback_for_transformers(tmp_path: pathlib.Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from egeria.integrations.huggingface import EgeriaCallback

    torch.use_deterministic_algorithms(False)
    config = transformers.BertConfig(
        num_hidden_layers=3, hidden_size=32, num_attention_heads=2, intermediate_size=32, vocab_size=50
    )
    model = transformers.BertForSequenceClassification(config)
    samples = [{"input_ids": torch.randint(0, 50, (8,)), "labels": number % 2} for number in range(64)]
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        use_cpu=DEVICE.type == "cpu",
        bf16=DEVICE.type == "cuda",
        max_steps=20,
        per_device_train_batch_size=8,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
    )
    callback = EgeriaCallback(config=egeria.Config(plans=[(6, 2)], cache="none"))
    trainer = transformers.Trainer(model, arguments, train_dataset=samples, callbacks=[callback])
    trainer.train()
    assert next(model.parameters()).device.type == DEVICE.type
    assert callback.session.prefix == 2


def test_the_callback_for_lightning(tmp_path: pathlib.Path) -> None:
    lightning = pytest.importorskip("lightning")
    from egeria.integrations.lightning import EgeriaCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Convolutions()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-2, momentum=0.9)

    dataset = torch.utils.data.TensorDataset(torch.randn(64, 3, 16, 16), torch.randint(0, 10, (64,)))
    callback = EgeriaCallback(config=egeria.Config(plans=[(6, 2)], cache="none"))
    trainer = lightning.Trainer(
        accelerator="gpu" if DEVICE.type == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed",
        max_epochs=3,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(dataset, 8))
    assert callback.session.prefix == 2


def test_the_network_may_move_to_the_gpu_before_attach() -> None:
    training = Training()
    session = training.attach(plans=[(2, 1)])
    training.train(3, session)
    assert session.prefix == 1 and session.summary()["ranks_identical"]
