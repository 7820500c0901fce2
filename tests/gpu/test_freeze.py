"""Freezing on a GPU: what is frozen does not change by one bit, and all else trains on."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from gpu_training import OPTIMIZERS, Encoder, Options, Training, cuda_options, same, tensors_of
from harness import Controller

import egeria

FREEZE, MORE, THAW, END = 4, 7, 10, 13
PLANS = [(FREEZE, 1), (MORE, 3), (THAW, 0)]

WAYS = {name: cuda_options(optimizer=name) for name in OPTIMIZERS}
WAYS |= {
    "attention": Options(model=Encoder, optimizer="adamw"),
    "fp16": cuda_options(autocast=torch.float16),
    "channels-last": Options(channels_last=True, autocast=torch.bfloat16),
    "compiled": cuda_options(compile="default"),
    "compiled-in-place": cuda_options(compile="in-place"),
    "compiled-to-cuda-graphs": cuda_options(model=Encoder, compile="reduce-overhead"),
    "graphed-callables": cuda_options(graphed=("stem", "blocks.0", "blocks.2")),
}


def frozen_tensors(session: egeria.Session, prefix: int) -> dict[str, Any]:
    return tensors_of([unit for module in session.modules[:prefix] for unit in module.units])


@pytest.mark.parametrize("way", WAYS)
def test_what_is_frozen_stays_as_it_is_until_it_thaws(way: str) -> None:
    training = Training(WAYS[way])
    session = training.attach(plans=PLANS)
    training.train(FREEZE, session)
    assert session.prefix == 1
    first, active = frozen_tensors(session, 1), tensors_of([session.modules[1].units[0]])
    training.train(MORE - FREEZE, session)
    assert session.prefix == 3 and same(frozen_tensors(session, 1), first)
    assert not same(tensors_of([session.modules[1].units[0]]), active)
    assert all(parameter.grad is None for module in session.modules[:3] for _, parameter in module.parameters())
    frozen, head = frozen_tensors(session, 3), tensors_of([training.network.head])
    training.train(THAW - MORE, session)
    assert session.prefix == 0 and same(frozen_tensors(session, 3), frozen)
    assert not same(tensors_of([training.network.head]), head)
    if "sgd" in WAYS[way].optimizer:
        for module in session.modules[:3]:
            for name, parameter in module.parameters():
                assert not training.optimizer.state[parameter]["momentum_buffer"].any(), name
    training.train(END - THAW, session)
    for unit in (unit for module in session.modules for unit in module.units):
        for name, value in unit.state_dict().items():
            assert torch.isfinite(value).all(), name
    assert not any(same(value, frozen[name]) for name, value in frozen_tensors(session, 3).items())
    assert [switch.ranks_identical for switch in session.switches] == [True] * 3


@pytest.mark.parametrize("way", WAYS)
def test_a_freeze_is_the_same_by_hand(way: str) -> None:
    """By hand, the gradients of the layers are off, and they stay in evaluation mode."""
    frozen = Training(WAYS[way])
    session = frozen.attach(plans=[(FREEZE, 2)])
    frozen.train(END, session)
    assert session.prefix == 2
    names = [name for module in session.modules[:2] for name in module.unit_names]
    session.close()
    torch.compiler.reset()
    by_hand = Training(WAYS[way])
    by_hand.train(FREEZE)
    for layer in map(by_hand.network.get_submodule, names):
        layer.eval().requires_grad_(False)
        for parameter in layer.parameters():
            parameter.grad = None
    by_hand.train(END - FREEZE)
    assert same(frozen.losses, by_hand.losses)
    assert same(frozen.state()["model"], by_hand.state()["model"])


@pytest.mark.parametrize("way", ["sgd-fused", "adamw-fused", "adamw-capturable", "fp16", "channels-last"])
def test_a_resumed_training_equals_the_uninterrupted_one(way: str) -> None:
    whole = Training(WAYS[way])
    session = whole.attach(plans=PLANS)
    whole.train(MORE - 1, session)
    saved, egerias = whole.state(), session.state_dict()
    whole.train(END - MORE + 1, session)
    resumed = Training(WAYS[way])
    again = resumed.attach(plans=PLANS)
    resumed.restore(saved)
    again.load_state_dict(json.loads(json.dumps(egerias)))
    assert again.prefix == 1
    resumed.train(END - MORE + 1, again)
    assert again.prefix == session.prefix == 0
    assert same(whole.state(), resumed.state())
    assert same(whole.losses[MORE - 1 :], resumed.losses)


def test_a_person_freezes_and_unfreezes(controller: Controller) -> None:
    training = Training(Options(autocast=torch.bfloat16))
    session = training.attach(controller=controller.address, policy="none", training_job="by-hand")
    training.train(4, session, pace=0.1)
    training.train_until(lambda: "by-hand" in controller.egeria("list"), session)
    controller.egeria("freeze", "by-hand", "2")
    training.train_until(lambda: session.prefix == 2, session)
    frozen = frozen_tensors(session, 2)
    training.train(5, session)
    assert same(frozen_tensors(session, 2), frozen)
    controller.egeria("unfreeze", "by-hand")
    training.train_until(lambda: session.prefix == 0, session)
    training.train(2, session)
    assert not same(frozen_tensors(session, 2), frozen)


@pytest.mark.parametrize("reference", ["controller", "local"])
@pytest.mark.parametrize("kind", ["fp32", "bf16", "attention"])
def test_the_rule_freezes(kind: str, reference: str, controller: Controller) -> None:
    options = {"fp32": Options(), "bf16": Options(autocast=torch.bfloat16), "attention": WAYS["attention"]}[kind]
    training = Training(options)
    session = training.attach(
        controller=controller.address,
        policy="plasticity",
        batch_size=8,
        reference=reference,
        options={"interval_steps": 1, "window": 3, "tolerance": 1.0, "bootstrap": False},
    )
    training.train_until(lambda: session.prefix >= 1, session)
    frozen = frozen_tensors(session, 1)
    training.train(5, session)
    assert session.prefix == 0 or same(frozen_tensors(session, 1), frozen)
