"""Sessions in one process."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import json
import logging
import os
import pathlib
import pickle
import re
import subprocess
import sys
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from harness import metric
from layered_models import Layered
from recorded_models import Branches
from torch import Tensor, nn

import egeria
from egeria import _native
from egeria.freeze.mode_pins import ModePins
from egeria.freeze.switcher import Switch
from egeria.training import session as session_module

WINDOW = {"interval_steps": 1, "window": 3, "tolerance": 1.0, "bootstrap": False}


@pytest.fixture(autouse=True)
def no_session_stays_open() -> Iterator[None]:
    yield
    for session in list(session_module._open.values()):
        session.close(finished=False)


class Training:
    """A small model that trains; every step's data depends on its number only."""

    def __init__(self, seed: int = 0, **options: Any):
        torch.manual_seed(seed)
        self.model = Layered(norm=nn.BatchNorm1d, dropout=0.1, **options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
        self.step = 0

    def attach(self, **config: Any) -> egeria.Session:
        options = {"controller": "none"} if "controller" not in config and "plans" not in config else {}
        return egeria.attach(self.model, self.optimizer, config=egeria.Config(**options, **config))

    def loss(self) -> Tensor:
        data = torch.Generator().manual_seed(self.step)
        torch.manual_seed(10_000 + self.step)  # dropout
        return self.model(torch.randn(16, 8, generator=data)).square().mean()

    def train(self, steps: int, session: egeria.Session | None = None, pace: float = 0.0) -> None:
        """`pace`: seconds that a step takes at least, so that a controller can answer within few steps."""
        for _ in range(steps):
            self.step += 1
            self.optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            self.optimizer.step()
            if session is not None:
                session.step(loss)
            time.sleep(pace)

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(
            {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        )

    def restore(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]


def same(one: Any, other: Any) -> bool:
    """Equal to the bit, at any depth."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


# These tests are about what a session does.


def test_what_was_saved_before_a_resume_follows_from_the_switches():
    switches = [Switch(10, 2, False, True), Switch(30, 3, False, True), Switch(50, 0, True, True)]
    shares = [0.1, 0.2, 0.3, 0.0]

    def saved_before(step: int, switches: list[Switch], shares: list[float], total_steps: int | None) -> float:
        changes = [(switch.step, switch.frozen_prefix) for switch in switches]
        return _native.saved_before(step, changes, len(shares), shares, total_steps or 0)

    assert saved_before(60, switches, shares, 100) == pytest.approx((20 * 0.3 + 20 * 0.6) / 100)
    assert saved_before(40, switches, shares, 100) == pytest.approx((20 * 0.3 + 10 * 0.6) / 100)
    assert saved_before(60, [], shares, 100) == 0 and saved_before(60, switches, shares, None) == 0
    assert saved_before(60, switches, [0.0] * 4, 100) == pytest.approx((20 * 2 / 4 + 20 * 3 / 4) / 100)
    assert saved_before(60, [Switch(0, 9, False, True)], shares, 40) == pytest.approx(60 * 0.6 / 40)
    assert saved_before(60, [Switch(0, 9, False, True)], shares, 20) == 1


def test_the_mean_learning_rate_outlives_a_resume():
    training = Training()
    session = training.attach()
    training.train(4, session)
    rate = training.optimizer.param_groups[0]["lr"]
    state = session.state_dict()
    resumed = Training().attach()
    resumed.load_state_dict(state)
    assert resumed._training._rates.mean_over(4) == pytest.approx(rate) and rate > 0
    for unknown in ({"step": 4}, {**state, "learning_rate_sum": float("nan")}, {**state, "learning_rate_sum": "?"}):
        resumed = Training().attach()
        resumed.load_state_dict(unknown)
        assert resumed._training._rates.mean_over(4) == 0 and resumed.state_dict()["learning_rate_sum"] is None


def test_plans_freeze_and_unfreeze_and_the_summary_says_so(capsys: pytest.CaptureFixture[str]):
    training = Training()
    with training.attach(plans=[(15, 2), (18, 3), (22, 0)]) as session:
        training.train(19, session)
        assert session.prefix == 3
        assert session.scalars()["egeria/frozen_prefix"] == 3.0 and session.scalars()["egeria/freezes"] == 2.0
        assert 0 < session.scalars()["egeria/frozen_share"] < 1
        scalars = session.scalars()
        assert scalars["egeria/net_saved_seconds"] == pytest.approx(
            scalars["egeria/saved_seconds"] - scalars["egeria/spent_seconds"], abs=0.05
        )
        assert re.fullmatch(r"frozen 3/\d, net -?\d+\.\d s saved", session.progress())
        frozen = [name for module in session.modules[:3] for name, _ in module.parameters()]
        assert {name for name, p in training.model.named_parameters() if not p.requires_grad} == set(frozen)
        training.train(6, session)
    assert session.switches == [Switch(15, 2, False, True), Switch(18, 3, False, True), Switch(22, 0, True, True)]
    summary = session.summary()
    assert (summary["steps"], summary["freezes"], summary["unfreezes"]) == (25, 2, 1)
    assert 0 < summary["frozen_share"] < 1 and set(summary["seconds_per_step"]) == {0, 2, 3}
    line = capsys.readouterr().out
    assert line.startswith("egeria: 25 steps, frozen share ") and line.count("\n") == 1
    assert re.search(
        r"2 freezes, 1 unfreeze, saved about -?[\d.]+ s, Egeria took [\d.]+ s( \(\d+ % of the time\))?\n", line
    )


def test_where_nothing_froze_the_summary_says_what_egeria_took(capsys: pytest.CaptureFixture[str]):
    training = Training()
    with training.attach() as session:
        training.train(6, session)
    assert session.summary()["time_saved_share"] < 0
    assert re.fullmatch(r"egeria: 6 steps, Egeria took [\d.]+ s, nothing froze\n", capsys.readouterr().out)


def test_frozen_layers_do_not_change_by_one_bit():
    training = Training()
    session = training.attach(plans=[(4, 2)])
    training.train(4, session)
    before = {
        name: value.clone()
        for module in session.modules[:2]
        for name, value in [*module.parameters(), *module.buffers()]
    }
    training.model.train()
    training.train(6, session)
    now = {**dict(training.model.named_parameters()), **dict(training.model.named_buffers())}
    assert before and all(torch.equal(value, now[name]) for name, value in before.items())


def test_without_anything_to_do_a_session_changes_nothing():
    plain, watched = Training(), Training()
    session = watched.attach()
    plain.train(8)
    watched.train(8, session)
    session.close()
    assert same(plain.state(), watched.state()) and session.switches == []


def test_a_session_that_is_switched_off_does_nothing(capsys: pytest.CaptureFixture[str]):
    training = Training()
    with training.attach(enabled=False) as session:
        training.train(2, session)
        assert session.scalars() == {} and session.prefix == 0 and session.modules == []
        assert session.summary()["saved_seconds"] is None and session.summary()["cache"] is None
        session.load_state_dict(session.state_dict())
    assert capsys.readouterr().out == ""
    assert not training.model._forward_pre_hooks


def test_closing_lets_everything_train_again_and_remembers_what_was_frozen():
    training = Training()
    session = training.attach(plans=[(2, 2)])
    training.train(3, session)
    session.close()
    session.close()
    assert all(parameter.requires_grad for parameter in training.model.parameters())
    assert all(module.training for module in training.model.modules())
    assert session.prefix == 2 and session.state_dict()["frozen_prefix"] == 2
    assert session.scalars()["egeria/frozen_prefix"] == 2.0
    steps = session.state_dict()["step"]
    training.train(2, session)
    assert session.state_dict()["step"] == steps == 3
    assert not training.model._forward_pre_hooks and not training.optimizer._optimizer_step_post_hooks


def test_steps_that_a_scaler_skips_are_no_steps():
    training = Training()
    session = training.attach()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(4):
        training.optimizer.zero_grad()
        scaler.scale(training.loss() * (float("inf") if step == 1 else 1.0)).backward()
        scaler.step(training.optimizer)
        scaler.update()
    assert session.state_dict()["step"] == 3


def test_the_first_of_several_optimizers_ends_the_step():
    torch.manual_seed(0)
    model = Layered()
    head = torch.optim.SGD(model.head.parameters(), 0.1)
    rest = torch.optim.AdamW([p for name, p in model.named_parameters() if "head" not in name], 0.1)
    session = egeria.attach(model, [head, rest], config=egeria.Config(plans=[(2, 2)]))
    for _ in range(3):
        model(torch.randn(4, 8)).sum().backward()
        rest.step()
        head.step()
    assert session.state_dict()["step"] == 3 and session.prefix == 2


# Checkpoints.


def test_a_checkpoint_is_small_plain_and_changes_no_key_of_the_others():
    plain, watched = Training(), Training()
    session = watched.attach(plans=[(2, 2)])
    plain.train(4)
    watched.train(4, session)
    state = session.state_dict()
    data = io.BytesIO()
    torch.save({**watched.state(), "egeria": state}, data)
    data.seek(0)
    assert torch.load(data, weights_only=True)["egeria"] == state
    assert len(pickle.dumps(state)) < 2000
    for part in ("model", "optimizer"):
        assert list(plain.state()[part]) == list(watched.state()[part])
    assert list(plain.state()["optimizer"]["state"]) == list(watched.state()["optimizer"]["state"])


@pytest.mark.parametrize("save_at", [3, 6, 9, 13])
def test_a_resumed_training_equals_the_uninterrupted_one(save_at: int):
    plans = [(5, 2), (8, 3), (12, 1)]
    whole = Training()
    session = whole.attach(plans=plans)
    whole.train(save_at, session)
    saved, ours = whole.state(), copy.deepcopy(session.state_dict())
    whole.train(16 - save_at, session)

    again = Training(seed=5)
    resumed = again.attach(plans=plans)
    again.restore(saved)
    resumed.load_state_dict(ours)
    assert resumed.prefix == ours["frozen_prefix"]
    again.train(16 - save_at, resumed)
    assert same(whole.state(), again.state())
    assert resumed.switches == session.switches and resumed.state_dict() == session.state_dict()


def test_a_resumed_training_has_the_same_place_in_the_cache(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session_module, "_numbers", itertools.count())
    first_launch, second_launch = (str(uuid.uuid4()) for _ in range(2))
    monkeypatch.setenv("EGERIA_JOB_ID", first_launch)
    states = [Training().attach().state_dict() for _ in range(2)]
    assert states[0]["cache_namespace"] == first_launch, "jobs are found by their id, too"
    assert states[1]["cache_namespace"] not in (first_launch, None), "another session is another training"
    monkeypatch.setenv("EGERIA_JOB_ID", second_launch)
    for state in states:
        session = Training().attach()
        own = session.state_dict()["cache_namespace"]
        old = {name: value for name, value in state.items() if name != "cache_namespace"}
        for other in (old, {**old, "cache_namespace": "elsewhere"}, {**old, "cache_namespace": 7}):
            session.load_state_dict(other)
            assert session.state_dict()["cache_namespace"] == own != state["cache_namespace"]
        session.load_state_dict(json.loads(json.dumps(state)))
        assert session.state_dict() == state


class Cache:
    """In the place of a session's Caching."""

    def __init__(self) -> None:
        self.forgotten: list[bool] = []

    def close(self, forget: bool) -> None:
        self.forgotten.append(forget)

    def summary(self) -> dict[str, Any]:
        return dict.fromkeys(("saved_seconds", "spent_seconds", "passes", "passes_skipped"), 0)


@pytest.mark.parametrize(
    "total_steps,steps,explicitly,forgotten",
    [(5, 4, False, False), (5, 5, False, True), (None, 4, False, True), (5, 4, True, True)],
)
def test_an_exit_before_the_last_step_is_no_end_for_the_cache(
    total_steps: int | None, steps: int, explicitly: bool, forgotten: bool
):
    training = Training()
    session = training.attach(total_steps=total_steps)
    training.train(steps)
    session._training.cache._caching = cache = Cache()
    if explicitly:
        session.close()
    else:
        session_module._close_all()
    assert cache.forgotten == [forgotten]


def test_checkpoints_go_from_with_egeria_to_without_and_back():
    with_it = Training()
    session = with_it.attach(plans=[(2, 2)])
    with_it.train(4, session)
    without = Training(seed=3)
    without.restore(with_it.state())
    without.train(3)
    back = Training(seed=4)
    back.restore(without.state())
    resumed = back.attach()
    resumed.load_state_dict({"step": without.step})
    back.train(2, resumed)
    assert resumed.state_dict()["step"] == 9 and resumed.prefix == 0


def test_states_that_do_not_fit_are_refused_with_what_to_do():
    session = Training().attach()
    good = session.state_dict()
    for bad, what in [
        ({**good, "version": 99}, "newer egeria"),
        ({**good, "frozen_prefix": 99}, "99 layer modules"),
        ({**good, "step": -1}, "negative"),
        ({"step": "x"}, "no state"),
        (7, "no state"),
        ({**good, "modules": [3]}, "no list"),
        ({**good, "modules": [["a", ["nowhere"], []], ["b", ["head"], []]]}, "another model"),
    ]:
        with pytest.raises(egeria.EgeriaError, match=f"CHECKPOINT_MISMATCH.*{what}"):
            session.load_state_dict(bad)
    training = Training()
    cut = [["stem", "blocks"], "head"]
    listed = egeria.attach(training.model, training.optimizer, modules=cut, config=egeria.Config(controller="none"))
    with pytest.raises(egeria.EgeriaError, match="CHECKPOINT_MISMATCH.*than `modules` says"):
        listed.load_state_dict(good)
    training.train(1)
    with pytest.raises(egeria.EgeriaError, match="LOAD_TOO_LATE.*between attach"):
        listed.load_state_dict(listed.state_dict())


def test_the_number_of_steps_given_to_attach_is_that_of_the_job(controller: Any):
    training = Training()
    config = egeria.Config(controller=controller.address, batch_size=4, total_steps=10)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizer, 5000)
    session = egeria.attach(training.model, training.optimizer, scheduler=scheduler, total_steps=5000, config=config)
    training.train(3, session)
    session.close()
    assert config.total_steps == 10
    (job,) = [json.loads(line) for line in controller.egeria("list", "--json").splitlines()]
    assert job["total_steps"] == 5000


# Misuse, and our own failures.


def test_misuse_is_said_at_attach_with_what_to_do():
    training = Training()
    config = egeria.Config(controller="none")
    with pytest.raises(egeria.EgeriaError, match="BAD_OPTIMIZER.*step"):
        egeria.attach(training.model, training.model, config=config)
    with pytest.raises(egeria.EgeriaError, match="BAD_OPTIMIZER"):
        egeria.attach(training.model, [], config=config)
    with pytest.raises(egeria.EgeriaError, match="BAD_MODEL.*training loop"):
        egeria.attach(lambda x: x, training.optimizer, config=config)
    with pytest.raises(egeria.EgeriaError, match="BAD_CONFIG.*at most"):
        training.attach(plans=[(3, 50)])
    with pytest.raises(egeria.EgeriaError, match="BAD_CONFIG.*total_steps is 0"):
        egeria.attach(training.model, training.optimizer, total_steps=0, config=config)
    config.policy = "magic"
    with pytest.raises(egeria.EgeriaError, match="BAD_CONFIG"):
        egeria.attach(training.model, training.optimizer, config=config)
    assert not training.model._forward_pre_hooks and not training.optimizer._optimizer_step_post_hooks


def fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError("ours")


@pytest.mark.parametrize(
    "broken",
    [
        "egeria.training.session_link.RootInputs",
        "egeria.training.model_analysis.export_model",
        "egeria.training.controller_link.Link.probe",
        "egeria.training.controller_link.Link.answer_snapshot",
        "egeria.training.session_link.start_link",
        "egeria.training.step_reports.Reports.end_step",
        "egeria.training.step_reports.Reports.add_loss",
        "egeria.freeze.replicas.Replicas.discover",
    ],
)
def test_no_failure_of_ours_reaches_the_training(
    broken: str, monkeypatch: pytest.MonkeyPatch, controller: Any, caplog: pytest.LogCaptureFixture
):
    plain, watched = Training(), Training()
    session = watched.attach(
        controller=controller.address, observe=True, batch_size=4, policy="plasticity", options=WINDOW
    )
    monkeypatch.setattr(broken, fail)
    deadline = time.monotonic() + 300
    with caplog.at_level(logging.WARNING, logger="egeria"):
        while watched.step < 30 or ("ours" not in caplog.text and time.monotonic() < deadline):
            watched.train(1, session, pace=0.05)
    session.close()
    plain.train(watched.step)
    assert same(plain.state(), watched.state())
    told = [record.getMessage() for record in caplog.records if record.name == "egeria"]
    assert sum("ours" in text for text in told) == 1 and len(told) <= 3


def test_a_training_that_cannot_be_linked_goes_on_and_says_why(
    monkeypatch: pytest.MonkeyPatch, controller: Any, caplog: pytest.LogCaptureFixture
):
    training = Training()
    session = training.attach(controller=controller.address, batch_size=4, policy="plasticity", options=WINDOW)
    monkeypatch.setattr("egeria.training.model_analysis.export_model", fail)
    training.train(6, session)
    assert "this training is not watched: [NO_LINK] ZeroDivisionError: ours" in caplog.text
    assert session.state_dict()["step"] == 6 and session.counters() == {}


@pytest.mark.parametrize("prefix", [1, 3])
def test_a_switch_that_fails_halfway_leaves_what_was_frozen(
    prefix: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """And the modes, the weights and the momentum of a training that has never tried it."""
    whole, training = Training(), Training()
    whole.train(8, whole.attach(plans=[(2, 2)]))
    session = training.attach(plans=[(2, 2), (4, prefix), (6, 4)])
    training.train(3, session)
    calls = itertools.chain([fail], itertools.repeat(ModePins.set))
    monkeypatch.setattr(ModePins, "set", lambda *arguments: next(calls)(*arguments))
    training.train(5, session)
    assert session.prefix == 2 and len(session.switches) == 1
    assert f"{prefix} layer modules cannot be frozen, so 2 stay so: ours" in caplog.text
    assert same(training.state()["model"], whole.state()["model"])
    assert [module.training for module in training.model.modules()] == [
        module.training for module in whole.model.modules()
    ]
    asked = [parameter.requires_grad for parameter in training.model.parameters()]
    assert asked == [parameter.requires_grad for parameter in whole.model.parameters()]
    momentum = [
        [
            run.optimizer.state[parameter]["momentum_buffer"]
            for parameter in run.model.parameters()
            if parameter.requires_grad
        ]
        for run in (training, whole)
    ]
    assert momentum[0] and same(*momentum)


# Copies, pickles, forks, garbage.


def test_copies_and_pickles_of_a_watched_model_are_not_watched():
    training = Training()
    session = training.attach(plans=[(2, 2)])
    training.train(3, session)
    model, optimizer = copy.deepcopy((training.model, training.optimizer))
    for other in (model, pickle.loads(pickle.dumps(training.model)), pickle.loads(pickle.dumps(model))):
        other(torch.randn(4, 8)).sum()
    optimizer.step()
    assert session.state_dict()["step"] == 3
    assert b"egeria.training.session_hooks" not in pickle.dumps(training.model)
    training.train(1, session)
    assert session.state_dict()["step"] == 4


def test_a_forked_child_does_not_disturb_the_session(controller: Any):
    training = Training()
    session = training.attach(controller=controller.address, batch_size=4, policy="plasticity", options=WINDOW)
    training.train(6, session)
    child = os.fork()
    if child == 0:
        try:
            training.train(2, session)
            session.close()
            os._exit(0 if session._training.step == 6 else 3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    training.train(6, session)
    assert session.state_dict()["step"] == 12


def test_a_model_is_free_again_once_its_session_is_closed():
    training = Training()
    session = training.attach(plans=[(2, 2)])
    training.train(3, session)
    model = weakref.ref(training.model)
    session.close()
    del training, session
    gc.collect()
    assert model() is None


def test_attaching_anew_ends_the_session_before():
    training = Training()
    first = training.attach()
    second = training.attach()
    training.train(2)
    assert (first.state_dict()["step"], second.state_dict()["step"]) == (0, 2)


# With a controller.


def train_until(
    training: Training, session: egeria.Session, condition: Callable[[], bool], with_losses: bool = True
) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        training.train(1, session if with_losses else None)
        if condition():
            return
    raise AssertionError(f"waited {training.step} steps in vain; {session.counters()}")


def test_a_controller_freezes_layers_by_their_plasticity(controller: Any):
    training = Training()
    with training.attach(controller=controller.address, batch_size=8, policy="plasticity", options=WINDOW) as session:
        train_until(training, session, lambda: session.prefix >= 2)
        counters = session.counters()
    assert counters["samples_sent"] > 0 and counters["snapshots_sent"] > 0
    assert session.switches[0].frozen_prefix == 1 and all(entry.ranks_identical for entry in session.switches)
    assert '"Layered"' in controller.metrics()


def test_a_model_that_cannot_be_recorded_is_frozen_by_readings_of_this_process(
    controller: Any, caplog: pytest.LogCaptureFixture
):
    training = Training()
    torch.manual_seed(0)
    training.model = Branches()
    training.optimizer = torch.optim.SGD(training.model.parameters(), 0.05)
    with caplog.at_level(logging.INFO, logger="egeria"):
        with training.attach(
            controller=controller.address, batch_size=8, policy="plasticity", options=WINDOW
        ) as session:
            train_until(training, session, lambda: session.prefix >= 1)
    assert "data-dependent" in caplog.text and "runs their reference itself" in caplog.text
    assert session.counters()["samples_sent"] > 0


class Own(torch.optim.SGD):
    """Calls its closure in a way of its own, or is given something else in its place."""

    def step(self, argument: Any = None) -> Any:  # type: ignore[override]
        if callable(argument):
            return argument(backward=True)
        assert argument == 0.5
        return super().step()


@pytest.mark.parametrize("with_closure", [True, False])
def test_an_optimizer_of_ones_own_is_called_as_ever(with_closure: bool):
    training = Training()
    training.optimizer = Own(training.model.parameters(), 0.05)
    with training.attach():
        if with_closure:
            assert training.optimizer.step(lambda backward: backward)
        else:
            training.optimizer.step(0.5)


def test_a_state_with_frozen_layers_is_loaded_once():
    training = Training()
    with training.attach(plans=[(3, 2)]) as session:
        training.train(4)
        state = session.state_dict()
    again = Training()
    with again.attach() as session:
        session.load_state_dict(state)
        with pytest.raises(egeria.EgeriaError, match="LOAD_TOO_LATE.*already"):
            session.load_state_dict({"step": 4})


def test_a_resumed_training_is_watched_though_its_wrapper_comes_late(controller: Any):
    training = Training()
    with training.attach(controller=controller.address, batch_size=8, policy="none") as session:
        session.load_state_dict({"step": 1000})
        passes = session._training._passes
        passes.close()  # as if the model were compiled with everything inside it
        training.train(3)
        passes._followed.clear()
        passes.follow(training.model)
        train_until(training, session, lambda: session._training.link.link is not None)


def test_without_losses_the_bootstrapping_stage_is_a_number_of_steps(controller: Any, caplog: pytest.LogCaptureFixture):
    training = Training()
    options = {**WINDOW, "interval_steps": 5, "bootstrap": True}
    with training.attach(
        controller=controller.address, batch_size=8, observe=True, policy="plasticity", options=options
    ) as session:
        train_until(training, session, lambda: session.counters().get("samples_sent", 0) > 0, with_losses=False)
        assert training.step > 30
    assert caplog.text.count("no loss is reported") == 1 and "call session.step(loss)" in caplog.text


def test_reference_local_takes_all_readings_here(controller: Any):
    training = Training()
    with training.attach(
        controller=controller.address, batch_size=8, policy="plasticity", options=WINDOW, reference="local"
    ) as session:
        train_until(training, session, lambda: session.prefix >= 1)


@pytest.mark.parametrize("policy", ["auto", "none"])
def test_auto_freezes_at_once_what_has_no_learning_rate(controller: Any, policy: str):
    training = Training()
    parts = [training.model.stem, *training.model.blocks, training.model.head]
    groups = [{"params": list(part.parameters()), "lr": 0.0 if index < 2 else 0.05} for index, part in enumerate(parts)]
    training.optimizer = torch.optim.SGD(groups, 0.05, momentum=0.9)

    def history(*options: str) -> str:
        jobs = controller.egeria("list", "--json").splitlines()
        return controller.egeria("export", json.loads(jobs[0])["job_id"], *options) if jobs else ""

    with training.attach(controller=controller.address, batch_size=8, policy=policy) as session:
        assert len(session.modules) == len(parts)
        if policy == "none":
            train_until(training, session, lambda: "zero_lr_prefix" in history())
            training.train(20, session)
            assert session.prefix == 0 and history("--decisions") == ""
            return
        train_until(training, session, lambda: session.prefix == 2)  # for which there is no other reason here
        training.optimizer.param_groups[1]["lr"] = 0.05
        train_until(training, session, lambda: session.prefix == 1)
    assert [(switch.frozen_prefix, switch.ranks_identical) for switch in session.switches] == [(2, True), (1, True)]


@pytest.mark.parametrize("reference", ["controller", "local"])
def test_the_rule_on_the_norm_of_activations_freezes_as_well(controller: Any, reference: str):
    training = Training()
    with training.attach(
        controller=controller.address, batch_size=8, policy="actnorm", options=WINDOW, reference=reference
    ) as session:
        train_until(training, session, lambda: session.prefix >= 1)
    # Samples that were on their way when the decision was taken are stale; nothing is refused for another reason.
    refused = metric(controller.metrics(), "egeria_uploads_refused_total") or 0
    assert refused == (metric(controller.metrics(), "egeria_uploads_refused_total", reason="stale_request") or 0)


def test_layer_modules_out_of_order_are_said_and_not_watched(controller: Any, caplog: pytest.LogCaptureFixture):
    training = Training()
    config = egeria.Config(controller=controller.address, batch_size=8, policy="plasticity", options=WINDOW)
    session = egeria.attach(training.model, training.optimizer, modules=["blocks", "stem", "head"], config=config)
    training.train(4, session)
    assert "[BAD_PARTITION] a layer of 'stem' runs before one of 'blocks'; list" in caplog.text
    assert session.counters() == {}


def test_the_order_of_the_forward_pass_replaces_that_of_definition(controller: Any):
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.second, self.first = nn.Linear(8, 4), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.second(torch.relu(self.first(x)))))

    training = Training()
    training.model = Backwards()
    training.optimizer = torch.optim.SGD(training.model.parameters(), 0.01)
    session = training.attach(controller=controller.address, batch_size=8, policy="plasticity", options=WINDOW)
    assert [module.name for module in session.modules] == ["head", "second", "first"]
    training.train(3, session)
    assert [module.name for module in session.modules] == ["first", "second", "head"]
    saved = session.state_dict()
    session.close()
    resumed = training.attach(controller="none")
    resumed.load_state_dict({**saved, "frozen_prefix": 1})
    assert not training.model.first.weight.requires_grad and training.model.head.weight.requires_grad


def test_sizes_that_begin_to_vary_later_lead_to_a_new_recording(controller: Any):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    never = {**WINDOW, "tolerance": 1e-9}  # nothing freezes, so that readings go on
    config = egeria.Config(
        controller=controller.address, batch_size=4, observe=True, policy="plasticity", options=never
    )
    session = egeria.attach(model, optimizer, config=config)

    def step(length: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(8, length, 8)).square().mean().backward()
        optimizer.step()

    lengths = torch.Generator().manual_seed(0)
    sent = 0
    deadline = time.monotonic() + 180
    for number in itertools.count():
        step(5 if number < 10 else int(torch.randint(3, 9, (), generator=lengths)))
        sent = session.counters().get("samples_sent", 0)
        if session._training.link.recordings == 1 and sent >= 10:
            break
        time.sleep(
            0.05 if session._training.link.recordings == 1 else 0
        )  # no more of them at once than the agent's queue takes
        assert time.monotonic() < deadline, session.counters()
    assert session.counters()["samples_dropped"] < sent + 5


def test_a_script_that_forgets_to_close_says_its_summary_at_the_end(tmp_path: pathlib.Path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, egeria\n"
        "def main():\n"
        "    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))\n"
        "    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "    session = egeria.attach(model, optimizer, config=egeria.Config(plans=[(2, 1)]))\n"
        "    for step in range(4):\n"
        "        model(torch.randn(4, 4)).sum().backward()\n"
        "        optimizer.step()\n"
        "main()\n"
        "import sys\n"
        "if sys.argv[1:]: raise SystemError('the user\\'s own')\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and "egeria: 4 steps, frozen share " in done.stdout, done.stderr
    done = subprocess.run([sys.executable, script, "raise"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1 and "the user's own" in done.stderr and "egeria" not in done.stdout
