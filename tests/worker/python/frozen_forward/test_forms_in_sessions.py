"""Trainings whose frozen layers run in inference form."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cache_daemon import Daemon
from example_scripts import launch
from launching import HERE
from processors import needs_bf16
from torch import Tensor

import egeria
from egeria.frozen_forward import inference_form
from egeria.frozen_forward.passes import Passes

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "worker" / "python" / "examples"))
from cifar_resnet import ResNet  # noqa: E402  pylint: disable=wrong-import-position

PLANS = [(3, 4), (20, 2), (30, 4), (40, 0)]


@pytest.fixture(autouse=True)
def time_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_form, "_WORTH", 1e9)
    monkeypatch.setattr(Passes, "may_build", lambda self: True)


def train(form: str | None, steps: int = 50, resume_at: int | None = None) -> dict[str, Any]:
    """Trains with dropout in the head, evaluates at each fifth step, and says what came out."""

    def attach() -> egeria.Session:
        modules = [model.stem, model.layer1, model.layer2, model.layer3, model.fc]
        options = {} if form is None else {"frozen_forward": form}
        return egeria.attach(model, optimizer, modules=modules, config=egeria.Config(plans=PLANS, **options))

    torch.manual_seed(0)
    model = ResNet(8)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    session = attach()
    losses, scores = [], []
    for step in range(steps):
        if step == resume_at:
            state, weights, moments = session.state_dict(), model.state_dict(), optimizer.state_dict()
            session.close(finished=False)
            model = ResNet(8)
            model.load_state_dict(weights)
            optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
            optimizer.load_state_dict(moments)
            session = attach()
            session.load_state_dict(state)
        images = torch.randn(8, 3, 32, 32)
        loss = F.cross_entropy(model(images), torch.arange(8))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(loss)
        losses.append(loss.item())
        if step % 5 == 4:
            model.eval()
            with torch.no_grad():
                scores.append(model(images[:3]).sum().item())
            model.train()
    summary = session.summary()
    session.close()
    return {
        "losses": torch.tensor(losses),
        "scores": torch.tensor(scores),
        "weights": torch.cat([value.flatten().double() for value in model.state_dict().values()]),
        "random": torch.rand(4),
        "form": summary["frozen_forward"],
    }


@pytest.fixture(scope="module", name="plain")
def plain_fixture() -> dict[str, Any]:
    return train(None)


def test_exact_is_the_default_and_is_to_the_bit(plain: dict[str, Any]):
    exact = train("exact")
    assert exact["form"] is None and plain["form"] is None
    assert torch.equal(plain["weights"], exact["weights"]) and torch.equal(plain["losses"], exact["losses"])


@pytest.mark.parametrize("resume_at", [None, 12, 34])
def test_freezes_thaws_and_resumes_differ_by_roundings_only(resume_at: int | None, plain: dict[str, Any]):
    exact = plain if resume_at is None else train("exact", resume_at=resume_at)
    fused = train("fused", resume_at=resume_at)
    assert fused["form"]["calls"] > 5 and fused["form"]["reasons"] == [], fused["form"]
    for name in ("losses", "scores", "weights"):
        assert torch.allclose(exact[name], fused[name], rtol=1e-3, atol=5e-3), name
    assert not torch.equal(exact["losses"], fused["losses"])
    assert torch.equal(exact["random"], fused["random"])


def train_head(form: str) -> tuple[Tensor, list[int]]:
    """Trains behind layers that the script has frozen, and from step 10 on one of those too. Returns the losses, and
    the calls in form by step."""
    torch.manual_seed(0)
    model = ResNet(8)
    for frozen in (model.stem, model.layer1):
        frozen.requires_grad_(False).eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    config = egeria.Config(controller="none", cache="none", frozen_forward=form)
    session = egeria.attach(model, optimizer, config=config)
    losses, calls = [], []
    for step in range(16):
        if step == 10:
            model.layer1.requires_grad_(True)
        loss = F.cross_entropy(model(torch.randn(8, 3, 32, 32)), torch.arange(8))
        loss.backward()
        assert (model.layer1[0].conv1.weight.grad is not None) == (step >= 10)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        calls.append((session.summary()["frozen_forward"] or {"calls": 0})["calls"])
    session.close()
    return torch.tensor(losses), calls


def test_what_the_script_has_frozen_counts_too_and_trains_when_it_says_so():
    exact, _ = train_head("exact")
    fused, calls = train_head("fused")
    assert calls[9] > 5 and torch.allclose(fused, exact, atol=1e-3) and not torch.equal(fused, exact)


@needs_bf16
def test_bf16_is_another_training_that_learns_as_well(plain: dict[str, Any]):
    rounded = train("bf16")
    assert rounded["form"]["form"] == "bf16" and rounded["form"]["calls"] > 20
    assert torch.allclose(plain["losses"], rounded["losses"], atol=0.1)
    assert not torch.allclose(plain["weights"], rounded["weights"], rtol=1e-6, atol=1e-7)


def test_the_difference_is_in_the_summary_and_in_its_line(capsys: pytest.CaptureFixture[str]):
    form = train("fused", 18)["form"]
    assert 0 < form["difference"] < 1e-4 * form["of"]
    assert (
        f"frozen layers ran fused, {form['difference']:.1g} of {form['of']:.2g} from exact" in capsys.readouterr().out
    )


def test_a_variable_of_the_environment_says_so_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EGERIA_FROZEN_FORWARD", "bf16")
    assert egeria.Config.from_env().frozen_forward == "bf16"
    with pytest.raises(egeria.EgeriaError, match="frozen_forward is 'fast'"):
        egeria.Config(frozen_forward="fast")


@pytest.mark.parametrize(
    "arguments", [["--augment", "--use", "auto"], ["--patient", "--epochs", "18"]], ids=["random", "cached"]
)
def test_two_ranks_stay_alike_and_share_what_their_forms_compute(
    arguments: list[str], cache_daemon: Daemon, tmp_path: pathlib.Path
):
    folder = tmp_path / "out"
    folder.mkdir()
    launch(
        HERE / "caching_job.py", folder, "--cache", cache_daemon.address, "--form", "fused", *arguments, folder=folder
    )
    records = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    first, second = records
    assert first["identical"] and first["parameters"] == second["parameters"]
    for record in records:
        is_cached = "--patient" in arguments
        assert record["form"]["reasons"] == [] and record["form"]["calls"] > 10, record["form"]
        assert record["counters"].get("failures", 0) == 0 and record["estimates"]["state"] != "refused"
        assert (record["counters"]["hits"] > 60) == is_cached, record["counters"]
